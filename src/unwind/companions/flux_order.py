"""The order of handles of Flux that are nested in each other (pure).

What contains a handle goes after it. If B depends on A, then B and everything nested in B goes before everything nested
in A: B was applied when A was ready, and with it what A contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.planning.dependency_graph import all_needs, with_added, without

if TYPE_CHECKING:
    from collections.abc import Collection

    from unwind.planning.dependency_graph import Needs


class NestedOrder(msgspec.Struct, frozen=True):
    """The order of handles."""

    needs: Mapping[str, set[str]]
    """What each step depends on."""
    dropped: tuple[tuple[str, ...], ...] = ()
    """Groups of steps between which order that follows from nesting would be a cycle, and was dropped."""


def nested_order(
    declared: Needs, parents: Needs, *, also: Needs | None = None, order_only: Collection[str] = ()
) -> NestedOrder:
    """The order of handles by their names.

    `declared`: their `dependsOn`. `parents`: what contains each. Both have an entry for each handle. `also`: further
    dependencies, from which nothing follows. `order_only`: handles that are no steps; order passes through them.
    """
    contents: dict[str, set[str]] = {name: set() for name in parents}
    for child, those in parents.items():
        for parent in those:
            contents[parent].add(child)
    below = {name: all_needs(contents, name) for name, those in contents.items() if those}
    more = also or {}
    direct = {name: set(those).union(parents[name], more.get(name, ())) for name, those in declared.items()}
    every = {name: those | _inherited(name, declared[name], below) for name, those in direct.items()}
    between = without(every, order_only)
    own = {name: direct[name].intersection(between) for name in between}
    needs, dropped = with_added(own, between)
    return NestedOrder(needs, tuple(dropped))


def _inherited(name: str, declared: Collection[str], below: Mapping[str, set[str]]) -> set[str]:
    """What a handle depends on because what it depends on contains it."""
    mine = {name, *below.get(name, ())}
    found: set[str] = set()
    for need in declared:
        inside = below.get(need, set())
        if name not in inside:  # a handle that depends on what contains it says nothing about the others in there
            found |= inside - mine
    return found


def dropped_warning(step: str, group: Collection[str]) -> str:
    """The warning about a step whose order among a group was dropped, as the rest of a sentence."""
    others = ", ".join(sorted(set(group) - {step}))
    return (
        f"the dependsOn of Kustomizations that contain it or {others} contradicts other dependencies of these, and is"
        " not applied between them; correct it"
    )
