"""Validates profiles: unknown values, unsupported fields and cycles, and the conditions that report them (pure).

A profile with an unsupported field is refused as a whole: each of these fields changes what is deployed, where, or when
it is removed. `continueOnError` and `continueOnConflict` are accepted without effect: a failed object or a conflict
never stops the other objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec

from unwind.addons import matching
from unwind.api.fields import Unknown
from unwind.api.meta import with_condition, without_condition
from unwind.api.names import (
    SVELTOS_LUA_ANNOTATION,
    SVELTOS_PAUSED_ANNOTATION,
    SVELTOS_SUBRESOURCES_ANNOTATION,
    SVELTOS_TEMPLATE_ANNOTATION,
    ConditionType,
    Reason,
)
from unwind.api.sveltos import (
    PROFILES,
    DeploymentType,
    HelmChart,
    HelmChartAction,
    PolicyRef,
    ProfileSpec,
    SourceKind,
    SyncMode,
)
from unwind.helm import charts
from unwind.planning.dependency_graph import spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from unwind.addons.matching import ProfileKey
    from unwind.api.meta import Condition
    from unwind.teardown.deletion_gate import GateFault


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
    """The unsupported fields by path; empty if there are none.

    `raw`: the undecoded spec. Sveltos' own CRDs may allow fields that Unwind does not know.
    """
    return list(_in_spec(spec, raw or {}))


def in_source(annotations: Mapping[str, str]) -> list[str]:
    """The unsupported annotations of a ConfigMap or Secret."""
    return [f"annotation {name}" for name in _ANNOTATIONS if name in annotations]


def is_template(text: str) -> bool:
    """Whether the text is a Sveltos template."""
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
    yield from _unknown_fields(raw, ProfileSpec, "")
    for name, model in (("policyRefs", PolicyRef), ("helmCharts", HelmChart)):
        items = raw.get(name)
        for number, item in enumerate(items if isinstance(items, Sequence) else ()):
            yield from _unknown_fields(item, model, f"{name}[{number}].")


@cache
def _encoded(model: type[msgspec.Struct]) -> Mapping[str, str]:
    """The JSON names of a model's fields. Cached: computing them takes milliseconds, and every event needs them for
    every profile (it was a third of the manager's CPU time)."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(model)}


def _unknown_fields(raw: object, model: type[msgspec.Struct], path: str) -> Iterator[str]:
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
            yield f"{field} (template)"


def _in_chart(chart: HelmChart) -> Iterator[str]:
    names = _encoded(HelmChart)
    if isinstance(HelmChartAction.read(chart.helm_chart_action), Unknown):
        yield f"helmChartAction {chart.helm_chart_action}"
    for field in _CHART_TEMPLATES:
        if is_template(getattr(chart, field)):
            yield f"{names[field]} (template)"


# Objections


class Objections(msgspec.Struct, frozen=True, kw_only=True):
    """The objections against a profile, for people."""

    unknown: tuple[str, ...] = ()
    """Unknown values of enumerations."""
    unsupported: tuple[str, ...] = ()
    """Unsupported fields."""
    mistaken: tuple[str, ...] = ()
    """Invalid references and selectors."""
    clusters: tuple[str, ...] = ()
    """What is not understood of the clusters that it selects, as whole sentences."""

    @property
    def any(self) -> bool:
        return bool(self.unknown or self.unsupported)


def objections(key: ProfileKey, spec: ProfileSpec, unread: Iterable[str] = ()) -> Objections:
    """The objections against a profile. `unread`: the paths of its unknown fields."""
    unknown, unread = tuple(_unknown(spec)), tuple(unread)
    return Objections(
        unknown=unknown,
        unsupported=(*sorted(unread), *_unsupported(key, spec, unknown)),
        mistaken=(*matching.misread(spec.cluster_selector), *matching.misnamed(key, spec)),
        clusters=tuple(matching.not_understood(key, spec, unread)),
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
    found += [f"dependsOn[{place}] (template)" for place, name in enumerate(spec.depends_on) if is_template(name)]
    for place, chart in enumerate(spec.helm_charts):
        found += charts.unsupported(chart, name=f"helmCharts[{place}]")
    for item in found:
        # Report an unknown value once, not also as unsupported.
        field = item.partition(" ")[0].rstrip(":")
        if field not in said:
            said.add(field)
            yield item
    for place, reference in enumerate(spec.policy_refs):
        if reference.deployment_type == DeploymentType.LOCAL and key.kind == PROFILES.kind:
            # The author of a Profile in one namespace would create objects in the management cluster with our
            # permissions.
            yield f"policyRefs[{place}].deploymentType Local in a Profile (use Remote, or a ClusterProfile)"


class HeldProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing new of a profile is deployed."""

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
            parts.append(f"unknown value: {'; '.join(self.objections.unknown)}")
        if self.objections.unsupported:
            parts.append(f"not supported: {', '.join(self.objections.unsupported)}; remove it from the profile")
        if self.cycle:
            parts.append(f"dependency cycle: {spelled(self.cycle)}; remove one of them from dependsOn")
        return ". ".join(parts)


def unknown_clusters(faults: Iterable[str]) -> str:
    """What follows if it is not known which clusters a profile selects, for people."""
    return (
        f"{'; '.join(faults)}; nothing is removed from clusters that stay, and nothing is deployed to more clusters,"
        " until it is corrected or the profile is deleted"
    )


# What waits for the correction of an unknown value. All other values only matter for the deployment.
_HELD = {
    "stopMatchingBehavior": "nothing is removed from clusters that stay until it is corrected",
    "clusterDeletionBehavior": "nothing is removed from clusters that are deleted until it is corrected",
}


def unknown_value(unknown: Iterable[str], clusters: Iterable[str]) -> str:
    """The message of the condition UnknownValue; empty if all values are known."""
    effects: dict[str, list[str]] = {}
    for item in unknown:
        effect = _HELD.get(item.partition(":")[0], "nothing new is deployed until it is corrected")
        effects.setdefault(effect, []).append(item)
    told = [f"{'; '.join(items)}; {effect}" for effect, items in effects.items()]
    return ". ".join([*told, *([unknown_clusters(faults)] if (faults := tuple(clusters)) else [])])


def profile_conditions(
    before: tuple[Condition, ...],
    held: HeldProfile | None,
    mistaken: Iterable[str],
    *,
    clusters: Iterable[str] = (),
    unarmed: GateFault | Unknown | None = None,
    unavailable: GateFault | None = None,
    served: bool,
    paused: bool = False,
    reason: Reason,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions of a profile; the same tuple if nothing changes.

    `mistaken`: errors that do not stop the deployment, with their `reason`. `clusters`: what is not understood of the
    clusters that it selects. `served`: whether the API server serves
    clusterDeletionBehavior. `unarmed`: why its clusters are not blocked; while Unknown, that condition stays as it is.
    `unavailable`: why the deletion of some of its clusters can never be blocked.
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
            unknown_value(held.objections.unknown if held else (), clusters),
        ),
        (
            ConditionType.FIELD_NOT_SERVED,
            Reason.FIELD_NOT_SERVED,
            ""
            if served
            else "the API server does not serve spec.clusterDeletionBehavior, so its last known value applies; run"
            " `unwind install` to add the field",
        ),
        (
            ConditionType.PAUSED,
            Reason.PAUSED,
            f"annotation {SVELTOS_PAUSED_ANNOTATION} is set: nothing is deployed, changed or removed until it is"
            " removed"
            if paused
            else "",
        ),
    ]
    faults = [(ConditionType.GATE_NOT_AVAILABLE, unavailable)]
    if not isinstance(unarmed, Unknown):
        faults.append((ConditionType.GATE_NOT_ARMED, unarmed))
    for type_, fault in faults:
        told.append((type_, fault.reason if fault else Reason.NOT_REGISTERED, fault.message if fault else ""))
    for type_, why, message in told:
        if not message:
            after = without_condition(after, type_)
        else:
            after = with_condition(
                after, type=type_, status=True, reason=why, message=message, generation=generation, now=now
            )
    return after


def unknown_fields(raw: Any, model: Any, path: str = "") -> list[str]:
    """The paths of a document's fields that the model does not have."""
    if isinstance(raw, list):
        inner = get_args(model)[0] if get_origin(model) is tuple else Any
        return [field for place, item in enumerate(raw) for field in unknown_fields(item, inner, f"{path}[{place}]")]
    if not isinstance(raw, Mapping) or not (isinstance(model, type) and issubclass(model, msgspec.Struct)):
        return []
    fields = _types(model)
    found: list[str] = []
    for name, value in raw.items():
        where = f"{path}.{name}" if path else name
        found += unknown_fields(value, fields[name], where) if name in fields else [where]
    return found


@cache
def _types(model: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The types of a model's fields by JSON name. Cached: computing them takes milliseconds."""
    types = get_type_hints(model)
    return {field.encode_name: types[field.name] for field in msgspec.structs.fields(model)}
