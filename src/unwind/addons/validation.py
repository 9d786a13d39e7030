"""What a profile asks for that Unwind does not do yet (pure). Such a profile is told so, and not half-applied.

Each of these changes what is deployed, where, or when it goes; passed over in silence, a profile would look as if it
had been carried out. Not among them, because they change nothing that could be missed: `continueOnError` and
`continueOnConflict`. Whether one object fails or is somebody else's, the others are always deployed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec

from unwind.addons import matching
from unwind.api.fields import Unknown
from unwind.api.meta import find, with_condition, without_condition
from unwind.api.names import (
    SVELTOS_LUA_ANNOTATION,
    SVELTOS_SUBRESOURCES_ANNOTATION,
    SVELTOS_TEMPLATE_ANNOTATION,
    ConditionType,
    Reason,
)
from unwind.api.sveltos import (
    PROFILES,
    ClusterDeletionBehavior,
    ClusterType,
    DeploymentType,
    HelmChart,
    HelmChartAction,
    PolicyRef,
    ProfileSpec,
    SourceKind,
    SyncMode,
)
from unwind.helm import charts
from unwind.kube.events import Regarding
from unwind.planning.ordering import spelled
from unwind.teardown.gate import GateFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from unwind.addons.caches import SeenProfile
    from unwind.addons.matching import ProfileKey
    from unwind.api.meta import Condition
    from unwind.api.resources import Resource
    from unwind.kube.events import Recorder
    from unwind.members.targets import AddonTarget
    from unwind.teardown.gate import GateStatus


_FIELDS = (
    "set_refs",
    "kustomization_refs",
    "template_resource_refs",
    "pre_deploy_checks",
    "validate_healths",
    "pre_delete_checks",
    "post_delete_checks",
    "drift_exclusions",
    "patches",
    "reloader",
    "max_update",
)
_SOURCES = (SourceKind.CONFIG_MAP, SourceKind.SECRET)
_ANNOTATIONS = (SVELTOS_TEMPLATE_ANNOTATION, SVELTOS_LUA_ANNOTATION, SVELTOS_SUBRESOURCES_ANNOTATION)
_CHART_TEMPLATES = ("repository_url", "chart_name", "chart_version", "release_name", "release_namespace", "values")


def in_spec(spec: ProfileSpec, *, raw: Mapping[str, object] | None = None) -> list[str]:
    """What is not supported, each by its path; nothing if all is.

    `raw`: the spec as it came. Sveltos' own CRDs may let fields pass that Unwind has never heard of.
    """
    return list(_in_spec(spec, raw or {}))


def in_source(annotations: Mapping[str, str]) -> list[str]:
    """What is not supported of a ConfigMap or Secret, by its annotations."""
    return [f"the annotation {name}" for name in _ANNOTATIONS if name in annotations]


def is_template(text: str) -> bool:
    """Whether Sveltos would fill something in."""
    return "{{" in text


def _in_spec(spec: ProfileSpec, raw: Mapping[str, object]) -> Iterator[str]:
    names = _encoded(ProfileSpec)
    for field in _FIELDS:
        if getattr(spec, field):
            yield names[field]
    mode = SyncMode.read(spec.sync_mode)
    if isinstance(mode, Unknown) or mode is SyncMode.CONTINUOUS_WITH_DRIFT_DETECTION:
        yield f"syncMode {spec.sync_mode}"
    for number, ref in enumerate(spec.policy_refs):
        for what in _in_ref(ref):
            yield f"policyRefs[{number}].{what}"
    for number, chart in enumerate(spec.helm_charts):
        for what in _in_chart(chart):
            yield f"helmCharts[{number}].{what}"
    yield from _unheard_of(raw, ProfileSpec, "")
    for name, model in (("policyRefs", PolicyRef), ("helmCharts", HelmChart)):
        items = raw.get(name)
        for number, item in enumerate(items if isinstance(items, Sequence) else ()):
            yield from _unheard_of(item, model, f"{name}[{number}].")


@cache
def _encoded(model: type[msgspec.Struct]) -> Mapping[str, str]:
    """What the fields of a model are called in documents. Found out once: it takes milliseconds, and is asked for every
    profile at every event (seen: a third of all the manager's time)."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(model)}


def _unheard_of(raw: object, model: type[msgspec.Struct], path: str) -> Iterator[str]:
    known = set(_encoded(model).values())
    for field in sorted(set(raw) - known if isinstance(raw, Mapping) else ()):
        yield f"{path}{field}"


def _in_ref(ref: PolicyRef) -> Iterator[str]:
    if SourceKind.read(ref.kind) not in _SOURCES:
        yield f"kind {ref.kind}"
    if ref.path:
        yield "path"
    if isinstance(DeploymentType.read(ref.deployment_type), Unknown):
        yield f"deploymentType {ref.deployment_type}"
    for field in ("namespace", "name"):
        if is_template(getattr(ref, field)):
            yield f"{field} that is a template"


def _in_chart(chart: HelmChart) -> Iterator[str]:
    names = _encoded(HelmChart)
    if isinstance(HelmChartAction.read(chart.helm_chart_action), Unknown):
        yield f"helmChartAction {chart.helm_chart_action}"
    for field in _CHART_TEMPLATES:
        if is_template(getattr(chart, field)):
            yield f"{names[field]} that is a template"


# Whether a profile can be carried out as it is written (pure). What cannot is told, and not half done.


class Objections(msgspec.Struct, frozen=True, kw_only=True):
    """What stands against a profile, for people."""

    unknown: tuple[str, ...] = ()
    """Words that are not on the list."""
    unsupported: tuple[str, ...] = ()
    """Fields that Unwind cannot do yet."""
    mistaken: tuple[str, ...] = ()
    """References and selectors that mean nothing."""

    @property
    def any(self) -> bool:
        return bool(self.unknown or self.unsupported)


def objections(key: ProfileKey, spec: ProfileSpec, unread: Iterable[str] = ()) -> Objections:
    """What stands against carrying it out. `unread`: the fields that it has and that are not known here at all."""
    unknown = tuple(_unknown(spec))
    return Objections(
        unknown=unknown,
        unsupported=(*sorted(unread), *_unsupported(key, spec, unknown)),
        mistaken=(*matching.misread(spec.cluster_selector), *matching.misnamed(key, spec)),
    )


def _unknown(spec: ProfileSpec) -> Iterator[str]:
    words: list[tuple[str, object]] = [
        ("syncMode", SyncMode.read(spec.sync_mode)),
        ("stopMatchingBehavior", spec.stop_matching),
        ("clusterDeletionBehavior", spec.deletion),
    ]
    for place, reference in enumerate(spec.policy_refs):
        words.append((f"policyRefs[{place}].kind", SourceKind.read(reference.kind)))
        words.append((f"policyRefs[{place}].deploymentType", DeploymentType.read(reference.deployment_type)))
    for place, chart in enumerate(spec.helm_charts):
        words.append((f"helmCharts[{place}].helmChartAction", HelmChartAction.read(chart.helm_chart_action)))
        words += [(f"helmCharts[{place}].valuesFrom.kind", SourceKind.read(item.kind)) for item in chart.values_from]
    yield from (f"{field}: {word}" for field, word in words if isinstance(word, Unknown))


def _unsupported(key: ProfileKey, spec: ProfileSpec, unknown: Iterable[str]) -> Iterator[str]:
    said = {item.partition(":")[0] for item in unknown}
    found = in_spec(spec)
    for place, chart in enumerate(spec.helm_charts):
        found += charts.unsupported(chart, name=f"helmCharts[{place}]")
    for item in found:
        # A word that is not known is not supported either; to say so twice helps nobody.
        field = item.partition(" ")[0].rstrip(":")
        if field not in said:
            said.add(field)
            yield item
    for place, reference in enumerate(spec.policy_refs):
        if reference.deployment_type == DeploymentType.LOCAL and key.kind == PROFILES.kind:
            # Whoever may write a Profile in one namespace would put things into the management cluster with our rights.
            yield f"policyRefs[{place}].deploymentType Local in a Profile"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing new of a profile is put anywhere."""

    objections: Objections
    cycle: tuple[str, ...] | None = None

    @property
    def reason(self) -> Reason:
        if self.objections.unknown:
            return Reason.UNKNOWN_VALUE
        return Reason.NOT_SUPPORTED if self.objections.unsupported else Reason.CYCLE

    def __str__(self) -> str:
        parts: list[str] = []
        if self.objections.unknown:
            parts.append(f"not known: {'; '.join(self.objections.unknown)}")
        if self.objections.unsupported:
            parts.append(f"not supported yet: {', '.join(self.objections.unsupported)}")
        if self.cycle:
            parts.append(f"it depends on itself: {spelled(self.cycle)}")
        return ". ".join(parts)


def conditions(
    before: tuple[Condition, ...],
    held: Held | None,
    mistaken: Iterable[str],
    *,
    unarmed: GateFault | Unknown | None = None,
    served: bool,
    reason: Reason,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """What is said of a profile; the very same tuple where that changes nothing.

    `mistaken`: what is wrong and holds nothing up, with its `reason`. `served`: whether clusterDeletionBehavior is.
    `unarmed`: why clusters of it are not held; where that is not known, what was said of it stays.
    """
    said = ". ".join([*([str(held)] if held else []), *mistaken])
    after = with_condition(
        before,
        type=ConditionType.ACCEPTED,
        status=not said,
        reason=Reason.ACCEPTED if not said else held.reason if held else reason,
        message=said,
        generation=generation,
        now=now,
    )
    told: list[tuple[ConditionType, Reason, str]] = [
        (
            ConditionType.UNKNOWN_VALUE,
            Reason.UNKNOWN_VALUE,
            f"{'; '.join(held.objections.unknown)}: nothing is removed because of it"
            if held and held.objections.unknown
            else "",
        ),
        (
            ConditionType.FIELD_NOT_SERVED,
            Reason.FIELD_NOT_SERVED,
            "" if served else "the API server does not serve spec.clusterDeletionBehavior: the last known value holds",
        ),
    ]
    if not isinstance(unarmed, Unknown):
        told.append(
            (
                ConditionType.GATE_NOT_ARMED,
                unarmed.reason if unarmed else Reason.NOT_REGISTERED,
                unarmed.message if unarmed else "",
            )
        )
    for type_, why, message in told:
        if not message:
            after = without_condition(after, type_)
        else:
            after = with_condition(
                after, type=type_, status=True, reason=why, message=message, generation=generation, now=now
            )
    return after


def unread(raw: Any, model: Any, path: str = "") -> list[str]:
    """The fields of a document that a model does not have, as paths. What nobody reads cannot be carried out."""
    if isinstance(raw, list):
        inner = get_args(model)[0] if get_origin(model) is tuple else Any
        return [one for place, item in enumerate(raw) for one in unread(item, inner, f"{path}[{place}]")]
    if not isinstance(raw, Mapping) or not (isinstance(model, type) and issubclass(model, msgspec.Struct)):
        return []
    fields = _types(model)
    found: list[str] = []
    for name, value in raw.items():
        where = f"{path}.{name}" if path else name
        found += unread(value, fields[name], where) if name in fields else [where]
    return found


@cache
def _types(model: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The types of a model's fields, by what they are called in documents. To find that out takes milliseconds."""
    types = get_type_hints(model)
    return {field.encode_name: types[field.name] for field in msgspec.structs.fields(model)}


# What a profile says of clusters that must wait for it, and that Cluster API would take apart without asking.


class Gated:
    """Knows it of every profile; without a gate there is nothing to know."""

    def __init__(self, gate: GateStatus | None, recorder: Recorder | None, changed: Callable[[], None]) -> None:
        """`changed` is told when it may be something else."""
        self._gate = gate
        self._recorder = recorder
        if gate:
            gate.subscribe(changed)

    def why_not(self, profile: SeenProfile, clusters: Iterable[AddonTarget]) -> GateFault | Unknown | None:
        """Why some of the clusters that a profile matches are not held; Unknown if that is not known yet."""
        if self._gate is None or not holds(profile):
            return None
        return unarmed(clusters, self._gate.why_not) if self._gate.known else Unknown("whether Cluster API asks")

    def report(self, resource: Resource, profile: SeenProfile, now: tuple[Condition, ...]) -> None:
        """Tell in an Event that it has begun, where it has."""
        found = find(now, ConditionType.GATE_NOT_ARMED)
        if self._recorder and found and find(profile.status.conditions, ConditionType.GATE_NOT_ARMED) is None:
            meta = profile.metadata
            it = Regarding(resource.api_version, resource.kind, meta.name, meta.uid, meta.namespace)
            self._recorder.report(it, found.type, found.message, action="Hold", type="Warning")


def holds(profile: SeenProfile) -> bool:
    """Whether clusters wait for it when they are deleted."""
    return profile.spec.deletion is ClusterDeletionBehavior.ENFORCE


def unarmed(clusters: Iterable[AddonTarget], why_not: Callable[[str], GateFault | None]) -> GateFault | None:
    """Why Cluster API would take some of these clusters apart without asking; None if it would none (pure)."""
    faults: dict[GateFault, list[str]] = {}
    for cluster in clusters:
        # About others nobody is ever asked, and no gate makes them wait.
        if cluster.type is ClusterType.CAPI and cluster.has_class and (fault := why_not(cluster.ref.namespace)):
            faults.setdefault(fault, []).append(f"{cluster.ref.namespace}/{cluster.ref.name}")
    if not faults:
        return None
    # In an order that does not change by itself: what is said is written only where it is something else.
    told = sorted(faults.items(), key=lambda item: min(item[1]))
    message = "; ".join(f"Cluster API does not wait for the removal from {_some(names)}: {why}" for why, names in told)
    return GateFault(told[0][0].reason, message)


def _some(names: list[str]) -> str:
    return f"{min(names)} and {len(names) - 1} more" if len(names) > 1 else names[0]
