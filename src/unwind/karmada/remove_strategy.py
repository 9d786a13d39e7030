"""What removeStrategy means: the steps of an unjoin, from the member's Works, with their effort (pure).

The effort is carried out elsewhere. Leave (Needless): `StepRunner._leave` in `teardown/step_runner.py` removes Unwind's
labels within LEAVE_TIMEOUT, and writes the ledger. Enforce (Required): the same class removes the objects.
`unjoin_cleanup` does the rest, with the same timeout if nothing may block the member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.karmada import CLUSTERS, WORKS, Cluster, RemoveStrategy, Work
from unwind.api.meta import ref_of
from unwind.api.names import DEPENDS_ON_ANNOTATION, REMOVE_STRATEGY_ANNOTATION, ConditionType, Reason
from unwind.api.unwind import Effort
from unwind.planning.waves import Draft
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.step_sources import SourceStep, SourceSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.unwind import Plan

_EFFORTS = {RemoveStrategy.NEEDLESS: Effort.LEAVE, RemoveStrategy.REQUIRED: Effort.ENFORCE}


def step_name(work: Work) -> str:
    """The name of a Work's step."""
    return f"{WORKS.kind}/{work.metadata.name}"


def needs(work: Work) -> tuple[str, ...]:
    """The names of the Works that a Work depends on."""
    words = work.metadata.annotations.get(DEPENDS_ON_ANNOTATION, "").split(",")
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))


def unknown_strategy(cluster: Cluster, name: str, consequence: str) -> tuple[TeardownNotice, ...]:
    """The notice that the removeStrategy of a member is unknown; nothing if it is known. `name`: the member."""
    if not isinstance(cluster.removal, Unknown):
        return ()
    message = f"removeStrategy of {name}: {cluster.removal}; {consequence} until it is corrected"
    return (TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message),)


def steps_of(cluster: Cluster, works: Iterable[Work], *, required: bool = True) -> SourceSteps:
    """The steps for these Works of one member. `required`: whether a Work counts even without an Inventory."""
    strategy = cluster.removal
    held = "nothing is removed from the member and it is not unjoined"
    steps = tuple(
        SourceStep(
            draft=Draft(
                name=step_name(work),
                object=ref_of(WORKS, work.metadata),
                kind=WORKS.kind,
                namespace=work.metadata.namespace,
                declared=work.metadata.name,
                depends_on=needs(work),
                effort=_effort(strategy, work),
            ),
            required=required,
        )
        for work in works
    )
    # Strictness follows the strategy. If a step is enforced, the plan shows it, also to an earlier release.
    shown = any(step.draft.effort is Effort.ENFORCE for step in steps)
    return SourceSteps(
        steps=steps,
        said=unknown_strategy(cluster, str(ref_of(CLUSTERS, cluster.metadata)), held),
        effort=Effort.ENFORCE if strategy is RemoveStrategy.REQUIRED and not shown else None,
        # If everything stays, the spec of a lost Work does not matter. If everything goes, it might have asked to
        # preserve.
        left_kinds=frozenset({WORKS.kind}) if strategy is RemoveStrategy.NEEDLESS else frozenset(),
        # The effort of a lost Work may have been recorded before the strategy was raised.
        held_kinds=frozenset({WORKS.kind}) if strategy is not RemoveStrategy.NEEDLESS else frozenset(),
    )


def _effort(strategy: RemoveStrategy | Unknown, work: Work) -> Effort:
    # A Work's own setting is more specific than the Cluster's.
    if isinstance(strategy, Unknown) or work.spec.preserve_resources_on_deletion:
        return Effort.LEAVE
    return _EFFORTS[strategy]


def recorded_effort(cluster: Cluster, work: Work) -> Effort:
    """The effort for the Inventories of a Work. They outlast it, so an unknown strategy counts as Enforce."""
    if work.spec.preserve_resources_on_deletion:
        return Effort.LEAVE
    return Effort.ENFORCE if isinstance(cluster.removal, Unknown) else _EFFORTS[cluster.removal]


def is_enforced(plan: Plan | None) -> bool:
    """Whether a plan blocks the member until its objects are gone: removeStrategy was Required when it was made."""
    return plan is None or plan.effort != "" or any(step.effort != Effort.LEAVE for step in plan.steps)


def lowered(cluster: Cluster, plan: Plan | None) -> bool:
    """Whether a person changed removeStrategy so that the plan no longer blocks.

    Only an explicit value counts: a field that is not served any more means nothing.
    """
    told = cluster.spec.remove_strategy
    if told is None:
        told = cluster.metadata.annotations.get(REMOVE_STRATEGY_ANNOTATION)
    return told == RemoveStrategy.NEEDLESS and plan is not None and is_enforced(plan)


def raised(cluster: Cluster, plan: Plan | None, works: Iterable[Work]) -> bool:
    """Whether removeStrategy is Required now, but was not when the plan was made. `works`: the existing ones; a Work's
    own setting does not depend on the Cluster."""
    if cluster.removal is not RemoveStrategy.REQUIRED or plan is None or is_enforced(plan):
        return False
    planned = {step.object.uid for step in plan.steps}
    return any(work.metadata.uid in planned and not work.spec.preserve_resources_on_deletion for work in works)


def decided_by(work: Work | None, target: object) -> str:
    """The setting that decided that the objects of a Work stay; None for a Work that is gone."""
    if work and work.spec.preserve_resources_on_deletion:
        return f"preserveResourcesOnDeletion of {ref_of(WORKS, work.metadata)}"
    return f"removeStrategy of {target}"
