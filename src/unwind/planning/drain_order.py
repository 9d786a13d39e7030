"""The order of a drain: every other step, then the drain, then the steps whose controllers clean up for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from unwind.planning.dependency_graph import all_needs

if TYPE_CHECKING:
    from unwind.planning.dependency_graph import Needs


class DrainOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the order of a drain depends on. Kinds of drained objects are named like the steps of the drain."""

    serving: Mapping[str, frozenset[str]] = {}
    """Which kinds of drained objects the controllers of a step clean up for, by the uid of the step's object."""
    having: Mapping[str, frozenset[str]] = {}
    """Which kinds of drained objects a step has itself. They are removed with the step, and not by the drain."""
    named: tuple[str, ...] = ()
    """Patterns of further steps that are removed after the drain."""
    enforced: bool = True
    """Whether a contradiction holds the target."""


def placed(
    needs: Needs,
    drains: Collection[str],
    serving: Mapping[str, Collection[str]],
    having: Mapping[str, Collection[str]],
    *,
    left: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """The dependencies of all steps, with those of a drain.

    `drains`: the steps of the drain. `serving`, `having`: see `DrainOrder`, by the name of the step. What a serving
    step depends on serves as well. A serving step with drained objects of its own goes before the other serving steps.
    `left`: steps that are left in place.
    """
    below = {name: all_needs(needs, name) for name in serving}
    late = set(serving).union(*below.values()) - set(drains)
    early = {name for name in late if having.get(name)}
    found: dict[str, tuple[str, ...]] = {}
    for name, those in needs.items():
        if name in left:
            more: set[str] = set()
        elif name in drains:
            more = late
        elif name not in late:
            more = set(drains)
        elif name in early:
            # Not a step that depends on it: that is a contradiction, which is reported.
            more = {other for other in late - early if name not in all_needs(needs, other)}
        else:
            more = set()
        found[name] = tuple(sorted(more.union(those) - {name}))
    return found


def conflicts(needs: Needs, serving: Mapping[str, Collection[str]], having: Mapping[str, Collection[str]]) -> list[str]:
    """Serving steps that depend on a step with drained objects: they would be removed before these objects."""
    return [
        f"{name} cleans up for {', '.join(sorted(kinds))} and depends on {other}, which has some of its own: they would"
        f" be left behind, because {name} is removed before {other}; remove that dependency"
        for name in sorted(serving)
        for other in sorted(all_needs(needs, name) - {name})
        if (kinds := set(serving[name]) & set(having.get(other, ())))
    ]
