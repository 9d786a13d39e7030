"""What the deletion of a handle deletes: the handle, the handles nested in it, and what each of them deployed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import Reason
from unwind.api.unwind import Entry
from unwind.companions.companion import Handle
from unwind.companions.snapshots import Snapshot
from unwind.inventory.inventories import Item
from unwind.kube.decoding import Metadata
from unwind.members.contents import Content
from unwind.members.member import Member
from unwind.removal.deletion_scope import DeletionScope, Told
from unwind.teardown.request_refusals import RefusedError

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unwind.companions.companion import HandleCompanion
    from unwind.kube.client import Object
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.request_refusals import Refusals


class ScopedHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A handle that is deleted, and what its deployer deletes with it."""

    handle: Handle
    metadata: ObjectMeta
    place: Member
    """The cluster that it is on."""
    member: Member
    """The cluster that it deployed on."""
    snapshot: Snapshot
    here: bool
    """Whether it deployed on the management cluster."""


class HandleScope(msgspec.Struct, frozen=True, kw_only=True):
    """What the deletion of a handle deletes."""

    handles: tuple[ScopedHandle, ...]
    refused: tuple[Told, ...] = ()
    warnings: tuple[str, ...] = ()


async def protected_by(
    refusals: Refusals, metadata: ObjectMeta, ref: ObjectRef, snapshot: Snapshot, *, place: Member, member: Member
) -> tuple[Told, ...]:
    """What may not be deleted: the handle itself, on the cluster that it is on, and what its deployer deletes with it,
    on the cluster that it deployed on."""
    resource = Item("", "", Entry(object=ref, resource=plural_of(ref))).resource
    handle = Content(resource, msgspec.convert(msgspec.to_builtins(metadata), Metadata))
    deployed = tuple(
        Content(Item("", key, entry).resource, snapshot.found[key])
        for key, entry in snapshot.entries.items()
        if key in snapshot.found and not entry.kept
    )
    return (
        *await refusals(place, DeletionScope(target=handle, going=(handle,))),
        *await refusals(member, DeletionScope(target=handle, going=deployed)),
    )


def plural_of(ref: ObjectRef) -> str:
    """The resource of a handle, as in a path of the API (pure)."""
    kinds = (KUSTOMIZATIONS, HELM_RELEASES, HELM_RELEASE_PROXIES)
    return next((kind.plural for kind in kinds if kind.kind == ref.kind), "")


class HandleReader(Protocol):
    """Reads the handles of one deployer, and connects to their clusters."""

    @property
    def companion(self) -> HandleCompanion:
        """The deployer."""

    async def scope(self, ref: ObjectRef, stack: AsyncExitStack) -> HandleScope:
        """What the deletion of a handle deletes. Raises NotFoundError, or UnwindError if that is unknown."""

    async def target(self, handle: Object | None, where: ObjectRef | None, place: Member) -> ClusterTarget | None:
        """How to connect to the cluster that a handle deployed on; None if it is the one that the handle is on.

        `handle`: None if it is gone. `where`: the object that represented the cluster when the plan was made.
        """


def check_same(ref: ObjectRef, found: ObjectMeta) -> None:
    """Raise RefusedError if a handle is not the one that the request names."""
    if found.uid != ref.uid:
        raise RefusedError(
            Reason.TARGET_GONE,
            f"{ref} has another uid: it was created again; to delete the new one, run the command again",
        )
