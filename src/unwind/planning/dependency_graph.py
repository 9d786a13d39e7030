"""Topological order of dependencies."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from unwind.api.meta import ObjectMeta
    from unwind.api.unwind import Plan


Needs: TypeAlias = Mapping[str, Collection[str]]
"""The dependencies of each name. Every dependency has an entry of its own."""


def ordered_groups(needs: Needs) -> list[tuple[str, ...]]:
    """All names in groups, each group after everything that depends on it.

    Each name is a group of its own, except that a dependency cycle is one group.

    No graph library: a cluster has some ten profiles, and converting such a graph back and forth takes longer than to
    sort it here.
    """
    above = dict.fromkeys(needs, 0)
    for name, below in needs.items():
        for need in below:
            if need != name:
                above[need] += 1
    free = [name for name, count in above.items() if not count]
    for name in free:  # the list grows during the iteration
        for need in needs[name]:
            if need != name:
                above[need] -= 1
                if not above[need]:
                    free.append(need)
    order: list[tuple[str, ...]] = [(name,) for name in free]
    if len(free) < len(needs):
        # The remaining names are in a cycle or below one, so all of them come after the free ones.
        order += _knots(needs, [name for name, count in above.items() if count])
    return order


def graph(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The dependencies of each step of a plan. A stored plan may name a step twice, or steps that do not exist."""
    names = {step.name for step in plan.steps}
    return {step.name: tuple(dict.fromkeys(need for need in step.needs if need in names)) for step in plan.steps}


def dependencies(plan: Plan) -> dict[str, set[str]]:
    """For each step all steps that it depends on, directly or indirectly."""
    needs = graph(plan)
    return {name: all_needs(needs, name) for name in needs}


def all_needs(needs: Needs, name: str) -> set[str]:
    """The steps that a step depends on, directly or indirectly. It is one of them if it is in a cycle."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for need in needs[waiting.pop()]:
            if need not in found:
                found.add(need)
                waiting.append(need)
    return found


def with_added(needs: Needs, added: Needs) -> tuple[dict[str, set[str]], list[tuple[str, ...]]]:
    """The dependencies with further ones, except those that would be part of a cycle, and the names of each such cycle.

    `added`: each of its names has an entry in `needs`.
    """
    both = {name: set(those).union(added.get(name, ())) for name, those in needs.items()}
    dropped: list[tuple[str, ...]] = []
    for knot in ordered_groups(both):
        if len(knot) == 1:
            continue
        new = {name: (both[name] - set(needs[name])).intersection(knot) for name in knot}
        if any(new.values()):
            for name, those in new.items():
                both[name] -= those
            dropped.append(knot)
    return both, dropped


def without(needs: Needs, dropped: Collection[str]) -> dict[str, set[str]]:
    """The dependencies of the other names if these are dropped. Order passes through them."""
    passed = {name: _passed(needs, name, dropped) for name in needs if name in dropped}
    return {
        name: set().union(*(passed.get(need, {need}) for need in those)) - {name}
        for name, those in needs.items()
        if name not in passed
    }


def _passed(needs: Needs, name: str, dropped: Collection[str]) -> set[str]:
    """What a dropped name depends on, directly or through other dropped ones."""
    found, seen, waiting = set[str](), {name}, [name]
    while waiting:
        for need in needs[waiting.pop()]:
            if need not in dropped:
                found.add(need)
            elif need not in seen:
                seen.add(need)
                waiting.append(need)
    return found


def _knots(needs: Needs, names: list[str]) -> list[tuple[str, ...]]:
    """The strongly connected components of these names and their dependencies, each after its dependents.

    Tarjan's algorithm without recursion: a chain may be longer than Python's stack is deep.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: dict[str, None] = {}
    found: list[tuple[str, ...]] = []
    for root in names:
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        open_[root] = None
        walk = [(root, iter(needs[root]))]
        while walk:
            name, rest = walk[-1]
            for need in rest:
                if need not in number:
                    number[need] = lowest[need] = len(number)
                    open_[need] = None
                    walk.append((need, iter(needs[need])))
                    break
                if need in open_ and number[need] < lowest[name]:
                    lowest[name] = number[need]
            else:
                walk.pop()
                if walk and lowest[name] < lowest[walk[-1][0]]:
                    lowest[walk[-1][0]] = lowest[name]
                if lowest[name] == number[name]:
                    group = [open_.popitem()[0]]
                    while group[-1] != name:
                        group.append(open_.popitem()[0])
                    found.append(tuple(sorted(group)))
    # They are found from the bottom up.
    found.reverse()
    return found


