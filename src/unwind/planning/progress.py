"""Which steps of a plan may go now."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from unwind.api.unwind import Effort
from unwind.planning.ordering import graph, groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.unwind import Plan


def ready(plan: Plan, done: Iterable[str]) -> tuple[str, ...]:
    """The steps that may go now, if these are done: removed, left or given up."""
    return Progress(plan, done).ready


class Progress:
    """How far a plan has come. Told that a step is done, it answers which ones may go now because of it.

    A step may go when everything that depends on it, also by way of others, is done. Steps in a circle become free
    together. What is left in place may go at once, and nobody waits for it; what it needs waits for those above it.
    A step whose effort is not known is kept in order, as one that is removed.

    Each dependency is looked at twice: when the plan is read, and when what it leads from is done. All of it is known
    from the plan and the names of what is done, so it can be made again at any moment.
    """

    def __init__(self, plan: Plan, done: Iterable[str] = ()) -> None:
        self._needs = graph(plan)
        self._groups = groups(self._needs)
        self._place = {name: place for place, group in enumerate(self._groups) for name in group}
        self._left = {step.name for step in plan.steps if step.effort == Effort.LEAVE}
        self._done: set[str] = set()
        self._standing = [sum(name not in self._left for name in group) for group in self._groups]
        """Of each group, how many removals are not done."""
        self._above = [0] * len(self._groups)
        """Of each group, how many dependencies on it still count."""
        for name, needs in self._needs.items():
            for need in needs:
                if self._place[need] != self._place[name]:
                    self._above[self._place[need]] += 1
        self._waves = {step.name: step.wave for step in plan.steps}
        self._in_wave: dict[int, int] = {}
        """Of each wave that is not over, how many removals are not done."""
        for name, wave in self._waves.items():
            if name not in self._left:
                self._in_wave[wave] = self._in_wave.get(wave, 0) + 1
        # The groups that are free before anything is done: told apart before any is settled, which frees others.
        free = [place for place, above in enumerate(self._above) if not above]
        self._ready = dict.fromkeys(step.name for step in plan.steps if step.name in self._left)
        self._ready.update((name, None) for place in free for name in self._standing_in(place))
        self._settle([place for place in free if not self._standing[place]])
        for name in done:
            self.done(name)

    @property
    def ready(self) -> tuple[str, ...]:
        """The steps that may go now and are not done."""
        return tuple(self._ready)

    @property
    def finished(self) -> bool:
        return len(self._done) == len(self._needs)

    @property
    def wave(self) -> int:
        """The first wave with something to remove; the last one in the end. What is only left keeps none open."""
        return min(self._in_wave, default=max(self._waves.values(), default=0))

    def done(self, name: str) -> tuple[str, ...]:
        """Take note that a step was removed, left or given up; return the steps that became free by it.

        To be told twice changes nothing. A step may be done before its turn, if somebody else removed it: what it needs
        still waits for those above.
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
        """The nearest steps that a step waits for: those that depend on it, or on what is done or left between."""
        if name in self._done or name in self._ready:
            return ()
        found: set[str] = set()
        seen = list(self._groups[self._place[name]])
        known = set(seen)
        for one in seen:  # it grows while it is read
            for dependent in self._dependents.get(one, ()):
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
        """Let go of what these groups need: they are done, and so is all that depends on them."""
        freed: list[str] = []
        for place in over:  # it grows while it is read
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
