"""Whether a profile can be carried out as it is written (pure). What cannot is told, and not half done."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import msgspec

from unwind.addons import charts, unsupported
from unwind.api.conditions import with_condition, without_condition
from unwind.api.fields import Unknown
from unwind.api.names import ConditionType, Reason
from unwind.api.sveltos import (
    PROFILES,
    DeploymentType,
    HelmChartAction,
    ProfileSpec,
    SourceKind,
    SyncMode,
)
from unwind.controllers.addons import matching
from unwind.planning.cycles import spelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from unwind.api.meta import Condition
    from unwind.controllers.addons.matching import ProfileKey
    from unwind.gating.arming import Fault


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
        words += [(f"helmCharts[{place}].valuesFrom.kind", SourceKind.read(one.kind)) for one in chart.values_from]
    yield from (f"{field}: {word}" for field, word in words if isinstance(word, Unknown))


def _unsupported(key: ProfileKey, spec: ProfileSpec, unknown: Iterable[str]) -> Iterator[str]:
    said = {one.partition(":")[0] for one in unknown}
    found = unsupported.in_spec(spec)
    for place, chart in enumerate(spec.helm_charts):
        found += charts.unsupported(chart, name=f"helmCharts[{place}]")
    for one in found:
        # A word that is not known is not supported either; to say so twice helps nobody.
        field = one.partition(" ")[0].rstrip(":")
        if field not in said:
            said.add(field)
            yield one
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
    unarmed: Fault | Unknown | None = None,
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
    return {one.encode_name: types[one.name] for one in msgspec.structs.fields(model)}
