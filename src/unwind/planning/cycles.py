"""Things that depend on each other in a circle, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unwind.planning.ordering import Needs

# A plan is kept in an object of limited size, and nobody reads more of them.
CYCLES_NAMED = 10


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A profile, and the names of those that it says it needs."""

    kind: str
    namespace: str = ""
    name: str
    depends_on: tuple[str, ...] = ()

    def sees(self, other: Declared) -> bool:
        """Whether a name in `dependsOn` can mean the other one: only within a kind, and within a namespace."""
        return self.kind == other.kind and self.namespace == other.namespace


def closes_cycle(existing: Iterable[Declared], written: Declared) -> tuple[str, ...] | None:
    """The cycle that writing this profile would close, or None.

    Among the existing ones stands the profile as it was, if there was one. Only a name that is new in its `dependsOn`
    closes a cycle: who takes one name out of a circle that got in somehow, or changes something else, is not in the
    wrong.
    """
    needs: dict[str, Collection[str]] = {one.name: one.depends_on for one in existing if written.sees(one)}
    added = set(written.depends_on).difference(needs.get(written.name, ()))
    needs[written.name] = added
    return shortest_cycle(needs, written.name) if added else None


def shortest_cycle(needs: Needs, name: str) -> tuple[str, ...] | None:
    """The shortest cycle that a name is in, with its smallest name first; None if it is in none.

    Of several that are as short, it is always the same one. Names that have no line are not there.
    """
    before: dict[str, str] = {}
    seen = [name]
    for one in seen:  # it grows while it is read
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
    """Cycles that the names of a group are in, so that each name is in one of them; at most CYCLES_NAMED.

    All there are would be too many: ten names that all depend on each other make more than a million.
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
    """A cycle as people read it: `a → b → c → a`."""
    return " → ".join((*cycle, cycle[0]))
