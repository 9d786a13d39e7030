"""What the rules know of add-ons (pure)."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from unwind.api.fields import Unknown
from unwind.api.hooks import Hook
from unwind.api.names import KUBERNETES_VERSIONS_ANNOTATION
from unwind.api.sveltos import FeatureStatus, FeatureSummary, HelmChartAction
from unwind.hooks import LONGEST, Rule, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unwind.api.sveltos import ProfileSpec
    from unwind.hooks import Decide


_FAILED = (FeatureStatus.FAILED, FeatureStatus.FAILED_NON_RETRIABLE)


class AddOn(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that is for a cluster, and how far it has come there."""

    profile: str
    """As people call it: `ClusterProfile shop`."""
    versions: str | None = None
    """Which versions of Kubernetes it says it is for."""
    wanted: tuple[str, ...] = ()
    """The features that its summary has to have."""
    features: tuple[FeatureSummary, ...] | None = None
    """What became of them; None where the profile has no summary for this very cluster."""
    waits: str = ""
    """What its summary says it waits for."""
    in_step: bool = True
    """Whether the summary says what the profile says now."""
    refused: str = ""
    """Why Unwind puts nothing new of it anywhere, which the profile itself says, too."""
    dry_run: bool = False


def failures(it: AddOn) -> list[str]:
    """What of an add-on fails, for people. A status that is not known is one that nobody can call well."""
    told: list[str] = []
    for feature in it.features or ():
        status = FeatureStatus.read(feature.status) if feature.status else None
        if isinstance(status, Unknown):
            told.append(f"{feature.feature_id}: its status {status}")
        elif status in _FAILED:
            told.append(f"{feature.feature_id}: {feature.failure_message or 'it does not say why'}")
        elif status is FeatureStatus.PROVISIONING and feature.consecutive_failures:
            # Each new try says Provisioning for a moment, and who asks in that moment must not take it for well.
            told.append(f"{feature.feature_id}: it failed, and is tried again")
    return told


# How a wait is put into words that stay the same as long as the reason does (pure).
#
# Cluster API writes them into the Cluster's conditions: a text that differs each time would be a write each time.

_LONGEST = 240
_SHOWN = 5
# `read tcp 10.0.0.3:48122->10.0.0.9:443: …`: the first port is another one each time.
_FROM = re.compile(r"\S+:[0-9]+->")