class Ordered(Protocol):
    """An object that others on the same cluster depend on."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=Ordered)


def dependents(it: T, needing: Callable[[T], Iterable[T]], needed: Callable[[T], Iterable[T]]) -> list[T]:
    """The objects that need this one, and so go before it.

    Objects that it needs itself, in a cycle, do not count: each would wait for the other for ever.
    """
    above = list(needing(it))
    if not above:
        return []
    below: set[str] = {it.metadata.uid}
    waiting = list(needed(it))
    while waiting:
        other = waiting.pop()
        if other.metadata.uid not in below:
            below.add(other.metadata.uid)
            waiting += needed(other)
    return [other for other in above if other.metadata.uid not in below]


# Finds dependency cycles by name.

# A plan is stored in an object of limited size, and more cycles would not help a reader.
CYCLES_NAMED = 10


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A profile and the names in its dependsOn."""

    kind: str
    namespace: str = ""
    name: str
    depends_on: tuple[str, ...] = ()

    def sees(self, other: Declared) -> bool:
        """Whether a name in `dependsOn` can refer to the other one: only within a kind and a namespace."""
        return self.kind == other.kind and self.namespace == other.namespace


def closes_cycle(existing: Iterable[Declared], written: Declared) -> tuple[str, ...] | None:
    """The cycle that writing this profile would close, or None.

    `existing` includes the previous version of the profile, if any. Only a new name in its `dependsOn` closes a cycle:
    removing a name from an existing cycle, or changing anything else, is allowed.
    """
    needs: dict[str, Collection[str]] = {
        declared.name: declared.depends_on for declared in existing if written.sees(declared)
    }
    added = set(written.depends_on).difference(needs.get(written.name, ()))
    needs[written.name] = added
    return shortest_cycle(needs, written.name) if added else None


def shortest_cycle(needs: Needs, name: str) -> tuple[str, ...] | None:
    """The shortest cycle that contains a name, with its smallest name first; None if there is none.

    Deterministic if several are equally short. Names without an entry do not exist.
    """
    before: dict[str, str] = {}
    seen = [name]
    for item in seen:  # the list grows during the iteration
        for need in sorted(needs[item]):
            if need == name:
                cycle = [item]
                while cycle[-1] != name:
                    cycle.append(before[cycle[-1]])
                cycle.reverse()
                smallest = cycle.index(min(cycle))
                return (*cycle[smallest:], *cycle[:smallest])
            if need in needs and need not in before:
                before[need] = item
                seen.append(need)
    return None


def cycles(needs: Needs, group: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Cycles that together contain every name of a group; at most CYCLES_NAMED.

    All cycles would be too many: ten names that all depend on each other make more than a million.
    """
    members = frozenset(group)
    inside = {name: members.intersection(needs[name]) for name in group}
    found: list[tuple[str, ...]] = []
    told: set[str] = set()
    for name in sorted(members):
        if len(found) == CYCLES_NAMED:
            break
        if name not in told and (cycle := shortest_cycle(inside, name)):
            found.append(cycle)
            told.update(cycle)
    return tuple(found)


def spelled(cycle: Sequence[str]) -> str:
    """A cycle for display: `a → b → c → a`."""
    return " → ".join((*cycle, cycle[0]))
