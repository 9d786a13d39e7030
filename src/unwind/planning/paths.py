"""The critical path of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.unwind import Effort
from unwind.planning.ordering import graph, groups

if TYPE_CHECKING:
    from unwind.api.unwind import Plan


def critical_path(plan: Plan) -> tuple[str, ...]:
    """The longest chain of sequential removals: one step of each wave.

    Of several equally long chains, the one with the most objects, then the first by name. Steps that are left in place
    take no time and are not included. Steps in a cycle are removed together, so the one with the most objects stands
    for them.
    """
    needs = graph(plan)
    removed = {step.name: step.objects for step in plan.steps if step.effort != Effort.LEAVE}
    end = (0, 0, "")
    best: dict[str, tuple[int, int, str]] = {}
    """The chain from a step downwards: negative length, negative objects, its first step. The smallest is best."""
    following: dict[str, str] = {}
    for group in reversed(groups(needs)):
        below = min((best[need] for name in group for need in needs[name] if need in best), default=end)
        first = min(((-removed[name], name) for name in group if name in removed), default=None)
        if first is None:
            chain = below
        else:
            chain = (below[0] - 1, below[1] + first[0], first[1])
            following[first[1]] = below[2]
        best.update(dict.fromkeys(group, chain))
    path: list[str] = []
    step = min(best.values(), default=end)[2]
    while step:
        path.append(step)
        step = following[step]
    return tuple(path)
