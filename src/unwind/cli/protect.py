"""`unwind protect` and `unwind unprotect`: set and remove the deletion protection label."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter
from rich.text import Text

from unwind.api.annotation_values import DeleteProtection
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.names import DELETE_PROTECTION_LABEL, PROTECT_FIELD_MANAGER
from unwind.api.resources import PERSISTENT_VOLUMES
from unwind.cli import console
from unwind.cli.arguments import Context, Flag, Kubeconfig, Output, Place
from unwind.errors import UnwindError
from unwind.install import protection_enforcement
from unwind.install.protection_enforcement import Enforced, enforced
from unwind.kube import discovery
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.members import cluster_lookup
from unwind.members.members import Members
from unwind.protection import protected_kinds
from unwind.protection.protected_kinds import disk_warning, not_against, unprotectable
from unwind.protection.rules import FORBIDDEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from unwind.kube.client import Object
    from unwind.kube.discovery import Named
    from unwind.protection.protected_kinds import ProtectedKind

Target = Annotated[
    str, Parameter(name="KIND/NAME", help="The object: deploy/web, ns/shop, crd/pools.example.dev, pvc/data.")
]

OnCluster = Annotated[
    str | None,
    Parameter(
        name="--cluster",
        help="The member cluster of the object: NAME or NAMESPACE/NAME of its cluster object here.",
    ),
]

_ON_MEMBER = "a DELETE by others on this member is not refused; install Unwind there with deletion protection"
_BY = {
    protection_enforcement.POLICY: "enforced by",
    protection_enforcement.WEBHOOK: "enforced by",
    protection_enforcement.REMOVALS: "enforced by",
    protection_enforcement.NOBODY: "not enforced",
    protection_enforcement.NOT_KNOWN: "enforcement unknown",
}


class Protected(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The protection of an object, for JSON output."""

    object: ObjectRef
    label: str = ""
    """The value of the label; empty if there is none."""
    before: str = ""
    enforced: Enforced | None = None
    now: str = ""
    """The message that refuses a DELETE now; empty if it is allowed."""
    not_known: str = ""
    """Why the dry run of the DELETE gave no answer."""
    not_against: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What else to do to prevent data loss."""


async def protect(
    target: Target,
    /,
    *,
    namespace: Place = None,
    cascading: Annotated[
        Flag, Parameter(help="Protect only while something depends on it: replicas, Pods, volumes, custom resources.")
    ] = False,
    cluster: OnCluster = None,
    output: Output = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Protect an object from deletion with the label policy.kruise.io/delete-protection.

    Shows how the protection is enforced and what it does not protect against. With --cluster, the object is on a
    member: everything that Unwind removes from there respects the label. Exits with 1 if nothing enforces it; the label
    is set all the same.
    """
    word = DeleteProtection.CASCADING if cascading else DeleteProtection.ALWAYS
    async with _client(kubeconfig, context, cluster) as client:
        named, kind = await _meant(client, target, namespace, member=bool(cluster))
        _refuse_empty(kind, word)
        found = await _found(client, named)
        read = msgspec.convert(found["metadata"], ObjectMeta)
        _refuse_unprotectable(named, kind, read)
        if read.terminating:
            raise UnwindError(
                f"cannot protect {named}: it is already being deleted", remedy="see `unwind why` for what it waits for"
            )
        await _label(client, named, read, word.value)
        refusal, not_known = await _asked(client, named, read)
        told = Protected(
            object=ref_of(named.resource, read),
            label=word.value,
            before=read.labels.get(DELETE_PROTECTION_LABEL, ""),
            enforced=await _enforced(client, kind, word, member=bool(cluster)),
            now=refusal,
            not_known=not_known,
            not_against=tuple(not_against(kind, word, owners=[f"{it.kind} {it.name}" for it in read.owner_references])),
            warnings=tuple(_warnings(kind, found)),
        )
    if output == "json":
        console.show_json(told)
    else:
        _show(told)
    if told.enforced and told.enforced.way == protection_enforcement.NOBODY:
        raise UnwindError(
            f"{told.object} is labelled but not protected: nothing enforces it", remedy=told.enforced.note
        )


