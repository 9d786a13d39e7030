"""Key Vaults: what is deleted can be recovered for a while, unless it is purged."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.fields import Unknown, Word
from unwind.api.names import DELETE_MODE_ANNOTATION, Reason
from unwind.azure import answers, identity
from unwind.azure.arm import ArmClient
from unwind.azure.identity import ArmId, NeverCreated, Target
from unwind.azure.operations import Removal
from unwind.deleting.outcomes import Again, Gone, Kept, PermanentError
from unwind.deleting.registering import deleter

if TYPE_CHECKING:
    from unwind.azure.answers import Reply
    from unwind.deleting.context import DeleteContext
    from unwind.deleting.outcomes import Outcome
    from unwind.deleting.protocol import DeleteFunc
    from unwind.kube.client import Object

# The operations on deleted vaults are not in every version of the API that vaults themselves are in.
_API = "2023-07-01"
_VAULT, _UNLISTED = "vault", "unlisted"
# A vault that was deleted is not at once among the deleted ones.
_LISTED_WITHIN = timedelta(minutes=5)


class DeleteMode(Word):
    """What becomes of a vault."""

    SOFT_DELETE = "SoftDelete"
    """Azure keeps it for its time of retention, and its name is taken as long."""
    PURGE = "Purge"
    """For good."""


class _Vault(msgspec.Struct, frozen=True):
    """What has to be known of a vault when it is gone."""

    id: str
    location: str
    seen: bool
    """Whether it was there before: then it has to be among the deleted ones."""


def delete_mode(obj: Object) -> DeleteMode:
    """What the object asks for, in `unwind.dev/delete-mode` or in `spec.deleteMode` where its schema has that.

    If they disagree, the one that keeps more holds. Raises PermanentError for a word that is not known.
    """
    annotations: dict[str, str] = obj["metadata"].get("annotations") or {}
    said = [annotations.get(DELETE_MODE_ANNOTATION), (obj.get("spec") or {}).get("deleteMode")]
    modes = set()
    for word in said:
        mode = DeleteMode.read(str(word)) if word is not None else None
        if isinstance(mode, Unknown):
            raise PermanentError(
                f"the delete mode {mode}, so {obj['metadata']['name']} is not deleted",
                reason=Reason.UNKNOWN_VALUE,
                remedy=f"use one of {', '.join(DeleteMode)}",
            )
        if mode is not None:
            modes.add(mode)
    return DeleteMode.PURGE if modes == {DeleteMode.PURGE} else DeleteMode.SOFT_DELETE


@deleter("keyvault.azure.com/*", "Vault")
async def purge_vault(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
    """Purge a Key Vault once it is deleted, if that is asked for and its purge protection allows it."""
    vault = await _remembered(ctx, obj)
    outcome = await next(ctx, obj)
    if vault is None or isinstance(outcome, Kept):
        return outcome
    return await _purged(ctx, vault)


async def _remembered(ctx: DeleteContext, obj: Object) -> _Vault | None:
    """What is to be purged afterwards, written down before anything is deleted; None if nothing is."""
    kept = ctx.memo.get(_VAULT)
    if not ctx.absent and delete_mode(obj) is not DeleteMode.PURGE:
        # Somebody may have changed their mind while it was being deleted.
        await ctx.memo.drop(_VAULT)
        return None
    if kept is not None:
        return msgspec.json.decode(kept, type=_Vault)
    if ctx.absent:
        return None
    target = identity.target(obj, ctx.resource)
    if isinstance(target, NeverCreated):
        return None
    reply = await ctx.client_of(ArmClient).get(target.id, api_version=target.api_version)
    seen = answers.sighting(reply, ArmId.parse(target.id))
    if not (seen.absent or reply.ok):
        raise reply.error(f"it is not known where {ctx.ref} is", ctx.clock.now())
    # Azure's own word first; what is deleted already is where the object says that it was.
    places = (reply.content if reply.ok else None, obj.get("status"), obj.get("spec"))
    found: Any = next((one["location"] for one in places if one and one.get("location")), None)
    location = found.lower().replace(" ", "") if isinstance(found, str) else ""
    if not re.fullmatch(r"[a-z0-9]+", location):
        raise PermanentError(f"{ctx.ref} is to be purged, and it is not known where it is", remedy="set spec.location")
    vault = _Vault(target.id, location, seen=reply.ok)
    await ctx.memo.put(_VAULT, msgspec.json.encode(vault).decode())
    return vault


async def _purged(ctx: DeleteContext, vault: _Vault) -> Outcome:
    arm, id_ = ctx.client_of(ArmClient), ArmId.parse(vault.id)
    path = (
        f"/subscriptions/{id_.subscription}/providers/Microsoft.KeyVault"
        f"/locations/{vault.location}/deletedVaults/{id_.name}"
    )
    removal = Removal(ctx, arm, Target(path, _API), what="the purge")
    if not removal.begun:
        reply = await removal.look()
        seen = answers.sighting(reply, ArmId.parse(path))
        if seen.absent:
            await _may_be_listed_later(ctx, vault)
            return Gone(f"{id_.name} is among the deleted vaults no more")
        if not reply.ok:
            raise reply.error(f"it is not known whether {ctx.ref} is among the deleted vaults", ctx.clock.now())
        properties: dict[str, Any] = (reply.content or {}).get("properties") or {}
        if str(properties.get("vaultId", "")).lower() != vault.id.lower():
            return Gone(f"the deleted vault {id_.name} is another one, {properties.get('vaultId')}")
        if properties.get("purgeProtectionEnabled"):
            return _protected(id_, properties)

    async def send() -> Reply:
        ctx.log.info("purging at Azure", resource=path)
        return await arm.post(f"{path}/purge", api_version=_API)

    return await removal.carry_out(send)


async def _may_be_listed_later(ctx: DeleteContext, vault: _Vault) -> None:
    """Raise Again if the vault may still come to be among the deleted ones."""
    if not vault.seen:
        return
    now = ctx.clock.now()
    first = ctx.memo.get(_UNLISTED)
    if first is None:
        await ctx.memo.put(_UNLISTED, now.isoformat())
    if first is None or now < datetime.fromisoformat(first) + _LISTED_WITHIN:
        raise Again(f"{ctx.ref} is deleted, and is not among the deleted vaults yet", after=10)


def _protected(id_: ArmId, properties: dict[str, Any]) -> Kept:
    date = properties.get("scheduledPurgeDate")
    when = f"Azure purges it on {date}" if isinstance(date, str) else "it does not say when Azure purges it"
    return Kept(
        Reason.PURGE_PROTECTED,
        f"{id_.name} is deleted but not purged, because it has purge protection: {when}",
        by="purge protection",
    )
