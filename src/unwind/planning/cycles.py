"""Finds dependency cycles by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unwind.planning.ordering import Needs

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
    needs: dict[str, Collection[str]] = {one.name: one.depends_on for one in existing if written.sees(one)}
    added = set(written.depends_on).difference(needs.get(written.name, ()))
    needs[written.name] = added
    return shortest_cycle(needs, written.name) if added else None


def shortest_cycle(needs: Needs, name: str) -> tuple[str, ...] | None:
    """The shortest cycle that contains a name, with its smallest name first; None if there is none.

    Deterministic if several are equally short. Names without an entry do not exist.
    """
    before: dict[str, str] = {}
    seen = [name]
    for one in seen:  # the list grows during the iteration
        for need in sorted(needs[one]):
            if need == name:
                cycle = [one]
                while cycle[-1] != name:
                    cycle.append(before[cycle[-1]])
                cycle.reverse()
                smallest = cycle.index(min(cycle))
                return (*cycle[smallest:], *cycle[:smallest])
            if need in needs and need not in before:
                before[need] = one
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
