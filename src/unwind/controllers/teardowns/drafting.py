"""From what is on a cluster to the Teardown that takes it apart (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api import durations
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.names import (
    DEADLINE_ANNOTATION,
    DELETION_BEHAVIOR_ANNOTATION,
    DELETION_REQUESTED_BY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    ON_DEADLINE_ANNOTATION,
    UNKNOWN_USER,
    ConditionType,
    Reason,
)
from unwind.api.policies import OnDeadline
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterDeletionBehavior, ClusterSummary, DeploymentType
from unwind.api.unwind import Cause, Effort, Plan, Teardown, TeardownSpec
from unwind.controllers.addons.matching import ProfileKey
from unwind.controllers.addons.summarizing import profile_of
from unwind.planning.plans import Draft, plan
from unwind.removing.inventories import items

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.api.karmada import Work
    from unwind.api.unwind import Inventory
    from unwind.fleet.targets import Anchor

_EFFORTS = {
    ClusterDeletionBehavior.LEAVE: Effort.LEAVE,
    ClusterDeletionBehavior.REMOVE: Effort.TRY,
    ClusterDeletionBehavior.ENFORCE: Effort.ENFORCE,
}


class Said(msgspec.Struct, frozen=True):
    """Something to be said of a teardown as a whole."""

    type: ConditionType
    reason: str
    message: str


class Lost(msgspec.Struct, frozen=True, order=True):
    """Objects whose summary or Work vanished before they were accounted for: what is to become of them stood in it."""

    name: str
    """Of the summary or Work."""
    owner: ObjectRef
    objects: int

    @property
    def step(self) -> str:
        return f"{self.owner.kind}/{self.name}/{self.owner.uid}"  # one after the other may have had the name

    @property
    def said(self) -> Said:
        """That nothing is removed because of it."""
        message = (
            f"{self.owner} is gone, but {self.objects} objects that it put on this cluster are not accounted for: "
            "nobody knows what is to become of them, so nothing of this cluster is removed; "
            f"{FORCE_RELEASE_ANNOTATION} lets it go"
        )
        return Said(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message)

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
    said: tuple[Said, ...] = ()


def behaviour(summary: ClusterSummary) -> ClusterDeletionBehavior | Unknown:
    """What becomes of a summary's add-ons: as its profile says, or as it said while the API server knew the field."""
    spec = summary.spec.cluster_profile_spec
    remembered = summary.metadata.annotations.get(DELETION_BEHAVIOR_ANNOTATION)
    if spec.cluster_deletion_behavior is not None or remembered is None:
        return spec.deletion
    # Not the default: that would remove what was said to be left, or let go what was said to be held.
    return ClusterDeletionBehavior.read(remembered)


def is_local(summary: ClusterSummary) -> bool:
    """Whether some of what it put somewhere is on the management cluster."""
    return any(one.deployment_type == DeploymentType.LOCAL for one in summary.spec.cluster_profile_spec.policy_refs)


def lost(owners_there: Iterable[ClusterSummary | Work], inventories: Iterable[Inventory]) -> list[Lost]:
    """The owners of what is on a cluster that are not there any more, and left something that is not done."""
    known = {one.metadata.uid for one in owners_there}
    owners: dict[str, Lost] = {}
    for chunk in inventories:
        owner, todo = chunk.spec.owner, sum(not item.done for item in items([chunk]))
        if todo and owner.uid not in known:
            before = owners[owner.uid].objects if owner.uid in owners else 0
            owners[owner.uid] = Lost(owner.name, owner, before + todo)
    return sorted(owners.values(), key=lambda one: one.step)


def drafted(
    summaries: Iterable[ClusterSummary],
    objects: Mapping[str, int],
    lost: Iterable[Lost] = (),
    *,
    decided: bool = False,
) -> Drafted:
    """The plan for these summaries of one cluster, with how many objects each has by its uid.

    `decided`: the cluster goes without it, because a person said so or because it is gone. The plan is made then for
    the ledger's sake, and what is not understood is left.
    """
    said: list[Said] = []
    drafts: list[Draft] = []
    for summary in sorted(summaries, key=lambda one: one.metadata.name):
        # One whose owner somebody has taken off stands for itself.
        profile = profile_of(summary) or ProfileKey(CLUSTER_SUMMARIES.kind, "", summary.metadata.name)
        behaves = behaviour(summary)
        if isinstance(behaves, Unknown):
            message = f"clusterDeletionBehavior of {profile}: {behaves}, so nothing of this cluster is removed"
            said.append(Said(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message))
        elif (
            summary.spec.cluster_profile_spec.cluster_deletion_behavior is None
            and DELETION_BEHAVIOR_ANNOTATION in summary.metadata.annotations
        ):
            message = f"the API server does not serve clusterDeletionBehavior; {profile} is held to {behaves.value}"
            said.append(Said(ConditionType.FIELD_NOT_SERVED, Reason.FIELD_NOT_SERVED, message))
        drafts.append(
            Draft(
                name="/".join(part for part in profile if part),
                object=ref_of(CLUSTER_SUMMARIES, summary.metadata),
                kind=profile.kind,
                namespace=profile.namespace,
                declared=profile.name,
                depends_on=summary.spec.cluster_profile_spec.depends_on,
                effort=Effort.LEAVE if isinstance(behaves, Unknown) else _EFFORTS[behaves],
                objects=objects.get(summary.metadata.uid, 0),
            )
        )
    for one in lost:
        said.append(one.said)
        drafts.append(one.draft)
    unknown = any(one.type is ConditionType.UNKNOWN_VALUE for one in said)
    # A plan is made once: not before every word in it is understood.
    return Drafted(plan=None if unknown and not decided else plan(drafts), said=tuple(said))


def teardown(target: Anchor, made: Plan | None, *, name: str = "", cause: Cause = Cause.CLUSTER_DELETED) -> Teardown:
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


def misunderstood(target: Anchor) -> tuple[Said, ...]:
    """The annotations of the target that are not understood."""
    said = []
    deadline = target.annotations.get(DEADLINE_ANNOTATION)
    if deadline is not None and isinstance(durations.parse(deadline), Unknown):
        message = f"{DEADLINE_ANNOTATION} is {deadline!r}, which is no span of time: there is no deadline"
        said.append(Said(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message))
    word = OnDeadline.read(target.annotations.get(ON_DEADLINE_ANNOTATION, OnDeadline.HOLD.value))
    if isinstance(word, Unknown):
        message = f"{ON_DEADLINE_ANNOTATION}: {word}, so nothing is released at the deadline"
        said.append(Said(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message))
    return tuple(said)
