"""What Unwind needs to know about a deployer: its handles, what each deployed, and how one is deleted.

A *handle* is the object of a deployer that represents what it deployed on one cluster, such as a Kustomization. Each
handle is one step of the cluster's teardown. To add a deployer, implement `Companion`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.policies import SourceKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Sequence

    from unwind.api.resources import Resource
    from unwind.companions.left_objects import OwnRemoval
    from unwind.kube.client import Object
    from unwind.kube.decoding import Metadata
    from unwind.members.contents import Content
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import StepRemover


class HandleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One object that a deployer lists as its own. It is not verified yet: the deployer records no uids."""

    object: ObjectRef
    """Without a uid."""
    kept: str = ""
    """Why the deployer does not delete it, in one sentence; empty if it does."""


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """The object of a deployer for one cluster, and what it deployed there."""

    ref: ObjectRef
    """With its uid."""
    source: SourceKind
    entries: tuple[HandleEntry, ...] = ()
    depends_on: tuple[str, ...] = ()
    """Names of the steps that it depends on. They are removed after it."""
    terminating: bool = False
    on_member: bool = False
    """Whether the handle itself is on the member, and not on the management cluster."""
    stays: str = ""
    """Why nothing of it is removed, whatever policies say; empty for most."""
    objects: int | None = None
    """How many objects it deployed, if that is known without `entries`."""
    last: bool = False
    """Whether everything else that runs on the cluster may need it, so that it goes last."""
    exactly: str = ""
    """Why only a policy counts that names it and its namespace, both without wildcards; empty if any policy that
    selects it does."""
    left: str = ""
    """Why its deployer would leave what it deployed, as the rest of a sentence; empty if it would not. Held, or removed
    by Unwind if the policies say so."""
    unplaced: str = ""
    """Why it cannot be determined whether it deploys on this cluster, as the rest of a sentence; empty if it does. Such
    a handle is no step."""
    remedy: str = ""
    """What to do so that this is known. If it is not empty, an enforced handle that is `unplaced` holds the cluster."""
    held: str = ""
    """Why its deployer would not remove everything if it were deleted as it is now, as the rest of a sentence; empty if
    it would. An enforced step waits until that changes, another one is given up."""
    unknown: str = ""
    """Why it is not known what it deployed; empty if it is."""
    driven: str = ""
    """Why only the step of another deployer may remove it, and what to do if there is none, as the rest of a sentence;
    empty for most."""
    drivers: tuple[Handle, ...] = ()
    """The handles of that deployer that exist and deploy on this cluster."""
    warnings: tuple[str, ...] = ()
    """Warnings of the plan."""

    @property
    def step(self) -> str:
        """The name of its step."""
        return step_name(self.ref)


def step_name(handle: ObjectRef) -> str:
    """The name of a handle's step (pure)."""
    return "/".join(part for part in (handle.kind, handle.namespace, handle.name) if part)


class Companion(Protocol):
    """A deployer whose handles are steps."""

    @property
    def source(self) -> SourceKind:
        """The kind of source in a TeardownPolicy that names this deployer."""

    @property
    def remover(self) -> StepRemover:
        """Removes the steps of its handles."""

    def owns(self, ref: ObjectRef) -> bool:
        """Whether an object is one of its handles, by kind."""

    async def handles(self, target: ClusterTarget, member: Member, namespaces: Collection[str]) -> list[Handle]:
        """The handles for a cluster, read from the API server.

        `namespaces`: the namespaces of the management cluster whose handles count. Raises if they cannot be read.
        """

    async def stranded(self, target: ClusterTarget, namespaces: Collection[str]) -> list[Handle]:
        """The handles on the management cluster that may have deployed something on a cluster whose kubeconfig is
        missing: their status says so, or they are held. Raises if that is unknown."""

    def is_marked(self, handle: ObjectRef, found: Metadata) -> bool:
        """Whether an object on the member carries the deployer's mark for this handle (pure)."""

    def why_kept(self, handle: ObjectRef, kind: str, found: Metadata) -> str:
        """Why the deployer does not delete an object, by its labels and annotations; empty if it does (pure)."""


class DeletedHandle(msgspec.Struct, frozen=True, kw_only=True):
    """What the deployer still has to do for a handle that is being deleted."""

    working: str = ""
    """What the deployer does, in one sentence; empty if it is done."""
    recreated_by: ObjectRef | None = None
    """What would create the handle again if it were gone now: then Unwind's finalizer stays on it."""


class HandleCompanion(Companion, Protocol):
    """A deployer that removes what it deployed when its handle is deleted. `HandleRemover` does the rest."""

    @property
    def controller(self) -> str:
        """The program that must act while a handle is being deleted."""

    def resource(self, handle: ObjectRef) -> Resource:
        """The resource of a handle."""

    async def is_on_member(self, handle: ObjectRef, home: Member, member: Member) -> bool:
        """Whether the handle itself is on the member, and not on the management cluster (`home`).

        If it is on neither of them, any answer will do.
        """

    def why_held(self, handle: Object) -> str:
        """Why the deployer would not remove everything if the handle were deleted as it is; empty if it would.

        For example because it is suspended. Unwind never resumes what a user stopped.
        """

    async def own_removal(
        self, handle: Object, target: ClusterTarget, member: Member, left: Sequence[Content]
    ) -> OwnRemoval | None:
        """How Unwind removes `left`, the objects that the deployer leaves if this handle is deleted as it is.

        None: the deployer deletes them, or no policy allows Unwind to. Asked before the handle is deleted, if it is
        `why_held`, and again when the deployer is done with it. Raises Again if something must be decided first.
        """

    def before_delete(self, handle: Object) -> Object:
        """The merge patch that a handle needs before it is deleted, besides our finalizer (pure)."""

    async def entries(self, handle: Object, member: Member) -> tuple[HandleEntry, ...]:
        """What its inventory names now. The snapshot may be older.

        If the deployer has forgotten what it deployed, what carries its mark.
        """

    async def left_entries(
        self, handle: ObjectRef, recorded: Collection[ObjectRef], member: Member
    ) -> tuple[HandleEntry, ...]:
        """What carries the mark of a handle that is gone, and with it its inventory. `recorded`: its snapshot."""

    def after_delete(self, handle: Object, member: Member) -> Awaitable[DeletedHandle]:
        """What the deployer still has to do for a handle that has a deletionTimestamp."""

    def before_stay(self, handle: Object) -> Object:
        """The merge patch that undoes `before_delete` on a handle that stays, because its deletion is cancelled.

        Pure.
        """

    async def before_release(self, handle: Object) -> None:
        """Release what was held for a handle on the management cluster, right before Unwind's finalizer is removed from
        it."""
