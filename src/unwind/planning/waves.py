"""Puts the steps of a teardown into waves, from the dependencies of what is deployed on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Effort, Plan, Step
from unwind.planning import drain_order
from unwind.planning.dependency_graph import cycles, graph, ordered_groups, spelled, with_added
from unwind.planning.policy_order import is_named, order_dependencies

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unwind.planning.dependency_graph import Needs
    from unwind.planning.drain_order import DrainOrder
    from unwind.planning.policy_order import PolicyOrder


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A step without its wave: a profile on this cluster, or a Work."""

    name: str
    """Its unique name in the plan."""
    object: ObjectRef
    """The object that it removes: a ClusterSummary or a Work."""
    kind: str
    """The kind that declares its dependencies: ClusterProfile, Profile or Work."""
    namespace: str = ""
    """The namespace of that object; empty for a ClusterProfile."""
    declared: str
    """The name of that object, which others refer to."""
    depends_on: tuple[str, ...] = ()
    """The names that it depends on, of the same kind and in the same namespace."""
    last: bool = False
    """Whether every step that is not last depends on it: the network of a cluster, for example."""
    drains: bool = False
    """Whether it is part of a drain: see `DrainOrder`."""
    effort: Effort
    effort_from: str = ""
    """The policies that decided the effort, if not the object itself did."""
    objects: int = 0


def plan(drafts: Iterable[Draft], orders: Iterable[PolicyOrder] = (), drain: DrainOrder | None = None) -> Plan:
    """The plan: every step with its wave, independent of the input order. `orders`: of all policies. `drain`: what the
    place of a drain depends on.

    If a depends on b, a is removed in an earlier wave. The wave of a step is one more than the longest chain of
    removals that depend on it; the steps of a cycle are in one wave and count as one.

    Steps that are left in place take no time: they are in the first wave, add nothing to a chain, and no step waits for
    them. But order passes through them. If a needs b, b is left in place and b needs c, then a is removed before c:
    while a is being removed it may use b, and b still uses c.
    """
    ordered = sorted(drafts, key=_name)
    needs, warnings = _in_order(ordered, orders)
    needs = _with_drain(needs, ordered, drain)
    needs = _with_last(needs, {draft.name for draft in ordered if draft.last})
    left = {draft.name for draft in ordered if draft.effort is Effort.LEAVE}
    order = ordered_groups(needs)
    waves = _waves(order, needs, left)
    steps = [
        Step(
            name=draft.name,
            object=draft.object,
            effort=draft.effort.value,
            effort_from=draft.effort_from,
            needs=needs[draft.name],
            wave=waves[draft.name],
            objects=draft.objects,
        )
        for draft in ordered
    ]
    steps.sort(key=_wave)  # and by name within a wave, because the sort is stable
    return Plan(
        steps=tuple(steps),
        waves=max(waves.values(), default=0),
        objects=sum(draft.objects for draft in ordered if draft.effort is not Effort.LEAVE),
        warnings=(*warnings, *_broken(order, needs), *_torn(ordered, needs, left)),
    )


def drain_conflicts(drafts: Iterable[Draft], orders: Iterable[PolicyOrder], drain: DrainOrder) -> list[str]:
    """Why the dependencies of steps contradict the order of a drain, in one sentence each."""
    drafts = sorted(drafts, key=_name)
    needs, _ = _in_order(drafts, orders)
    return drain_order.conflicts(needs, *_by_name(drafts, drain))


def circles(plan: Plan) -> tuple[str, ...]:
    """The cycles that the plan breaks, for display: `a → b → c → a`. Empty if there are none."""
    needs = graph(plan)
    return tuple(spelled(cycle) for group in _circular(ordered_groups(needs), needs) for cycle in cycles(needs, group))


def _name(draft: Draft) -> str:
    return draft.name


def _wave(step: Step) -> int:
    return step.wave