def steady(text: str) -> str:
    """Somebody's message on one line, short, without what is different each time."""
    line = _FROM.sub("", " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST].rstrip()} …"


def several(what: Iterable[str]) -> str:
    """All of it, always in the same order, as far as people read."""
    said = sorted(set(what))
    more = ["and others"] if len(said) > _SHOWN else []
    return "; ".join([*said[:_SHOWN], *more])


# Is everything there that a new cluster's add-ons are made of? (pure)

# Seconds. A person creates what is missing, and then looks whether the cluster comes.
_RETRY = 5


class ProfileSource(NamedTuple):
    """A ConfigMap or Secret that a profile refers to."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Lack(msgspec.Struct, frozen=True):
    """Something that a profile refers to and that is not to be had."""

    profile: str
    what: str
    why: str


def sources(spec: ProfileSpec, *, namespace: str) -> list[ProfileSource]:
    """What has to exist for a profile on a cluster of this namespace."""
    found = [
        ProfileSource(ref.kind, ref.namespace or namespace, ref.name) for ref in spec.policy_refs if not ref.optional
    ]
    for chart in spec.helm_charts:
        if chart.helm_chart_action == HelmChartAction.INSTALL:
            found += [
                ProfileSource(item.kind, item.namespace or namespace, item.name)
                for item in chart.values_from
                if not item.optional
            ]
    return list(dict.fromkeys(found))


def before_create(lacks: Iterable[Lack]) -> Wait | None:
    """Wait until nothing is lacking."""
    said = [f"{lack.profile} needs {lack.what}: {steady(lack.why)}" for lack in lacks]
    if not said:
        return None
    return Wait(
        f"waiting for what add-ons are made of: {several(said)}. Whoever looks after these profiles has to provide it",
        _RETRY,
    )


# Are a cluster's add-ons there again after an upgrade? (pure)
#
# What Unwind itself refuses to put anywhere is not waited for: that would never be over because of us, and the profile
# says so already. Nor is what a DryRun would do.

SOON = 2
"""Seconds. What is waited for is mostly under way."""


def after(add_ons: Iterable[AddOn]) -> Wait | None:
    """Wait until each add-on is on the cluster as its profile says now."""
    missing = [why for on in add_ons if not on.dry_run and (why := unsettled(on))]
    return waiting(missing) if missing else None


def waiting(missing: Iterable[str]) -> Wait:
    """The wait for what is missing."""
    return Wait(f"waiting for add-ons to be Provisioned: {several(missing)}", SOON)


def unsettled(it: AddOn) -> str:
    """Why an add-on is not there yet; empty if it is, or if nobody is going to put it there."""
    if it.features is None:
        return "" if it.refused else f"{it.profile} is about to be put on this cluster by Unwind"
    if failing := failures(it):
        return f"{it.profile} fails ({steady(several(failing))}), and whoever looks after it has to mend it"
    there = {feature.feature_id for feature in it.features if feature.status == FeatureStatus.PROVISIONED}
    if any(feature not in there for feature in it.wanted):
        return f"{it.profile} {steady(it.waits) or 'is being deployed by Unwind'}"
    if not it.in_step and not it.refused:
        return f"{it.profile} has changed and is about to be deployed by Unwind"
    return ""


# Which versions of Kubernetes an add-on is for: `>=1.29 <1.34` (pure).
#
# Comparisons, separated by spaces, all of which must hold. Each is one of `>=`, `>`, `<=`, `<`, `=`, `!=` and a version
# of two or three numbers. One of two numbers stands for all its patches: 1.33.5 is `<=1.33`, and is not `>1.33`.

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
# What distributions put behind it (-rc.1, +k3s1, -eks-1234) says nothing that a comparison of numbers could use.
_VERSION = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:[-+][0-9A-Za-z.+-]*)?")


class Comparison(msgspec.Struct, frozen=True):
    """One thing that a version has to satisfy."""

    operator: str
    version: tuple[int, ...]

    def holds(self, version: tuple[int, int, int]) -> bool:
        return _OPERATORS[self.operator](version[: len(self.version)], self.version)


class Range(msgspec.Struct, frozen=True):
    """Some versions of Kubernetes."""

    comparisons: tuple[Comparison, ...]

    def has(self, version: tuple[int, int, int]) -> bool:
        return all(comparison.holds(version) for comparison in self.comparisons)


def read(text: str) -> Range | Unknown:
    """The range that a text says; Unknown where any of it is not understood, or nothing is said."""
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


# May a cluster be upgraded, as far as its add-ons are concerned? (pure)


def before_upgrade(add_ons: Iterable[AddOn], to: Iterable[str]) -> Wait | None:
    """Wait while an add-on fails, or is not for one of the versions that the cluster becomes on its way."""
    wanted = list(dict.fromkeys(to))
    against = [why for on in add_ons for why in _against(on, wanted)]
    if not against:
        return None
    return Wait(f"waiting for add-ons that stand against an upgrade: {several(against)}", LONGEST)


def _against(it: AddOn, to: list[str]) -> Iterator[str]:
    if failing := failures(it):
        yield f"{it.profile} fails ({steady(several(failing))}), and whoever looks after it has to mend it"
    if it.versions is None:
        return
    supported = read(it.versions)
    if isinstance(supported, Unknown):
        yield (
            f"{it.profile} says {KUBERNETES_VERSIONS_ANNOTATION}: {steady(repr(it.versions))}, which cannot be read, "
            "and whoever looks after it has to write it like >=1.29 <1.34"
        )
        return
    for text in to:
        version = number(text)
        if isinstance(version, Unknown):
            yield f"nobody can tell whether {it.profile} supports {text!r}, which is no version"
        elif not supported.has(version):
            yield (
                f"{it.profile} supports Kubernetes {it.versions.strip()} and not {text}, and whoever looks after it "
                f"has to change it and its {KUBERNETES_VERSIONS_ANNOTATION}"
            )


# The rules that come with Unwind: what each is called, where it is asked, and what it does in a line.


class Known(msgspec.Struct, frozen=True):
    """A rule before it is told what to go by."""

    name: str
    hooks: tuple[Hook, ...]
    about: str

    def rules(self, decide: Decide) -> Iterator[Rule]:
        """The rule at each of its hooks, decided by this."""
        for hook in self.hooks:
            yield Rule(name=self.name, hook=hook, decide=decide, about=self.about)


SOURCES_EXIST = Known(
    "sources-exist",
    (Hook.BEFORE_CLUSTER_CREATE,),
    "Wait until the ConfigMaps, Secrets and charts of the profiles for the cluster are there.",
)
DEPLOY_AT_ONCE = Known(
    "deploy-at-once",
    (Hook.AFTER_CONTROL_PLANE_INITIALIZED,),
    "Have add-ons deployed now, and not when the next event or try comes. Nobody waits for it.",
)
ADDONS_ALLOW = Known(
    "addons-allow",
    (Hook.BEFORE_CLUSTER_UPGRADE, Hook.BEFORE_CONTROL_PLANE_UPGRADE, Hook.BEFORE_WORKERS_UPGRADE),
    "Wait while add-ons fail on the cluster, or are not for the version that it is to become.",
)
ADDONS_SETTLED = Known(
    "addons-settled",
    (Hook.AFTER_CONTROL_PLANE_UPGRADE, Hook.AFTER_WORKERS_UPGRADE, Hook.AFTER_CLUSTER_UPGRADE),
    "Wait until the add-ons on the cluster are Provisioned again.",
)
CLEANUP = Known(
    "addons-removed",
    (Hook.BEFORE_CLUSTER_DELETE,),
    "The gate: wait until the add-ons of EnforceRemovePolicies were seen to be absent.",
)

KNOWN = (SOURCES_EXIST, DEPLOY_AT_ONCE, ADDONS_ALLOW, ADDONS_SETTLED, CLEANUP)
