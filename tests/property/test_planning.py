"""Plans, held against an oracle that tries everything out and shares no code with what it judges."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import TYPE_CHECKING

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort, Plan
from unwind.planning.dependency_graph import Declared, closes_cycle
from unwind.planning.progress import PlanProgress, critical_path, ready
from unwind.planning.waves import Draft, circles, plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

thorough = settings(max_examples=max(200, settings().max_examples))

SCOPES = (("ClusterProfile", ""), ("Profile", "one"), ("Profile", "two"))
NAMES = tuple("abcdefg")
ABSENT = "x"
EFFORTS = (Effort.ENFORCE, Effort.TRY, Effort.LEAVE)


@st.composite
def drafts(draw: st.DrawFn) -> list[Draft]:
    """Up to seven steps, mostly in one scope; names occur in several, and some that are depended on are not there."""
    scopes = SCOPES[: draw(st.sampled_from((1, 1, 1, 2, 3)))]
    # As many letters as steps: else most of what is depended on is not there, and circles are rare.
    size = draw(st.integers(0, len(NAMES)))
    letters = NAMES[:size]
    declared = draw(st.permutations([(scope, letter) for scope in scopes for letter in letters]))[:size]
    # Step names in another order than the names they are depended on by, so that none is taken for the other.
    called = draw(st.permutations([f"step-{letter}" for letter in NAMES[: len(declared)]]))
    needs = st.lists(st.sampled_from((*letters, *letters, ABSENT)), max_size=3)
    return [
        Draft(
            name=name,
            object=ObjectRef(kind="ClusterSummary", name=name),
            kind=kind,
            namespace=namespace,
            declared=letter,
            depends_on=tuple(draw(needs)),
            effort=draw(st.sampled_from(EFFORTS)),
            objects=draw(st.integers(0, 3)),
        )
        for name, ((kind, namespace), letter) in zip(called, declared, strict=True)
    ]


class Oracle:
    """What is true of some steps, found by trying everything out."""

    def __init__(self, drafts: Iterable[Draft]) -> None:
        self.drafts = list(drafts)
        self.edges = {
            (a.name, b.name)
            for a in self.drafts
            for b in self.drafts
            if (a.kind, a.namespace) == (b.kind, b.namespace) and b.declared in a.depends_on
        }
        self.paths = closure(self.edges)
        self.removed = {draft.name for draft in self.drafts if draft.effort is not Effort.LEAVE}
        self.objects = {draft.name: draft.objects for draft in self.drafts}

    def before(self, a: str, b: str) -> bool:
        """Whether a has to be over before b: it depends on b, and b does not depend on it."""
        return (a, b) in self.paths and (b, a) not in self.paths

    def together(self, a: str, b: str) -> bool:
        return a == b or ((a, b) in self.paths and (b, a) in self.paths)

    def wave(self, name: str) -> int:
        if name not in self.removed:
            return 1
        return 1 + max((self.wave(other) for other in self.removed if self.before(other, name)), default=0)

    def ready(self, done: Iterable[str]) -> set[str]:
        over = set(done)
        return {
            draft.name
            for draft in self.drafts
            if draft.name not in over
            and (
                draft.effort is Effort.LEAVE
                or all(other in over for other in self.removed if self.before(other, draft.name))
            )
        }

    def chains(self) -> list[tuple[str, ...]]:
        """Every way to go through removals one after the other, with one step for each circle: the biggest."""
        chosen = [
            name
            for name in self.removed
            if name
            == min(
                (other for other in self.removed if self.together(name, other)),
                key=lambda other: (-self.objects[other], other),
            )
        ]
        return [
            way
            for length in range(len(chosen) + 1)
            for way in permutations(chosen, length)
            if all(self.before(one, other) for one, other in pairwise(way))
        ]


def closure(edges: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Everything that can be reached, by joining paths until nothing new comes of it."""
    paths = set(edges)
    while True:
        more = {(a, d) for a, b in paths for c, d in paths if b == c} - paths
        if not more:
            return paths
        paths |= more


def read_back(made: Plan) -> Plan:
    """The plan as it comes from the API server."""
    return msgspec.json.decode(msgspec.json.encode(made), type=Plan)


def is_cycle(names: Sequence[str], edges: set[tuple[str, str]]) -> bool:
    return all(edge in edges for edge in zip(names, (*names[1:], names[0]), strict=True))


@thorough
@given(drafts())
def test_every_step_goes_in_the_first_wave_that_its_dependents_allow(several: list[Draft]) -> None:
    truth = Oracle(several)
    made = plan(several)
    assert {step.name: step.wave for step in made.steps} == {draft.name: truth.wave(draft.name) for draft in several}
    assert made.waves == max((step.wave for step in made.steps), default=0)


@thorough
@given(drafts())
def test_what_depends_on_another_goes_in_an_earlier_wave_and_a_circle_in_one(several: list[Draft]) -> None:
    truth = Oracle(several)
    waves = {step.name: step.wave for step in plan(several).steps}
    for item in truth.removed:
        for other in truth.removed:
            if truth.before(item, other):
                assert waves[item] < waves[other]
            if truth.together(item, other):
                assert waves[item] == waves[other]


@thorough
@given(drafts())
def test_a_plan_says_of_each_step_what_it_needs_and_how_much_goes(several: list[Draft]) -> None:
    truth = Oracle(several)
    made = plan(several)
    assert {(step.name, need) for step in made.steps for need in step.needs} == truth.edges
    assert made.objects == sum(truth.objects[name] for name in truth.removed)
    assert {step.name: (step.effort, step.objects) for step in made.steps} == {
        draft.name: (draft.effort.value, draft.objects) for draft in several
    }


