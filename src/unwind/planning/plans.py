"""From what is on one cluster to the plan by which it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort, Plan, Step
from unwind.planning.cycles import cycles, spelled
from unwind.planning.ordering import graph, groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.planning.ordering import Needs


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A step before its place in the plan is known: a profile on this cluster, or a Work."""

    name: str
    """What it is called in the plan, where no other has this name."""
    object: ObjectRef
    """What stands for it: a ClusterSummary, a Work."""
    kind: str
    """The kind that says what it depends on: ClusterProfile, Profile, Work."""
    namespace: str = ""
    """The namespace of that one; empty for a ClusterProfile."""
    declared: str
    """The name of that one, by which others depend on it."""
    depends_on: tuple[str, ...] = ()
    """The names that it depends on, of the same kind and in the same namespace."""
    effort: Effort
    objects: int = 0


def plan(drafts: Iterable[Draft]) -> Plan:
    """The plan: every step with its wave, whatever order they come in.

    If a depends on b, a goes in an earlier wave. The wave of a step is one more than the longest chain of removals
    that depend on it; steps in a circle are one wave, and count as one.

    What is left takes no time: it is in the first wave, adds nothing to a chain, and nobody waits for it. But it passes
    order on. If a needs b, b is left and b needs c, then a goes before c: while a is being removed it may use b, and b
    still uses c.
    """
    ordered = sorted(drafts, key=_name)
    needs = _resolved(ordered)
    left = {draft.name for draft in ordered if draft.effort is Effort.LEAVE}
    order = groups(needs)
    waves = _waves(order, needs, left)
    steps = [
        Step(
            name=draft.name,
            object=draft.object,
            effort=draft.effort.value,
            needs=needs[draft.name],
            wave=waves[draft.name],
            objects=draft.objects,
        )
        for draft in ordered
    ]
    steps.sort(key=_wave)  # and by name inside one: they came so
    return Plan(
        steps=tuple(steps),
        waves=max(waves.values(), default=0),
        objects=sum(draft.objects for draft in ordered if draft.effort is not Effort.LEAVE),
        warnings=(*_broken(order, needs), *_torn(ordered, needs, left)),
    )


def circles(plan: Plan) -> tuple[str, ...]:
    """The cycles that a plan had to break, each as people read it: `a → b → c → a`. Empty if there is none."""
    needs = graph(plan)
    return tuple(spelled(cycle) for group in _circular(groups(needs), needs) for cycle in cycles(needs, group))


def _name(draft: Draft) -> str:
    return draft.name


def _wave(step: Step) -> int:
    return step.wave


def _resolved(drafts: Sequence[Draft]) -> dict[str, tuple[str, ...]]:
    """What each step needs, as names of steps. What is not on this cluster is not needed there."""
    scopes: dict[tuple[str, str], dict[str, str]] = {}
    for draft in drafts:
        scope = scopes.setdefault((draft.kind, draft.namespace), {})
        if scope.setdefault(draft.declared, draft.name) != draft.name:
            raise ValueError(f"{draft.kind} {draft.declared} is there twice: {scope[draft.declared]}, {draft.name}")
    needs = {
        draft.name: tuple(sorted(set(filter(None, map(scopes[draft.kind, draft.namespace].get, draft.depends_on)))))
        for draft in drafts
    }
    if len(needs) < len(drafts):
        raise ValueError("two steps have the same name")
    return needs


def _waves(order: Iterable[tuple[str, ...]], needs: Needs, left: set[str]) -> dict[str, int]:
    waves: dict[str, int] = {}
    above = dict.fromkeys(needs, 0)
    """How many waves of removals have to be over before its turn."""
    for group in order:
        here = above[group[0]] if len(group) == 1 else max([above[name] for name in group])
        after = here if left.issuperset(group) else here + 1
        for name in group:
            waves[name] = 1 if name in left else after
            for need in needs[name]:
                if above[need] < after:
                    above[need] = after
    return waves


def _circular(order: Iterable[tuple[str, ...]], needs: Needs) -> list[tuple[str, ...]]:
    """The groups whose names depend on each other, or on themselves."""
    return sorted(group for group in order if len(group) > 1 or group[0] in needs[group[0]])


def _broken(order: Iterable[tuple[str, ...]], needs: Needs) -> list[str]:
    warnings: list[str] = []
    for group in _circular(order, needs):
        named = ", ".join(spelled(cycle) for cycle in cycles(needs, group))
        if len(group) == 1:
            warnings.append(f"{named}: it depends on itself, which changes nothing")
        else:
            warnings.append(f"{named}: these {len(group)} steps depend on each other, so none waits for another")
    return warnings


def _torn(drafts: Iterable[Draft], needs: Needs, left: set[str]) -> list[str]:
    """What is left without something that it needs."""
    return [
        f"{draft.name} is left, but needs {', '.join(gone)}: removed by this plan"
        for draft in drafts
        if draft.effort is Effort.LEAVE and (gone := [need for need in needs[draft.name] if need not in left])
    ]
