"""Purges deleted Key Vaults, which can otherwise be recovered for a while."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.fields import Unknown, Word
from unwind.api.names import DELETE_MODE_ANNOTATION, Reason
from unwind.deleters.outcomes import Again, Gone, Kept, PermanentError
from unwind.deleters.registration import deleter
from unwind.external.azure import arm_responses, resource_ids
from unwind.external.azure.arm_client import ArmClient
from unwind.external.azure.resource_deletion import AzureRemoval
from unwind.external.azure.resource_ids import ArmId, AzureTarget, NeverCreated

if TYPE_CHECKING:
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.external.azure.arm_responses import ArmReply
    from unwind.kube.client import Object

# The operations on deleted vaults are not in every API version of vaults.
_API = "2023-07-01"
_VAULT, _UNLISTED = "vault", "unlisted"
# A deleted vault is not listed among the deleted vaults at once.
_LISTED_WITHIN = timedelta(minutes=5)


class DeleteMode(Word):
    """What happens to a vault."""

    SOFT_DELETE = "SoftDelete"
    """Azure keeps it for its retention time, during which its name is taken."""
    PURGE = "Purge"
    """Deleted permanently."""


class _Vault(msgspec.Struct, frozen=True):
    """What must be known of a vault after it is deleted."""

    id: str
    location: str
    seen: bool
    """Whether it existed before: then it must be listed among the deleted vaults."""


def delete_mode(obj: Object) -> DeleteMode:
    """The mode in `unwind.dev/delete-mode`, or in `spec.deleteMode` if the schema has that.

    If they disagree, the one that keeps more wins. Raises PermanentError for an unknown value.
    """
    annotations: dict[str, str] = obj["metadata"].get("annotations") or {}
    said = [annotations.get(DELETE_MODE_ANNOTATION), (obj.get("spec") or {}).get("deleteMode")]
    modes = set()
    for word in said:
        mode = DeleteMode.read(str(word)) if word is not None else None
        if isinstance(mode, Unknown):
            raise PermanentError(
                f"cannot delete {obj['metadata']['name']}: deleteMode {mode}",
                reason=Reason.UNKNOWN_VALUE,
                remedy=f"correct spec.deleteMode or the annotation {DELETE_MODE_ANNOTATION}",
            )
        if mode is not None:
            modes.add(mode)
    return DeleteMode.PURGE if modes == {DeleteMode.PURGE} else DeleteMode.SOFT_DELETE


@deleter("keyvault.azure.com/*", "Vault", external=True)
async def purge_vault(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Purge a Key Vault after its deletion, if requested and allowed by its purge protection."""
    vault = await _remembered(ctx, obj)
    outcome = await next(ctx, obj)
    if vault is None or isinstance(outcome, Kept):
        return outcome
    return await _purged(ctx, vault)


async def _remembered(ctx: DeleteContext, obj: Object) -> _Vault | None:
    """What to purge afterwards, recorded before anything is deleted; None if nothing."""
    kept = ctx.memo.get(_VAULT)
    if not ctx.absent and delete_mode(obj) is not DeleteMode.PURGE:
        # A user may have changed the mode during the deletion.
        await ctx.memo.drop(_VAULT)
        return None
    if kept is not None:
        return msgspec.json.decode(kept, type=_Vault)
    if ctx.absent:
        return None
    target = resource_ids.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return None
    reply = await ctx.client_of(ArmClient).get(target.id, api_version=target.api_version)
    seen = arm_responses.sighting(reply, ArmId.parse(target.id))
    if not (seen.absent or reply.ok):
        raise reply.error(f"cannot determine the location of {ctx.ref}", ctx.clock.now())
    # Azure's answer takes precedence; a vault that is already deleted has the location in its spec.
    places = (reply.content if reply.ok else None, obj.get("status"), obj.get("spec"))
    found: Any = next((place["location"] for place in places if place and place.get("location")), None)
    location = found.lower().replace(" ", "") if isinstance(found, str) else ""
    if not re.fullmatch(r"[a-z0-9]+", location):
        raise PermanentError(f"cannot purge {ctx.ref}: its location is unknown", remedy="set spec.location")
    vault = _Vault(target.id, location, seen=reply.ok)
    await ctx.memo.put(_VAULT, msgspec.json.encode(vault).decode())
    return vault


async def _purged(ctx: DeleteContext, vault: _Vault) -> Outcome:
    arm, id_ = ctx.client_of(ArmClient), ArmId.parse(vault.id)
    path = (
        f"/subscriptions/{id_.subscription}/providers/Microsoft.KeyVault"
        f"/locations/{vault.location}/deletedVaults/{id_.name}"
    )
    removal = AzureRemoval(ctx, arm, AzureTarget(path, _API), what="the purge")
    if not removal.begun:
        reply = await removal.look()
        seen = arm_responses.sighting(reply, ArmId.parse(path))
        if seen.absent:
            await _may_be_listed_later(ctx, vault)
            return Gone(f"the deleted vault {id_.name} no longer exists")
        if not reply.ok:
            raise reply.error(f"cannot determine whether {ctx.ref} is among the deleted vaults", ctx.clock.now())
        properties: dict[str, Any] = (reply.content or {}).get("properties") or {}
        if str(properties.get("vaultId", "")).lower() != vault.id.lower():
            return Gone(f"the deleted vault {id_.name} is another one, {properties.get('vaultId')}")
        if properties.get("purgeProtectionEnabled"):
            return _protected(id_, properties)

    async def send() -> ArmReply:
        ctx.log.info("vault purge requested", resource=path)
        return await arm.post(f"{path}/purge", api_version=_API)

    return await removal.carry_out(send)


async def _may_be_listed_later(ctx: DeleteContext, vault: _Vault) -> None:
    """Raise Again if the vault may still appear among the deleted vaults."""
    if not vault.seen:
        return
    now = ctx.clock.now()
    first = ctx.memo.get(_UNLISTED)
    if first is None:
        await ctx.memo.put(_UNLISTED, now.isoformat())
    if first is None or now < datetime.fromisoformat(first) + _LISTED_WITHIN:
        raise Again(f"waiting for Azure to list {ctx.ref} among the deleted vaults", after=10)


def _protected(id_: ArmId, properties: dict[str, Any]) -> Kept:
    date = properties.get("scheduledPurgeDate")
    when = f"Azure purges it on {date}" if isinstance(date, str) else "Azure does not say when it purges it"
    return Kept(
        Reason.PURGE_PROTECTED,
        f"{id_.name} is deleted but not purged, because it has purge protection: {when}",
        by="Azure (purge protection)",
    )