@thorough
@given(drafts())
def test_cycles_are_named_exactly_when_there_are_any_and_name_every_step_in_one(several: list[Draft]) -> None:
    truth = Oracle(several)
    made = plan(several)
    found = [tuple(text.split(" → ")[:-1]) for text in circles(read_back(made))]
    assert {name for cycle in found for name in cycle} == {name for name, other in truth.paths if name == other}
    for cycle in found:
        assert is_cycle(cycle, truth.edges)
        assert cycle[0] == min(cycle)
        assert len(set(cycle)) == len(cycle)
    assert all(any(text in warning for warning in made.warnings) for text in circles(made))


@thorough
@given(drafts())
def test_a_warning_names_what_is_left_and_what_it_needs_that_goes(several: list[Draft]) -> None:
    truth = Oracle(several)
    warnings = [
        warning
        for warning in plan(several).warnings
        if " is left in place, but this plan removes what it depends on: " in warning
    ]
    torn = {a for a, b in truth.edges if a not in truth.removed and b in truth.removed}
    assert {warning.partition(" ")[0] for warning in warnings} == torn
    for a, b in truth.edges:
        if a in torn and b in truth.removed:
            assert any(warning.startswith(f"{a} ") and b in warning for warning in warnings)


@thorough
@given(drafts(), st.data())
def test_the_order_in_which_steps_come_changes_nothing(several: list[Draft], data: st.DataObject) -> None:
    shuffled = [
        msgspec.structs.replace(draft, depends_on=tuple(data.draw(st.permutations(draft.depends_on * 2))))
        for draft in data.draw(st.permutations(several))
    ]
    assert plan(shuffled) == plan(several)


@thorough
@given(drafts(), st.data())
def test_each_step_becomes_free_once_and_as_soon_as_it_may(several: list[Draft], data: st.DataObject) -> None:
    truth = Oracle(several)
    progress = PlanProgress(read_back(plan(several)))
    freed = list(progress.ready)
    done: list[str] = []
    while going := progress.ready:
        assert set(going) == truth.ready(done)
        name = data.draw(st.sampled_from(going))
        freed += progress.done(name)
        done.append(name)
        assert progress.done(name) == ()
    assert sorted(freed) == sorted(done) == sorted(draft.name for draft in several)
    assert progress.finished


@thorough
@given(drafts(), st.data())
def test_what_may_go_depends_only_on_what_is_done_in_whatever_order(several: list[Draft], data: st.DataObject) -> None:
    truth = Oracle(several)
    made = plan(several)
    progress = PlanProgress(made)
    order = data.draw(st.permutations([draft.name for draft in several]))
    for count, name in enumerate(order, 1):
        before = set(progress.ready)
        freed = progress.done(name)
        assert len(set(freed)) == len(freed)
        assert set(progress.ready) == truth.ready(order[:count]) == (before - {name}) | set(freed)
        assert set(ready(made, reversed(order[:count]))) == set(progress.ready)
        undone = [step.wave for step in made.steps if step.name in truth.removed.difference(order[:count])]
        assert progress.wave == min(undone, default=made.waves)
    assert progress.finished


@thorough
@given(drafts(), st.data())
def test_who_waits_is_told_for_whom(several: list[Draft], data: st.DataObject) -> None:
    truth = Oracle(several)
    names = [draft.name for draft in several]
    done = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    progress = PlanProgress(plan(several), done)
    for name in names:
        told = progress.waits_for(name)
        assert bool(told) == (name not in done and name not in truth.ready(done))
        assert all(truth.before(other, name) and other in truth.removed and other not in done for other in told)


@thorough
@given(drafts())
def test_the_critical_path_is_the_longest_then_the_biggest_then_the_first(several: list[Draft]) -> None:
    truth = Oracle(several)
    best = min(truth.chains(), key=lambda way: (-len(way), -sum(truth.objects[name] for name in way), way))
    assert critical_path(read_back(plan(several))) == best


@st.composite
def profiles(draw: st.DrawFn) -> list[Declared]:
    declared = draw(st.lists(st.tuples(st.sampled_from(SCOPES), st.sampled_from(NAMES)), max_size=10, unique=True))
    return [
        Declared(
            kind=kind,
            namespace=namespace,
            name=name,
            depends_on=tuple(draw(st.lists(st.sampled_from((*NAMES, ABSENT)), max_size=3))),
        )
        for (kind, namespace), name in declared
    ]


@thorough
@given(profiles(), profiles().filter(bool))
def test_a_write_is_refused_exactly_when_a_new_dependency_closes_a_cycle(
    existing: list[Declared], write: list[Declared]
) -> None:
    written = write[0]
    scope = (written.kind, written.namespace)
    before = {
        declared.name: declared.depends_on for declared in existing if (declared.kind, declared.namespace) == scope
    }
    after = {**before, written.name: written.depends_on}
    edges = {(name, need) for name, needs in after.items() for need in needs if need in after}
    paths = closure(edges)
    closing = {
        need
        for need in written.depends_on
        if need not in before.get(written.name, ()) and (need == written.name or (need, written.name) in paths)
    }
    cycle = closes_cycle(existing, written)
    assert (cycle is not None) == bool(closing)
    if cycle is not None:
        assert is_cycle(cycle, edges)
        assert cycle[0] == min(cycle)
        assert written.name in cycle
        assert any((written.name, need) in zip(cycle, (*cycle[1:], cycle[0]), strict=True) for need in closing)
