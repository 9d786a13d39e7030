"""The link of the deleter chain that does not delete protected objects, with the same rules as at admission.

Unwind also deletes on clusters where no policy and no webhook refuses a DELETE. So every removal checks the label
itself. The label comes from the metadata that the removal watches. Only labelled objects are read: for the dependents
that `Cascading` counts, and for the field manager that set the label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.api.resources import NAMESPACES
from unwind.deleters.outcomes import Again, Kept
from unwind.deleters.registration import FIRST, Kinds, Registration
from unwind.kube.errors import NotFoundError
from unwind.kube.updates import UNKNOWN, who_wrote
from unwind.protection import object_fields, protected_kinds, rules
from unwind.protection.contents_reader import ProtectionLookup
from unwind.protection.protected_kinds import Rest
from unwind.protection.rules import Denied, Subject, Why

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from unwind.api.resources import Resource
    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Outcome
    from unwind.kube.client import Client, Object
    from unwind.kube.watches import Watches
    from unwind.protection.protected_kinds import ProtectedKind

NAME = "protection"
# Seconds for the lists of one namespace or CRD.
_WITHIN = 20.0
# A change of the object is seen by its watch. Nothing reports a change of the contents of a namespace or CRD.
_CONTENTS_AGAIN = 30.0
_LOOK_AGAIN = 600.0


class ProtectedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that may not be deleted."""

    object: ObjectRef
    denied: Denied
    set_by: str
    """The field manager that set the label."""
    command: str
    """The command that removes the label; empty if other objects in it are protected."""

    @property
    def reason(self) -> Reason:
        return Reason.UNKNOWN_VALUE if self.denied.why is Why.UNKNOWN_VALUE else Reason.PROTECTED

    @property
    def why(self) -> str:
        """What blocks its deletion, who set it, and the command that removes it."""
        by = f", set by {self.set_by}" if self.set_by not in ("", UNKNOWN) else ""
        way_out = f"; to allow its deletion: {self.command}" if self.command else ""
        return f"blocked by {rules.label_of(self.denied)}{by}{way_out}"

    @property
    def message(self) -> str:
        return f"{self.object}: {self.why}"

    @property
    def decided_by(self) -> str:
        """Who keeps it, for the ledger."""
        return f"field manager {self.set_by}" if self.set_by not in ("", UNKNOWN) else "unwind"

    @property
    def by_contents(self) -> bool:
        """Whether the number of objects in it decides, which no event of the object itself reports."""
        kind = protected_kinds.kind_of(self.object.group, self.object.kind)
        return bool(kind and kind.rest) and self.denied.why in (Why.CASCADING, Why.NOT_KNOWN)

    @property
    def again(self) -> float:
        """Seconds until it should be looked at again, if no event comes first."""
        return _CONTENTS_AGAIN if self.by_contents or self.denied.why is Why.HOLDS_PROTECTED else _LOOK_AGAIN


def labelled(labels: Mapping[str, str] | None) -> bool:
    """Whether these labels contain the protection label, with any value."""
    return labels is not None and DELETE_PROTECTION_LABEL in labels


def cluster_option(cluster: ObjectRef | None) -> str:
    """The value of `--cluster` for a member; empty for the management cluster, which a Namespace represents."""
    if cluster is None or cluster.kind == NAMESPACES.kind:
        return ""
    return f"{cluster.namespace}/{cluster.name}" if cluster.namespace else cluster.name


async def protected_object(
    client: Client,
    resource: Resource,
    ref: ObjectRef,
    *,
    cluster: ObjectRef | None = None,
    by_controller: bool = False,
) -> ProtectedObject | None:
    """Why an object may not be deleted, read from the API server; None if it may, or does not exist.

    `cluster`: the member that it is on. `by_controller`: whether one of Kubernetes' own controllers deletes it.
    """
    try:
        obj = await client.get(resource, ref.name, namespace=ref.namespace or None)
    except NotFoundError:
        return None
    if obj["metadata"]["uid"] != ref.uid:
        return None
    kind = _kind(resource)
    denied = await _denied(client, kind, obj, by_controller=by_controller)
    if denied is None:
        return None
    within = denied.why is Why.HOLDS_PROTECTED
    has_label = labelled(obj["metadata"].get("labels"))
    return ProtectedObject(
        object=ref,
        denied=denied,
        set_by=who_wrote(obj, "metadata", "labels", DELETE_PROTECTION_LABEL) if has_label and not within else "",
        command=rules.unprotect_command(kind.resource, ref.namespace, ref.name, cluster=cluster_option(cluster))
        if has_label and not within
        else "",
    )


