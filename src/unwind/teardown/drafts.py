"""Builds the Teardown of a cluster target before it is written, and its notices (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api import annotation_values
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
from unwind.api.unwind import Cause, Effort, Inventory, Plan, PolicyRef, Teardown, TeardownSpec
from unwind.inventory.inventories import items
from unwind.planning.policy_order import PolicyOrder
from unwind.planning.waves import Draft

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.members.targets import ClusterTarget


class TeardownNotice(msgspec.Struct, frozen=True):
    """A condition for the status of a Teardown."""

    type: ConditionType
    reason: str
    message: str


class Lost(msgspec.Struct, frozen=True, order=True):
    """Objects whose owner was deleted before they were removed. Their deletion policy was stored in the owner."""

    name: str
    """The name of the owner."""
    owner: ObjectRef
    objects: int
    effort: str = ""
    """The effort in its Inventories, the strictest one if they differ; empty if it is not recorded or not known."""

    @property
    def step(self) -> str:
        return lost_step(self.owner)

    @property
    def holds(self) -> bool:
        """Whether they block the target. Only an effort that the manager recorded proves that they do not."""
        return Effort.read(self.effort) not in (Effort.LEAVE, Effort.TRY)

    @property
    def said(self) -> TeardownNotice:
        """The notice that nothing is removed because of it."""
        enforced = self.effort == Effort.ENFORCE
        policy = "they must be removed, but how is unknown" if enforced else "their deletion policy is unknown"
        message = (
            f"{self.owner} was deleted, but {self.objects} objects that it deployed on this cluster remain: "
            f"{policy}, so nothing is removed from this cluster; "
            f"to release the cluster, use `unwind release` (annotation {FORCE_RELEASE_ANNOTATION})"
        )
        return TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message)

    @property
    def draft(self) -> Draft:
        """Its step if the cluster is released anyway: its objects stay."""
        return Draft(
            name=self.step,
            object=self.owner,
            kind=self.owner.kind,
            namespace=self.owner.namespace,
            declared=self.step,
            effort=Effort.LEAVE,
            objects=self.objects,
        )


def lost_step(owner: ObjectRef) -> str:
    """The name of the step for the objects of a deleted owner. Several owners may have had its name over time."""
    return f"{owner.kind}/{owner.name}/{owner.uid}"


def orphaned(plan: Plan | None) -> tuple[TeardownNotice, ...]:
    """A notice for each deleted owner in a plan: its objects are left, because how to remove them is not known."""
    return tuple(
        TeardownNotice(
            ConditionType.OWNER_GONE,
            Reason.OWNER_GONE,
            f"{step.object} was deleted, but {step.objects} objects that it deployed remain; they do not block the"
            " deletion and stay: see `unwind ledger`",
        )
        for step in (plan.steps if plan else ())
        if step.name == lost_step(step.object)
    )


ORDER_LOST = "order is not kept: "
"""Prefix of a warning of a plan: some of its steps had begun before the plan was made."""


def order_lost(plan: Plan | None) -> tuple[TeardownNotice, ...]:
    """Notices of the steps that had begun before their plan was made. The plan records them as warnings."""
    return tuple(
        TeardownNotice(ConditionType.ORDER_LOST, Reason.ORDER_LOST, warning)
        for warning in (plan.warnings if plan else ())
        if warning.startswith(ORDER_LOST)
    )


HANDLES_NOT_REMOVED = " found on the management cluster, not removed: "
"""Part of a warning of a plan: deployers have handles for the cluster that are no steps."""


def handles_not_removed(plan: Plan | None) -> tuple[TeardownNotice, ...]:
    """Notices of the handles that are no steps, because no policy mentions them. The plan records them as warnings."""
    return tuple(
        TeardownNotice(ConditionType.HANDLES_NOT_REMOVED, Reason.NO_POLICY, warning)
        for warning in (plan.warnings if plan else ())
        if HANDLES_NOT_REMOVED in warning
    )


class PolicyTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What policies say about a target as a whole. It replaces what the annotations of the target say."""

    policies: tuple[PolicyRef, ...] = ()
    deadline: str = ""
    """Empty: the teardown waits forever."""
    deadline_from: str = ""
    on_deadline: str = OnDeadline.HOLD.value
    on_deadline_from: str = ""
    order: tuple[PolicyOrder, ...] = ()
    """Of each policy."""
    order_from: str = ""
    gate: str = ""
    """What holds the deletion; empty if it is not known."""
    gate_from: str = ""


