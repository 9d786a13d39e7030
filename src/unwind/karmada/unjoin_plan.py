"""From a member's Works to the steps by which it is unjoined (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.fields import Unknown
from unwind.api.karmada import CLUSTERS, WORKS, RemoveStrategy
from unwind.api.meta import ref_of
from unwind.api.names import DEPENDS_ON_ANNOTATION, REMOVE_STRATEGY_ANNOTATION, ConditionType, Reason
from unwind.api.unwind import Effort
from unwind.planning.plans import Draft
from unwind.teardown.drafts import TeardownNotice
from unwind.teardown.step_sources import SourceStep, SourceSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.karmada import Cluster, Work
    from unwind.api.unwind import Plan

_EFFORTS = {RemoveStrategy.NEEDLESS: Effort.LEAVE, RemoveStrategy.REQUIRED: Effort.ENFORCE}


def step_name(work: Work) -> str:
    """What the step of a Work is called."""
    return f"{WORKS.kind}/{work.metadata.name}"


def needs(work: Work) -> tuple[str, ...]:
    """The names of the Works that a Work says it depends on."""
    words = work.metadata.annotations.get(DEPENDS_ON_ANNOTATION, "").split(",")
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))


def steps_of(cluster: Cluster, works: Iterable[Work], *, required: bool = True) -> SourceSteps:
    """The steps for these Works of one member. `required`: whether a Work is one even without an Inventory."""
    strategy = cluster.removal
    said: tuple[TeardownNotice, ...] = ()
    if isinstance(strategy, Unknown):
        message = (
            f"removeStrategy of {ref_of(CLUSTERS, cluster.metadata)}: {strategy}, so nothing is removed from the member"
            " and it is not let go"
        )
        said = (TeardownNotice(ConditionType.UNKNOWN_VALUE, Reason.UNKNOWN_VALUE, message),)
    return SourceSteps(
        steps=tuple(
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
        ),
        said=said,
        # Where all stays, it does not matter what a lost Work said. Where all goes, it might have said: not this.
        left_kinds=frozenset({WORKS.kind}) if strategy is RemoveStrategy.NEEDLESS else frozenset(),
    )


def _effort(strategy: RemoveStrategy | Unknown, work: Work) -> Effort:
    # What a Work says of its own objects is more exact than what the Cluster says of all.
    if isinstance(strategy, Unknown) or work.spec.preserve_resources_on_deletion:
        return Effort.LEAVE
    return _EFFORTS[strategy]


def enforced(plan: Plan | None) -> bool:
    """Whether a plan keeps the member until something is gone: it was Required when it was made."""
    return plan is None or any(step.effort != Effort.LEAVE for step in plan.steps)


def lowered(cluster: Cluster, plan: Plan | None) -> bool:
    """Whether a person has let go what the plan would wait for.

    Said in so many words: a field that is not served any more says nothing.
    """
    told = cluster.spec.remove_strategy
    if told is None:
        told = cluster.metadata.annotations.get(REMOVE_STRATEGY_ANNOTATION)
    return told == RemoveStrategy.NEEDLESS and plan is not None and enforced(plan)


def raised(cluster: Cluster, plan: Plan | None, works: Iterable[Work]) -> bool:
    """Whether the Cluster says now that all has to go, and the plan was made when it did not. `works`: those that are
    still there; what one of them says of its own objects was never the Cluster's to say."""
    if cluster.removal is not RemoveStrategy.REQUIRED or plan is None or enforced(plan):
        return False
    planned = {step.object.uid for step in plan.steps}
    return any(work.metadata.uid in planned and not work.spec.preserve_resources_on_deletion for work in works)


def decided_by(work: Work | None, target: object) -> str:
    """Who decided that the objects of a Work stay; None for a Work that is gone."""
    if work and work.spec.preserve_resources_on_deletion:
        return f"preserveResourcesOnDeletion of {ref_of(WORKS, work.metadata)}"
    return f"removeStrategy of {target}"
