"""From what is on a cluster to the Teardown that takes it apart (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api import durations
from unwind.api.annotation_values import OnDeadline
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import (
    DEADLINE_ANNOTATION,
    DELETION_REQUESTED_BY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    ON_DEADLINE_ANNOTATION,
    UNKNOWN_USER,
    ConditionType,
    Reason,
)
from unwind.api.unwind import Cause, Effort, Plan, Teardown, TeardownSpec
from unwind.inventory.inventories import items
from unwind.planning.plans import Draft

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.api.unwind import Inventory
    from unwind.members.targets import ClusterTarget


class TeardownNotice(msgspec.Struct, frozen=True):
    """Something to be said of a teardown as a whole."""

    type: ConditionType
    reason: str
    message: str


class Lost(msgspec.Struct, frozen=True, order=True):
    """Objects whose owner vanished before they were accounted for: what is to become of them stood in it."""

    name: str
    """Of the owner."""
    owner: ObjectRef
    objects: int

    @property
    def step(self) -> str:
        return f"{self.owner.kind}/{self.name}/{self.owner.uid}"  # one after the other may have had the name

    @property
    def said(self) -> TeardownNotice:
        """That nothing is removed because of it."""
        message = (
            f"{self.owner} is gone, but {self.objects} objects that it put on this cluster are not accounted for: "
            "nobody knows what is to become of them, so nothing of this cluster is removed; "
            f"{FORCE_RELEASE_ANNOTATION} lets it go"
        )
        return TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message)

    @property
    def draft(self) -> Draft:
        """Its step, where somebody decided that the cluster goes all the same: what it put there is left."""
        return Draft(
            name=self.step,
            object=self.owner,
            kind=self.owner.kind,
            namespace=self.owner.namespace,
            declared=self.step,
            effort=Effort.LEAVE,
            objects=self.objects,
        )


class Drafted(msgspec.Struct, frozen=True, kw_only=True):
    """A teardown before it is written: the plan, or why there is none."""

    plan: Plan | None
    said: tuple[TeardownNotice, ...] = ()


def lost(known: Collection[str], inventories: Iterable[Inventory]) -> list[Lost]:
    """The owners of what is on a target that are not there any more, and left something that is not done. `known`: the
    uids of those that are there."""
    owners: dict[str, Lost] = {}
    for chunk in inventories:
        owner, todo = chunk.spec.owner, sum(not item.done for item in items([chunk]))
        if todo and owner.uid not in known:
            before = owners[owner.uid].objects if owner.uid in owners else 0
            owners[owner.uid] = Lost(owner.name, owner, before + todo)
    return sorted(owners.values(), key=lambda one: one.step)


def teardown(
    target: ClusterTarget, made: Plan | None, *, name: str = "", cause: Cause = Cause.CLUSTER_DELETED
) -> Teardown:
    """The record of a cluster's deletion, as it is first written. `name`: the uid of the target, unless given."""
    annotations = target.annotations
    deadline = annotations.get(DEADLINE_ANNOTATION, "")
    on_deadline = OnDeadline.read(annotations.get(ON_DEADLINE_ANNOTATION, OnDeadline.HOLD.value))
    ref = target.ref
    return Teardown(
        metadata=ObjectMeta(name=name or ref.uid),
        spec=TeardownSpec(
            title=str(ref),
            target=ref,
            cause=cause.value,
            requested_at=target.deleted_at,
            requested_by=annotations.get(DELETION_REQUESTED_BY_ANNOTATION) or UNKNOWN_USER,
            # What is not understood does not release anything: it waits for ever, and a condition says so.
            deadline="" if isinstance(durations.parse(deadline), Unknown) else deadline,
            on_deadline=OnDeadline.HOLD.value if isinstance(on_deadline, Unknown) else on_deadline.value,
            plan=made,
        ),
    )


def misunderstood(target: ClusterTarget) -> tuple[TeardownNotice, ...]:
    """The annotations of the target that are not understood."""
    said = []
    deadline = target.annotations.get(DEADLINE_ANNOTATION)
    if deadline is not None and isinstance(durations.parse(deadline), Unknown):
        message = f"{DEADLINE_ANNOTATION} is {deadline!r}, which is no span of time: there is no deadline"
        said.append(TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message))
    word = OnDeadline.read(target.annotations.get(ON_DEADLINE_ANNOTATION, OnDeadline.HOLD.value))
    if isinstance(word, Unknown):
        message = f"{ON_DEADLINE_ANNOTATION}: {word}, so nothing is released at the deadline"
        said.append(TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message))
    return tuple(said)
