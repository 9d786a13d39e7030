"""Merging of TeardownPolicies: Leave always keeps, Enforce always holds, and the order of policies never matters."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from unwind.api.annotation_values import OnDeadline, parse_duration
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import DEADLINE_ANNOTATION, ON_DEADLINE_ANNOTATION
from unwind.api.policies import (
    PolicySelector,
    PolicySource,
    SourceKind,
    SourceSelector,
    TeardownPolicy,
    TeardownPolicySpec,
)
from unwind.api.unwind import Effort
from unwind.companions import policy_deadline, policy_merge
from unwind.companions.policy_reader import ClusterPolicies
from unwind.planning.policy_order import order_dependencies
from unwind.planning.waves import Draft, plan

NAMES = ("apps", "base", "db", "grafana")
PLACES = ("shops", "flux-system", "other")
HOME = "shops"

globs = st.sampled_from([(), ("*",), ("a*",), ("db", "base"), ("grafana",)])
places = st.sampled_from([(), ("shops",), ("flux-*",), ("*",)])
selectors = st.none() | st.builds(SourceSelector, namespaces=places, names=globs)
sources = st.builds(
    PolicySource,
    kind=st.sampled_from([word.value for word in SourceKind]),
    effort=st.sampled_from([word.value for word in Effort]),
    selector=selectors,
    namespaces=st.sampled_from([(), ("flux-system",), ("flux-system", "other")]),
)
specs = st.builds(
    TeardownPolicySpec,
    cluster_selector=st.just(PolicySelector(match_labels={"env": "prod"})),
    sources=st.lists(sources, max_size=4).map(tuple),
    order=st.lists(st.lists(st.sampled_from([*NAMES, "*"]), max_size=2).map(tuple), max_size=3).map(tuple),
    deadline=st.sampled_from(["", "30m", "2h", "120m", "x"]),
    on_deadline=st.sampled_from(["Hold", "Release", "x"]),
)
some = st.lists(specs, min_size=1, max_size=4).map(
    lambda found: [
        TeardownPolicy(metadata=ObjectMeta(name=f"p{number}"), spec=spec) for number, spec in enumerate(found)
    ]
)
handles = st.builds(
    ObjectRef, kind=st.just("Kustomization"), namespace=st.sampled_from(PLACES), name=st.sampled_from(NAMES)
)
said_by_clusters = st.fixed_dictionaries(
    {},
    optional={
        DEADLINE_ANNOTATION: st.sampled_from(["1m", "3h", "y"]),
        ON_DEADLINE_ANNOTATION: st.sampled_from(["Hold", "Release", "y"]),
    },
)


def decided(
    found: list[TeardownPolicy], handle: ObjectRef, *, on_member: bool = False
) -> policy_merge.StepDecision | None:
    return policy_merge.decide(found, SourceKind.FLUX, handle, home=HOME, on_member=on_member)


@given(some, handles, st.randoms(), st.booleans())
def test_the_order_of_policies_never_matters(
    found: list[TeardownPolicy], handle: ObjectRef, random: object, on_member: bool
) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decided(found, handle, on_member=on_member) == decided(shuffled, handle, on_member=on_member)
    assert policy_deadline.effective_deadline(found, {}) == policy_deadline.effective_deadline(shuffled, {})


@given(some, handles)
def test_a_policy_that_leaves_a_handle_always_keeps_it(found: list[TeardownPolicy], handle: ObjectRef) -> None:
    leaving = TeardownPolicy(
        metadata=ObjectMeta(name="leaving"),
        spec=TeardownPolicySpec(sources=(PolicySource(kind="Flux", effort="Leave"),)),
    )
    decision = decided([*found, leaving], handle)
    assert decision is None or not decision.deletes
    assert decision is None or decision.effort is not Effort.TRY


@given(some, handles)
def test_a_policy_that_enforces_a_handle_always_holds(found: list[TeardownPolicy], handle: ObjectRef) -> None:
    enforcing = TeardownPolicy(
        metadata=ObjectMeta(name="enforcing"),
        spec=TeardownPolicySpec(sources=(PolicySource(kind="Flux", effort="Enforce", namespaces=PLACES),)),
    )
    decision = decided([*found, enforcing], handle)
    assert decision is not None
    assert decision.effort is Effort.ENFORCE
    assert decision.deletes or decision.conflict


@given(some, handles)
def test_another_policy_never_makes_a_step_less_strict(found: list[TeardownPolicy], handle: ObjectRef) -> None:
    fewer, all_ = decided(found[1:], handle), decided(found, handle)
    if fewer is not None:
        assert all_ is not None
        assert set(fewer.enforced_by) <= set(all_.enforced_by)
        assert fewer.deletes or not all_.deletes


@given(some, said_by_clusters)
def test_annotations_never_make_a_deadline_less_strict(found: list[TeardownPolicy], said: dict[str, str]) -> None:
    def span(deadline: str) -> timedelta:
        parsed = parse_duration(deadline) if deadline else timedelta.max
        assert isinstance(parsed, timedelta)
        return parsed

    without, with_ = policy_deadline.effective_deadline(found, {}), policy_deadline.effective_deadline(found, said)
    assert span(with_.deadline) >= span(without.deadline)
    assert with_.on_deadline == OnDeadline.HOLD or without.on_deadline == OnDeadline.RELEASE
    assert with_.deadline_from
    assert with_.on_deadline_from
    for policy in found:
        known = parse_duration(policy.spec.deadline)
        assert span(with_.deadline) >= (known if isinstance(known, timedelta) else timedelta.max)


STEPS = tuple(f"{kind}/shops/{name}" for kind in ("Kustomization", "Release", "ClusterProfile") for name in NAMES)


def drafts_of(needs: dict[str, set[str]]) -> list[Draft]:
    """Steps of three deployers, with an order that each of them declares among its own."""
    return [
        Draft(
            name=step,
            object=ObjectRef(kind="Handle", name=step),
            kind=step.partition("/")[0],
            declared=step,
            depends_on=tuple(sorted(needs.get(step, ()))),
            effort=Effort.ENFORCE,
        )
        for step in STEPS
    ]


# Each step depends on later ones of its own deployer only, so that no deployer contradicts itself.
own_orders = st.sets(st.tuples(st.sampled_from(STEPS), st.sampled_from(STEPS))).map(
    lambda pairs: {
        step: {b for a, b in pairs if a == step and a.partition("/")[0] == b.partition("/")[0] and a < b}
        for step in STEPS
    }
)


def wave_of(found: list[TeardownPolicy], needs: dict[str, set[str]]) -> dict[str, int]:
    return {step.name: step.wave for step in plan(drafts_of(needs), [one.spec.order for one in found]).steps}


@given(some)
def test_steps_of_an_earlier_group_are_removed_before_those_of_a_later_one_also_of_other_deployers(
    found: list[TeardownPolicy],
) -> None:
    one = found[:1]  # two policies may contradict each other
    waves = wave_of(one, {})
    for step, later in order_dependencies([one[0].spec.order], STEPS).items():
        assert all(waves[step] < waves[other] for other in later)


@given(some, own_orders)
def test_no_policy_ever_breaks_the_order_of_a_deployer(found: list[TeardownPolicy], needs: dict[str, set[str]]) -> None:
    waves = wave_of(found, needs)
    assert all(waves[step] < waves[need] for step, those in needs.items() for need in those)


@given(st.permutations(STEPS[:6]), own_orders)
def test_order_applies_to_every_pair_of_steps_that_no_deployer_orders_unless_the_plan_names_them(
    order: list[str], needs: dict[str, set[str]]
) -> None:
    groups = [[step] for step in order[:3]]
    made = plan(drafts_of(needs), [groups])
    waves = {step.name: step.wave for step in made.steps}
    named = {name.strip() for it in made.warnings for name in it.replace(";", ",").replace(":", ",").split(",")}
    for step, later in order_dependencies([groups], STEPS).items():
        assert all(waves[step] < waves[other] or {step, other} <= named for other in later)


@given(some, own_orders, st.randoms())
def test_the_plan_does_not_depend_on_the_order_in_which_policies_are_read(
    found: list[TeardownPolicy], needs: dict[str, set[str]], random: object
) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert wave_of(found, needs) == wave_of(shuffled, needs)


@given(some, st.sampled_from(list(Effort)))
def test_the_own_voice_of_a_profile_keeps_and_holds_like_that_of_a_policy(
    found: list[TeardownPolicy], own: Effort
) -> None:
    cluster = ClusterPolicies(target=ObjectRef(kind="Cluster", namespace=HOME, name="a"), policies=tuple(found))
    named = ObjectRef(kind="ClusterProfile", name="grafana")
    without, merged = (cluster.with_own(SourceKind.PROFILE, named, it, "own") for it in (None, own))
    assert (without is None) is (merged is None)
    if without is None or merged is None:
        return
    assert merged.deletes is (without.deletes and own is not Effort.LEAVE)
    holds = Effort.ENFORCE in (without.effort, own)
    assert (merged.effort is Effort.ENFORCE) is holds
    assert bool(merged.conflict) is (holds and not merged.deletes)
