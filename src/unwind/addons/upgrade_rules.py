"""The hook rules about add-ons at upgrades: healthy before, supporting the new version, Provisioned after (pure).

An add-on declares the Kubernetes versions that it supports: `>=1.29 <1.34`. Comparisons are separated by spaces, and
all of them must hold. Each is one of `>=`, `>`, `<=`, `<`, `=`, `!=` and a version of two or three numbers. Two numbers
stand for all patches of that minor: 1.33.5 is `<=1.33`, and is not `>1.33`.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.addons.hook_rule_catalogue import several, steady
from unwind.api.fields import Unknown
from unwind.api.names import KUBERNETES_VERSIONS_ANNOTATION
from unwind.api.sveltos import FeatureStatus, FeatureSummary
from unwind.hooks import LONGEST, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
_FAILED = (FeatureStatus.FAILED, FeatureStatus.FAILED_NON_RETRIABLE)


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


def parse_range(text: str) -> Range | Unknown:
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


def version_number(text: str) -> tuple[int, int, int] | Unknown:
    """A version as Cluster API writes it (v1.31.2), as numbers."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return Unknown(text)
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch)


class AddOn(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that matches a cluster, and its state there."""

    profile: str
    """Kind and name: `ClusterProfile shop`."""
    versions: str | None = None
    """The Kubernetes versions that it declares to support."""
    wanted: tuple[str, ...] = ()
    """The features that its summary must have."""
    features: tuple[FeatureSummary, ...] | None = None
    """Their status; None if the profile has no summary for this cluster's uid."""
    waits: str = ""
    """The reason why its summary waits."""
    in_step: bool = True
    """Whether the summary equals the current profile."""
    refused: str = ""
    """Why Unwind deploys nothing new of it; the profile's condition says the same."""
    dry_run: bool = False


def failures(it: AddOn) -> list[str]:
    """The failures of an add-on, for people. An unknown status counts as a failure."""
    told: list[str] = []
    for feature in it.features or ():
        status = FeatureStatus.read(feature.status) if feature.status else None
        if isinstance(status, Unknown):
            told.append(f"{feature.feature_id}: status {status}")
        elif status in _FAILED:
            told.append(f"{feature.feature_id}: {feature.failure_message or 'no failure message'}")
        elif status is FeatureStatus.PROVISIONING and feature.consecutive_failures:
            # Each retry sets Provisioning for a moment; a request at that moment must not read it as healthy.
            told.append(f"{feature.feature_id}: failed, retrying")
    return told


# Before an upgrade: add-ons must be healthy and support the new version.


def before_upgrade(add_ons: Iterable[AddOn], to: Iterable[str]) -> Wait | None:
    """Wait while an add-on fails, or does not support a version on the upgrade path."""
    wanted = list(dict.fromkeys(to))
    against = [why for on in add_ons for why in _against(on, wanted)]
    if not against:
        return None
    return Wait(f"waiting for add-ons that block the upgrade: {several(against)}", LONGEST)


def _against(it: AddOn, to: list[str]) -> Iterator[str]:
    if failing := failures(it):
        yield f"{it.profile} fails ({steady(several(failing))}); fix the profile"
    if it.versions is None:
        return
    supported = parse_range(it.versions)
    if isinstance(supported, Unknown):
        yield (
            f"{it.profile}: annotation {KUBERNETES_VERSIONS_ANNOTATION}: invalid value {steady(repr(it.versions))}; "
            "use a range such as >=1.29 <1.34"
        )
        return
    for text in to:
        version = version_number(text)
        if isinstance(version, Unknown):
            yield (
                f"cannot check whether {it.profile} supports Kubernetes {text!r}, which is not a version; correct the"
                " version of the Cluster"
            )
        elif not supported.has(version):
            yield (
                f"{it.profile} supports Kubernetes {it.versions.strip()}, not {text}; update the add-on and its "
                f"{KUBERNETES_VERSIONS_ANNOTATION} annotation"
            )


# After an upgrade: add-ons must be Provisioned again. Profiles that Unwind refuses are
# not waited for: that would never end, and their conditions report it. Nor are profiles in DryRun mode.

SOON = 2
"""Seconds. Most of these waits are short."""


def after(add_ons: Iterable[AddOn]) -> Wait | None:
    """Wait until each add-on is deployed as its current profile says."""
    missing = [why for on in add_ons if not on.dry_run and (why := undeployed(on))]
    return waiting(missing) if missing else None


def waiting(missing: Iterable[str]) -> Wait:
    """The wait for the given add-ons."""
    return Wait(f"waiting for add-ons to be Provisioned: {several(missing)}", SOON)


def undeployed(it: AddOn) -> str:
    """Why an add-on is not deployed yet; empty if it is, or if Unwind does not deploy it."""
    if it.features is None:
        return "" if it.refused else f"{it.profile} is not deployed yet"
    if failing := failures(it):
        return f"{it.profile} fails ({steady(several(failing))}); fix the profile"
    there = {feature.feature_id for feature in it.features if feature.status == FeatureStatus.PROVISIONED}
    if any(feature not in there for feature in it.wanted):
        return f"{it.profile}: {steady(it.waits) or 'deployment in progress'}"
    if not it.in_step and not it.refused:
        return f"{it.profile} has changed and is not deployed yet"
    return ""