async def unprotect(
    target: Target,
    /,
    *,
    namespace: Place = None,
    cluster: OnCluster = None,
    output: Output = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Remove the label policy.kruise.io/delete-protection from an object, so that it can be deleted.

    A removal that waits for the object continues at once.
    """
    async with _client(kubeconfig, context, cluster) as client:
        named, _ = await _meant(client, target, namespace, member=bool(cluster))
        read = await _read(client, named)
        before = read.labels.get(DELETE_PROTECTION_LABEL, "")
        if DELETE_PROTECTION_LABEL in read.labels:
            await _label(client, named, read, None)
        # A Namespace or CRD may contain objects that are protected themselves.
        refusal, not_known = await _asked(client, named, read)
    told = Protected(object=ref_of(named.resource, read), before=before, now=refusal, not_known=not_known)
    if output == "json":
        console.show_json(told)
        return
    said = f"is no longer protected (it was {before})" if before else "was not protected"
    console.out.print(Text(f"{told.object} {said}"))
    _show_now(told)


@asynccontextmanager
async def _client(kubeconfig: Path | None, context: str | None, cluster: str | None) -> AsyncIterator[Client]:
    """A client of this cluster, or of one of its members."""
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with Client(connection, user_agent="unwind-protect") as client:
        if cluster is None:
            yield client
            return
        async with Members(client) as fleet:
            target = await cluster_lookup.find_cluster(client, Discovery(client), cluster)
            async with fleet.member(target) as member:
                yield member.client


async def _enforced(client: Client, kind: ProtectedKind, word: DeleteProtection, *, member: bool) -> Enforced:
    found = await enforced(client, kind, word)
    if member and found.way == protection_enforcement.NOBODY:
        return Enforced(way=protection_enforcement.REMOVALS, by="Unwind's own removals", note=_ON_MEMBER)
    return found


async def _meant(client: Client, target: str, namespace: str | None, *, member: bool) -> tuple[Named, ProtectedKind]:
    # The namespace of a member's kubeconfig context is not the user's choice.
    where = namespace or ("default" if member else client.connection.namespace)
    named = await discovery.resolve(Discovery(client), target, namespace=where)
    it = named.resource
    kind = protected_kinds.of_any(it.group, it.kind, plural=it.plural, version=it.version, namespaced=it.namespaced)
    return named, kind


def _refuse_unprotectable(named: Named, kind: ProtectedKind, read: ObjectMeta) -> None:
    controllers = [f"{it.kind} {it.name}" for it in read.owner_references if it.controller]
    if refusal := unprotectable(kind, controller=next(iter(controllers), "")):
        why, remedy = refusal
        raise UnwindError(f"cannot protect {named}: {why}", remedy=remedy)


def _warnings(kind: ProtectedKind, found: Object) -> Iterator[str]:
    if kind.resource == PERSISTENT_VOLUMES.plural and (warning := disk_warning(found)):
        yield warning


def _refuse_empty(kind: ProtectedKind, word: DeleteProtection) -> None:
    """Refuse --cascading for a kind without dependents: the label would have no effect, and suggest protection."""
    if word is not DeleteProtection.CASCADING or (kind.cascading and (kind.count or kind.rest)):
        return
    raise UnwindError(
        f"cannot use --cascading for {kind.kind}: Unwind does not count dependents of this kind",
        remedy="omit --cascading",
    )


async def _read(client: Client, named: Named) -> ObjectMeta:
    return msgspec.convert((await _found(client, named))["metadata"], ObjectMeta)


async def _found(client: Client, named: Named) -> Object:
    try:
        return await client.get(named.resource, named.name, namespace=named.where)
    except NotFoundError as error:
        remedy = "look in another namespace with -n" if named.namespace else ""
        raise UnwindError(f"{named} not found", remedy=remedy) from error


async def _label(client: Client, named: Named, read: ObjectMeta, value: str | None) -> None:
    # uid as precondition: the object may have been recreated. No resourceVersion: only our own label is written.
    patch: Object = {"metadata": {"uid": read.uid, "labels": {DELETE_PROTECTION_LABEL: value}}}
    try:
        await client.patch(
            named.resource, named.name, patch, namespace=named.where, field_manager=PROTECT_FIELD_MANAGER
        )
    except (NotFoundError, ConflictError) as error:
        raise UnwindError(f"cannot label {named}: it was deleted or recreated", remedy="check it and retry") from error


async def _asked(client: Client, named: Named, read: ObjectMeta) -> tuple[str, str]:
    """The message that refuses a dry-run DELETE, and why the answer is unknown; both empty if it is allowed."""
    try:
        await client.delete(named.resource, named.name, uid=read.uid, namespace=named.where, dry_run=True)
    except ApiError as error:
        said = error.status.message
        if FORBIDDEN in said:
            return said[said.index(FORBIDDEN) :], ""
        return "", said
    return "", ""


def _show(told: Protected) -> None:
    out = console.out
    assert told.enforced  # noqa: S101 - for the type checker
    again = " already" if told.before == told.label else f" (was {told.before})" if told.before else ""
    out.print(Text(f"{told.object} is labelled {DELETE_PROTECTION_LABEL}={told.label}{again}", style="bold"))
    by = told.enforced
    out.print(Text(" ".join(filter(None, (_BY[by.way], by.by))) + f": {by.note}"))
    _show_now(told)
    out.print(Text("not protected against:"))
    for item in told.not_against:
        out.print(Text(f"  {item}"))
    for warning in told.warnings:
        console.err.print(Text(f"Warning: {warning}", style="bold"))


def _show_now(told: Protected) -> None:
    if told.not_known:
        said = f"unknown whether a DELETE would be refused now: {told.not_known}"
    else:
        said = f"a DELETE now would be {f'refused: {told.now}' if told.now else 'allowed'}"
    console.out.print(Text(said))
