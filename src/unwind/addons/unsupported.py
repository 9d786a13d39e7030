"""What a profile asks for that Unwind does not do yet (pure). Such a profile is told so, and not half-applied.

Each of these changes what is deployed, where, or when it goes; passed over in silence, a profile would look as if it
had been carried out. Not among them, because they change nothing that could be missed: `continueOnError` and
`continueOnConflict`. Whether one object fails or is somebody else's, the others are always deployed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Unknown
from unwind.api.names import SVELTOS_LUA_ANNOTATION, SVELTOS_SUBRESOURCES_ANNOTATION, SVELTOS_TEMPLATE_ANNOTATION
from unwind.api.sveltos import DeploymentType, HelmChart, HelmChartAction, PolicyRef, ProfileSpec, SourceKind, SyncMode

if TYPE_CHECKING:
    from collections.abc import Iterator

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
