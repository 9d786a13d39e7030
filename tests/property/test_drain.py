"""Merging of drains, and their place in the plan: Leave always keeps, Enforce always holds, order always holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.policies import DrainedResource, PolicyDrain, PolicySelector, TeardownPolicy, TeardownPolicySpec
from unwind.api.unwind import Effort
from unwind.companions import policy_merge
from unwind.drain import rules
from unwind.planning.dependency_graph import dependencies
from unwind.planning.drain_order import DrainOrder
from unwind.planning.waves import Draft, circles, drain_conflicts, plan

efforts = st.sampled_from([word.value for word in Effort])
resources = st.builds(
    DrainedResource,
    group=st.sampled_from(["karpenter.sh", "dns.example.dev"]),
    kind=st.sampled_from(["NodePool", "Record"]),
    effort=efforts,
    phase=st.sampled_from(["LoadBalancers", "Volumes", "Nodes"]),
    settle=st.sampled_from(["", "1m", "2m"]),
)
drains = st.builds(
    PolicyDrain,
    load_balancers=st.just("") | efforts,
    volumes=st.just("") | efforts,
    resources=st.lists(resources, max_size=3).map(tuple),
    exclude=st.none() | st.builds(PolicySelector, match_labels=st.sampled_from([{"keep": "yes"}, {"a": "b"}, {}])),
    settle=st.sampled_from(["", "1m", "2m"]),
)
some = st.lists(st.none() | drains, min_size=1, max_size=4).map(
    lambda found: [
        TeardownPolicy(metadata=ObjectMeta(name=f"p{number}"), spec=TeardownPolicySpec(drain=drain))
        for number, drain in enumerate(found)
    ]
)
labels = st.sampled_from([{}, {"keep": "yes"}, {"keep": "yes", "a": "b"}])


@given(some, st.randoms())
def test_the_order_of_policies_never_matters(found: list[TeardownPolicy], random: object) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rules.decisions(found) == rules.decisions(shuffled)


@given(some)
def test_without_a_section_drain_nothing_is_drained(found: list[TeardownPolicy]) -> None:
    assert bool(rules.decisions(found)) == any(policy.spec.drain for policy in found)


@given(some)
def test_leave_always_keeps_and_enforce_always_holds(found: list[TeardownPolicy]) -> None:
    said = {
        name: {
            effort for policy in found if policy.spec.drain for one, effort in policy.spec.drain.efforts if one == name
        }
        for name in rules.decisions(found)
    }
    for name, decision in rules.decisions(found).items():
        if "Leave" in said[name]:
            assert not decision.said.deletes
        if "Enforce" in said[name]:
            assert decision.effort is Effort.ENFORCE
            assert decision.said.deletes or decision.said.conflict
        if not said[name]:
            assert not decision.drains
    assert any(map(policy_merge.enforces, found)) == any("Enforce" in words for words in said.values())


@given(some)
def test_another_policy_never_makes_a_drain_less_strict(found: list[TeardownPolicy]) -> None:
    fewer, all_ = rules.decisions(found[1:]), rules.decisions(found)
    for name, decision in fewer.items():
        assert set(decision.said.enforced_by) <= set(all_[name].said.enforced_by)
        assert decision.said.deletes or not all_[name].said.deletes
        assert decision.settle <= all_[name].settle


@given(some, labels)
def test_an_excluded_object_is_never_deleted_and_holds_if_another_policy_enforces_it(
    found: list[TeardownPolicy], its: dict[str, str]
) -> None:
    for decision in rules.decisions(found).values():
        exclusion = rules.excluded(found, decision, its)
        by_name = {policy.metadata.name: policy.spec.drain for policy in found}
        deleting = [*decision.said.enforced_by, *decision.said.tried_by]
        selecting = [
            name
            for name in deleting
            if (drain := by_name[name])
            and drain.exclude
            and drain.exclude.match_labels.items() <= its.items()
            and drain.exclude.match_labels
        ]
        assert set(exclusion.by if exclusion else ()) == set(selecting)
        if exclusion:
            assert bool(exclusion.conflict) == bool(set(decision.said.enforced_by) - set(selecting))


NAMES = "abcdef"
graphs = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(NAMES)), min_size=1).map(
    # Without cycles: each depends on later ones only.
    lambda found: {name: {need for need in needs if need > name and need in found} for name, needs in found.items()}
)
kinds = st.dictionaries(st.sampled_from(NAMES), st.sets(st.sampled_from(["loadBalancers", "volumes"]), min_size=1))


def _drafts(graph: dict[str, set[str]], left: set[str]) -> list[Draft]:
    drafts = [
        Draft(
            name=name,
            object=ObjectRef(kind="X", name=name, uid=name),
            kind="X",
            declared=name,
            depends_on=tuple(needs),
            effort=Effort.LEAVE if name in left else Effort.ENFORCE,
        )
        for name, needs in graph.items()
    ]
    drain = {"drain/1": ("drain/2",), "drain/2": ()}
    return drafts + [
        Draft(
            name=name,
            object=ObjectRef(kind="Drain", name=name, uid=name),
            kind="Drain",
            declared=name,
            depends_on=needs,
            drains=True,
            effort=Effort.ENFORCE,
        )
        for name, needs in drain.items()
    ]


@given(graphs, kinds, kinds, st.sets(st.sampled_from(NAMES)))
def test_the_drain_comes_after_all_steps_but_those_that_serve_it_and_what_these_depend_on(
    graph: dict[str, set[str]], serving: dict[str, set[str]], having: dict[str, set[str]], left: set[str]
) -> None:
    order = DrainOrder(
        serving={name: frozenset(found) for name, found in serving.items()},
        having={name: frozenset(found) for name, found in having.items()},
    )
    drafts = _drafts(graph, left)
    made = plan(drafts, drain=order)
    below, before = dependencies(made), dependencies(plan(_drafts(graph, left)))
    late = {name for name in graph if name in serving or any(name in before[one] for one in graph if one in serving)}
    assert not circles(made)
    for name in graph:
        assert before[name] <= below[name]
        if name in left:
            continue
        if name in late:
            assert all(name in below[drain] for drain in ("drain/1", "drain/2"))
            assert not below[name] & {"drain/1", "drain/2"}
        else:
            assert below[name] >= {"drain/1", "drain/2"}
    if not drain_conflicts(drafts, (), order):
        # No step that cleans up for a kind is removed before a serving step that has objects of it.
        for name in late - left:
            for other in late - left - {name}:
                if having.get(name) and not having.get(other):
                    assert other in below[name] or name not in below[other]