class Drafted(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a teardown before it is written, or the notices that explain why there is none."""

    plan: Plan | None
    said: tuple[TeardownNotice, ...] = ()
    terms: PolicyTerms | None = None
    """Set if a policy selects the target."""
    read: tuple[Inventory, ...] = ()
    """The Inventories that were read for the plan."""


def lost(known: Collection[str], inventories: Iterable[Inventory]) -> list[Lost]:
    """The deleted owners that still have unfinished inventory entries on a target.

    `known`: the uids of owners that exist."""
    owners: dict[str, Lost] = {}
    for chunk in inventories:
        owner, todo = chunk.spec.owner, sum(not item.done for item in items([chunk]))
        if todo and owner.uid not in known:
            now = Lost(owner.name, owner, todo, chunk.spec.effort)
            before = owners.get(owner.uid)
            strictest = min((now, before or now), key=lambda one: _STRICTNESS.get(one.effort, 0))
            objects = todo + (before.objects if before else 0)
            owners[owner.uid] = msgspec.structs.replace(strictest, objects=objects)
    return sorted(owners.values(), key=lambda owner: owner.step)


# Unknown values first: they are the strictest.
_STRICTNESS = {Effort.ENFORCE.value: 1, Effort.TRY.value: 2, Effort.LEAVE.value: 3}


def teardown(
    target: ClusterTarget,
    made: Plan | None,
    *,
    name: str = "",
    cause: Cause = Cause.CLUSTER_DELETED,
    member: ObjectRef | None = None,
    title: str = "",
    terms: PolicyTerms | None = None,
) -> Teardown:
    """The Teardown of a target as it is first written. `name`: default is the uid of the target. `member`: the cluster
    that its objects are on, if that is not the target. `terms`: what policies say, if one selects the target."""
    annotations = target.annotations
    deadline = annotations.get(DEADLINE_ANNOTATION, "")
    on_deadline = OnDeadline.read(annotations.get(ON_DEADLINE_ANNOTATION, OnDeadline.HOLD.value))
    ref = target.ref
    found = terms or PolicyTerms(
        # An unknown value never releases anything: the target waits, and a condition reports the value.
        deadline="" if isinstance(annotation_values.parse_duration(deadline), Unknown) else deadline,
        on_deadline=OnDeadline.HOLD.value if isinstance(on_deadline, Unknown) else on_deadline.value,
    )
    spec = TeardownSpec(
        title=title or str(ref),
        target=ref,
        member=member,
        cause=cause.value,
        requested_at=target.deleted_at,
        requested_by=annotations.get(DELETION_REQUESTED_BY_ANNOTATION) or UNKNOWN_USER,
        gate=found.gate,
        gate_from=found.gate_from,
        plan=made,
    )
    return Teardown(metadata=ObjectMeta(name=name or ref.uid), spec=with_terms(spec, found))


def with_terms(spec: TeardownSpec, terms: PolicyTerms) -> TeardownSpec:
    """The spec of a Teardown with what policies say (pure). Its gate stays: it is what holds the target already."""
    return msgspec.structs.replace(
        spec,
        deadline=terms.deadline,
        on_deadline=terms.on_deadline,
        deadline_from=terms.deadline_from,
        on_deadline_from=terms.on_deadline_from,
        order_from=terms.order_from,
        policies=terms.policies,
    )


def misunderstood(target: ClusterTarget) -> tuple[TeardownNotice, ...]:
    """A notice for each annotation of the target that has an unknown value."""
    notices = []
    deadline = target.annotations.get(DEADLINE_ANNOTATION)
    if deadline is not None and isinstance(parsed := annotation_values.parse_duration(deadline), Unknown):
        message = f"annotation {DEADLINE_ANNOTATION}: {parsed}, so no deadline applies; correct it"
        notices.append(TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message))
    word = OnDeadline.read(target.annotations.get(ON_DEADLINE_ANNOTATION, OnDeadline.HOLD.value))
    if isinstance(word, Unknown):
        message = f"annotation {ON_DEADLINE_ANNOTATION}: {word}, so nothing is released at the deadline; correct it"
        notices.append(TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message))
    return tuple(notices)
