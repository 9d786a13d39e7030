"""The `order` of TeardownPolicies: which steps are removed before which others (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

PolicyOrder: TypeAlias = Sequence[Collection[str]]
"""The `order` of one policy: each group of steps is removed before the next one. Steps are named by patterns."""


def order_dependencies(orders: Iterable[PolicyOrder], steps: Collection[str]) -> dict[str, set[str]]:
    """The steps that each step depends on because of these orders. Dependencies are removed later.

    `steps`: names of steps, such as KIND/NAMESPACE/NAME.
    """
    found: dict[str, set[str]] = {step: set() for step in steps}
    for order in orders:
        groups: list[set[str]] = []
        left = set(steps)
        for patterns in order:
            group = {step for step in left if any(is_named(step, pattern) for pattern in patterns)}
            left -= group  # the first group that names a step counts
            groups.append(group)
        for place, group in enumerate(groups):
            later = set[str]().union(*groups[place + 1 :])
            for step in group:
                found[step] |= later
    return {step: needs for step, needs in found.items() if needs}


def is_named(step: str, pattern: str) -> bool:
    """Whether NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME names a step."""
    parts, wanted = step.split("/"), pattern.split("/")
    return len(wanted) <= len(parts) and all(
        fnmatchcase(part, glob) for part, glob in zip(reversed(parts), reversed(wanted), strict=False)
    )
