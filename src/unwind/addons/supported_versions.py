"""The Kubernetes versions that an add-on declares to support: `>=1.29 <1.34` (pure).

Comparisons, separated by spaces, all of which must hold. Each is one of `>=`, `>`, `<=`, `<`, `=`, `!=` and a version
of two or three numbers. Two numbers stand for all patches of that minor: 1.33.5 is `<=1.33`, and is not `>1.33`.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.fields import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "=": operator.eq,
    "!=": operator.ne,
}
_NUMBER = "(0|[1-9][0-9]{0,8})"
_COMPARISON = re.compile(rf"(>=|<=|!=|>|<|=) *v?{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?(?: +|$)")
# Suffixes of distributions (-rc.1, +k3s1, -eks-1234) are not part of the comparison.
_VERSION = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:[-+][0-9A-Za-z.+-]*)?")


class Comparison(msgspec.Struct, frozen=True):
    """One comparison that a version must satisfy."""

    operator: str
    version: tuple[int, ...]

    def holds(self, version: tuple[int, int, int]) -> bool:
        return _OPERATORS[self.operator](version[: len(self.version)], self.version)


class Range(msgspec.Struct, frozen=True):
    """A range of Kubernetes versions."""

    comparisons: tuple[Comparison, ...]

    def has(self, version: tuple[int, int, int]) -> bool:
        return all(comparison.holds(version) for comparison in self.comparisons)


def read(text: str) -> Range | Unknown:
    """The parsed range; Unknown if any part is invalid, or the text is empty."""
    found: list[Comparison] = []
    rest = text.strip()
    while rest:
        match = _COMPARISON.match(rest)
        if match is None:
            return Unknown(text)
        sign, *numbers = match.groups()
        found.append(Comparison(sign, tuple(int(number) for number in numbers if number is not None)))
        rest = rest[match.end() :]
    return Range(tuple(found)) if found else Unknown(text)


def number(text: str) -> tuple[int, int, int] | Unknown:
    """A version as Cluster API writes it (v1.31.2), as numbers."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return Unknown(text)
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch)
