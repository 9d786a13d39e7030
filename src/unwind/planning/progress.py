"""Tracks which steps of a plan are ready."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from unwind.api.unwind import Effort
from unwind.planning.dependency_graph import graph, ordered_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.unwind import Plan


def ready(plan: Plan, done: Iterable[str]) -> tuple[str, ...]:
    """The steps that are ready, given the ones that are done: removed, left or given up."""
    return PlanProgress(plan, done).ready


class PlanProgress:
    """The progress of a plan. When a step is done, it returns the steps that become ready.

    A step is ready when everything that depends on it, directly or indirectly, is done. Steps in a cycle become ready
    together. A step that is left in place is always ready, and no step waits for it; its dependencies wait for the
    steps above it. A step with an unknown effort is kept in order, like one that is removed.

    Each dependency is visited twice: when the plan is read, and when its source is done. All state is derived from the
    plan and the names of the done steps, so it can be recreated at any moment.
    """

    def __init__(self, plan: Plan, done: Iterable[str] = ()) -> None:
        self._needs = graph(plan)
        self._groups = ordered_groups(self._needs)
        self._place = {name: place for place, group in enumerate(self._groups) for name in group}
        self._left = {step.name for step in plan.steps if step.effort == Effort.LEAVE}
        self._done: set[str] = set()
        self._standing = [sum(name not in self._left for name in group) for group in self._groups]
        """Per group, the number of removals that are not done."""
        self._above = [0] * len(self._groups)
        """Per group, the number of dependencies on it that still count."""
        for name, needs in self._needs.items():
            for need in needs:
                if self._place[need] != self._place[name]:
                    self._above[self._place[need]] += 1
        self._waves = {step.name: step.wave for step in plan.steps}
        self._in_wave: dict[int, int] = {}
        """Per unfinished wave, the number of removals that are not done."""
        for name, wave in self._waves.items():
            if name not in self._left:
                self._in_wave[wave] = self._in_wave.get(wave, 0) + 1
        # The groups that are free at the start, determined before any is settled, because settling frees others.
        free = [place for place, above in enumerate(self._above) if not above]
        self._ready = dict.fromkeys(step.name for step in plan.steps if step.name in self._left)
        self._ready.update((name, None) for place in free for name in self._standing_in(place))
        self._settle([place for place in free if not self._standing[place]])
        for name in done:
            self.done(name)

    @property
    def ready(self) -> tuple[str, ...]:
        """The steps that are ready and not done."""
        return tuple(self._ready)

    @property
    def finished(self) -> bool:
        return len(self._done) == len(self._needs)

    @property
    def wave(self) -> int:
        """The first wave with something to remove; the last wave in the end. Steps that are left in place keep no wave
        open."""
        return min(self._in_wave, default=max(self._waves.values(), default=0))

    def done(self, name: str) -> tuple[str, ...]:
        """Record that a step was removed, left or given up; returns the steps that become ready.

        Idempotent. A step may be done out of order, if another client removed it: its dependencies still wait for the
        steps above.
        """
        place = self._place[name]
        if name in self._done:
            return ()
        self._done.add(name)
        self._ready.pop(name, None)
        if name in self._left:
            return ()
        wave = self._waves[name]
        self._in_wave[wave] -= 1
        if not self._in_wave[wave]:
            del self._in_wave[wave]
        self._standing[place] -= 1
        return () if self._standing[place] or self._above[place] else self._settle([place])

    def waits_for(self, name: str) -> tuple[str, ...]:
        """The nearest steps that a step waits for: its dependents, also through steps that are done or left in
        place."""
        if name in self._done or name in self._ready:
            return ()
        found: set[str] = set()
        seen = list(self._groups[self._place[name]])
        known = set(seen)
        for item in seen:  # the list grows during the iteration
            for dependent in self._dependents.get(item, ()):
                if dependent in known:
                    continue
                known.add(dependent)
                if dependent in self._done or dependent in self._left:
                    seen.append(dependent)
                else:
                    found.add(dependent)
        return tuple(sorted(found))

    @cached_property
    def _dependents(self) -> dict[str, list[str]]:
        dependents: dict[str, list[str]] = {}
        for name, needs in self._needs.items():
            for need in needs:
                dependents.setdefault(need, []).append(name)
        return dependents

    def _standing_in(self, place: int) -> list[str]:
        return [name for name in self._groups[place] if name not in self._done and name not in self._left]

    def _settle(self, over: list[int]) -> tuple[str, ...]:
        """Release the dependencies of these groups: they are done, and so is everything that depends on them."""
        freed: list[str] = []
        for place in over:  # the list grows during the iteration
            for name in self._groups[place]:
                for need in self._needs[name]:
                    below = self._place[need]
                    if below == place:
                        continue
                    self._above[below] -= 1
                    if self._above[below]:
                        continue
                    freed += self._standing_in(below)
                    if not self._standing[below]:
                        over.append(below)
        self._ready.update(dict.fromkeys(freed))
        return tuple(freed)


# The critical path of a plan.


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
    for group in reversed(ordered_groups(needs)):
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