async def _denied(client: Client, kind: ProtectedKind, obj: Object, *, by_controller: bool) -> Denied | None:
    metadata = obj["metadata"]
    subject = Subject(
        kind=kind,
        label=(metadata.get("labels") or {}).get(DELETE_PROTECTION_LABEL),
        terminating=bool(metadata.get("deletionTimestamp")),
        count=_count(kind, obj),
        controlled=any(owner.get("controller") for owner in metadata.get("ownerReferences") or ()),
        by_controller=by_controller,
    )
    verdict = rules.by_itself(subject)
    if verdict is False:
        counting, lookup = subject.label is not None, ProtectionLookup(client)
        if kind.rest is Rest.CONTENTS:
            contents = await lookup.in_namespace(metadata["name"], counting=counting, within=_WITHIN)
        else:
            defined = object_fields.definition(msgspec.json.encode(obj))
            contents = await lookup.of_definition(defined, counting=counting, within=_WITHIN)
        verdict = rules.with_contents(subject, contents)
    return verdict if isinstance(verdict, Denied) else None


def _kind(resource: Resource) -> ProtectedKind:
    return protected_kinds.of_any(
        resource.group,
        resource.kind,
        plural=resource.plural,
        version=resource.version,
        namespaced=resource.namespaced,
    )


def _count(kind: ProtectedKind, obj: Mapping[str, Any]) -> int | None:
    """The number of dependents; None if it is unreadable, which protects."""
    try:
        return kind.count.of(obj) if kind.count else None
    except ValueError:
        return None


class ProtectionLink:
    """Holds or keeps protected objects. It comes before every deleter that changes an object."""

    def __init__(self, *, keep: bool = False, cluster: ObjectRef | None = None, contents: bool = False) -> None:
        """`keep`: leave protected objects and go on; otherwise wait until they are not protected any more. `cluster`:
        the member that the objects are on. `contents`: a Namespace or CRD is deleted with its contents, so they are
        checked even if it has no label."""
        self.keep = keep
        self._cluster = cluster
        self._contents = contents

    def registration(self) -> Registration:
        return Registration(
            name=NAME,
            kinds=(Kinds("*", "*"),),
            delete=self.delete,
            order=FIRST,  # by name after the deleters that keep an object anyway
            metadata_only=True,
            about=f"Do not delete an object that the label {DELETE_PROTECTION_LABEL} protects.",
        )

    async def delete(self, ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        metadata = obj["metadata"]
        if ctx.absent or metadata.get("deletionTimestamp") or not self._concerns(ctx.resource, metadata.get("labels")):
            # The DELETE carries this resourceVersion: if the label is set meanwhile, the chain runs again.
            return await next(ctx, obj)
        changes = await ctx.changes(ctx.resource, namespace=ctx.ref.namespace, name=ctx.ref.name)
        held = await self.look(ctx.client, ctx.resource, ctx.ref)
        if held is None:
            return await next(ctx, obj)
        if self.keep:
            ctx.log.info("object kept", why=held.why)
            return Kept(held.reason, held.why, by=held.decided_by)
        raise Again(held.message, until=changes, after=held.again, code=held.reason)

    async def look(self, client: Client, resource: Resource, ref: ObjectRef) -> ProtectedObject | None:
        """Why an object may not be deleted; None if it may."""
        return await protected_object(client, resource, ref, cluster=self._cluster)

    async def hold(self, watches: Watches, resource: Resource, ref: ObjectRef, *, what: str) -> ProtectedObject | None:
        """The protection of an object with the label, if protected objects are left; otherwise raise Again if it is
        protected. `what`: what is not deleted because of it."""
        if self.keep:
            return await self.look(watches.client, resource, ref)
        changes = await watches.changes(resource, namespace=ref.namespace, name=ref.name)
        try:
            held = await self.look(watches.client, resource, ref)
        except BaseException:
            changes.close()
            raise
        if held:
            raise Again(f"{what} waits for {held.message}", until=changes, after=held.again, code=held.reason)
        changes.close()
        return None

    def _concerns(self, resource: Resource, labels: Mapping[str, str] | None) -> bool:
        return labelled(labels) or (self._contents and _kind(resource).rest is not None)