def _resolved(drafts: Sequence[Draft]) -> dict[str, tuple[str, ...]]:
    """The dependencies of each step, as names of steps. Dependencies that are not on this cluster are ignored."""
    scopes: dict[tuple[str, str], dict[str, str]] = {}
    for draft in drafts:
        scope = scopes.setdefault((draft.kind, draft.namespace), {})
        if scope.setdefault(draft.declared, draft.name) != draft.name:
            raise ValueError(f"duplicate {draft.kind} {draft.declared}: {scope[draft.declared]}, {draft.name}")
    needs = {
        draft.name: tuple(sorted(set(filter(None, map(scopes[draft.kind, draft.namespace].get, draft.depends_on)))))
        for draft in drafts
    }
    if len(needs) < len(drafts):
        raise ValueError("two steps have the same name")
    return needs


def _with_orders(
    needs: dict[str, tuple[str, ...]], drafts: Sequence[Draft], orders: Iterable[PolicyOrder]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The dependencies, with those of the orders of policies, and warnings. Policies apply where they do not contradict
    the order that a deployer declares."""
    wanted = order_dependencies(orders, [draft.name for draft in drafts])
    if not wanted:
        return needs, []
    both, knots = with_added(needs, wanted)
    warnings = [
        "the order of TeardownPolicies contradicts other dependencies and is not applied between these:"
        f" {', '.join(knot)}; correct it"
        for knot in knots
    ]
    return {name: tuple(sorted(those)) for name, those in both.items()}, warnings


def _in_order(drafts: Sequence[Draft], orders: Iterable[PolicyOrder]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The dependencies of all steps, with those of the orders of policies, and warnings. A drain has an order of its
    own."""
    return _with_orders(_resolved(drafts), [draft for draft in drafts if not draft.drains], orders)


def _with_drain(
    needs: dict[str, tuple[str, ...]], drafts: Sequence[Draft], drain: DrainOrder | None
) -> dict[str, tuple[str, ...]]:
    drains = {draft.name for draft in drafts if draft.drains and draft.effort is not Effort.LEAVE}
    if not (drain and drains):
        return needs
    serving, having = _by_name(drafts, drain)
    serving |= {draft.name: serving.get(draft.name, ()) for draft in drafts if draft.last}
    # A step that is left in place takes no part in the order.
    left = {draft.name for draft in drafts if draft.effort is Effort.LEAVE}
    return drain_order.placed(needs, drains, serving, having, left=left)


def _by_name(
    drafts: Iterable[Draft], drain: DrainOrder
) -> tuple[dict[str, Collection[str]], dict[str, Collection[str]]]:
    """What steps serve and have, by the name of the step."""
    others = [draft for draft in drafts if not draft.drains]
    serving = {
        draft.name: found
        for draft in others
        if (found := drain.serving.get(draft.object.uid)) or any(is_named(draft.name, name) for name in drain.named)
    }
    having = {draft.name: found for draft in others if (found := drain.having.get(draft.object.uid))}
    return {name: found or set() for name, found in serving.items()}, dict(having)


def _with_last(needs: dict[str, tuple[str, ...]], last: set[str]) -> dict[str, tuple[str, ...]]:
    """The dependencies, with those on the last steps. A last step depends on last steps only: that is no cycle."""
    if not last:
        return needs
    return {
        name: tuple(need for need in those if need in last) if name in last else tuple(sorted(last.union(those)))
        for name, those in needs.items()
    }


def _waves(order: Iterable[tuple[str, ...]], needs: Needs, left: set[str]) -> dict[str, int]:
    waves: dict[str, int] = {}
    above = dict.fromkeys(needs, 0)
    """The number of waves that must complete before it."""
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
            warnings.append(f"dependency cycle {named}: the profile depends on itself, which has no effect")
        else:
            warnings.append(f"dependency cycle {named}: these {len(group)} steps are removed in the same wave")
    return warnings


def _torn(drafts: Iterable[Draft], needs: Needs, left: set[str]) -> list[str]:
    """Steps that are left in place without something that they depend on."""
    return [
        f"{draft.name} is left in place, but this plan removes what it depends on: {', '.join(gone)}"
        for draft in drafts
        if draft.effort is Effort.LEAVE and (gone := [need for need in needs[draft.name] if need not in left])
    ]
