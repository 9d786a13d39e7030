"""Which objects of a plan go and which stay, from what was read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.unit.removal.making import content
from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_POLICY_ANNOTATION, OWNER_LABEL
from unwind.api.unwind import Entry
from unwind.kube.decoding import Metadata
from unwind.preview.removal_forecast import (
    ForecastFate,
    HeldContent,
    PlannedStep,
    fate,
    plain_forecast,
    with_containers,
)

SKIP = {DELETE_POLICY_ANNOTATION: "skip"}
OURS = {OWNER_LABEL: "a"}


def entry(kind: str, name: str, **more: Any) -> Entry:
    namespace = "" if kind in ("Namespace", "CustomResourceDefinition") else "room"
    group = "apiextensions.k8s.io" if kind == "CustomResourceDefinition" else ""
    ref = ObjectRef(group=group, version="v1", kind=kind, namespace=namespace, name=name, uid=name)
    given: dict[str, Any] = {"state": "Confirmed", "resource": f"{kind.lower()}s"} | more
    return Entry(object=ref, **given)


def found(name: str, **more: Any) -> Metadata:
    return msgspec.structs.replace(Metadata(name=name, uid=name, resource_version="1", labels=OURS), **more)


@pytest.mark.parametrize(
    ("entry_", "there", "namespace", "expected"),
    [
        (entry("ConfigMap", "c"), found("c"), None, ForecastFate.GOES),
        (entry("ConfigMap", "c"), None, None, ForecastFate.ABSENT),
        (entry("ConfigMap", "c"), found("c", uid="another"), None, ForecastFate.ABSENT),
        (entry("ConfigMap", "c", adopted=True), found("c"), None, ForecastFate.STAYS),
        (entry("ConfigMap", "c", kept=True), found("c"), None, ForecastFate.STAYS),
        (entry("ConfigMap", "c", kept=True), None, None, ForecastFate.ABSENT),
        (entry("ConfigMap", "c"), found("c", annotations=SKIP), None, ForecastFate.STAYS),
        (entry("ConfigMap", "c"), found("c"), found("room", annotations=SKIP), ForecastFate.STAYS),
        (entry("ConfigMap", "c"), found("c", annotations={DELETE_POLICY_ANNOTATION: "skpi"}), None, ForecastFate.STAYS),
        (entry("ConfigMap", "c"), found("c", labels={OWNER_LABEL: "b"}), None, ForecastFate.STAYS),
        (entry("ConfigMap", "c"), found("c", labels={}), None, ForecastFate.GOES),
        (entry("ConfigMap", "c", state="Intended"), found("c", uid="new"), None, ForecastFate.GOES),
        (entry("ConfigMap", "c", state="Intended"), found("c", labels={}), None, ForecastFate.ABSENT),
    ],
)
def test_one_object(entry_: Entry, there: Metadata | None, namespace: Metadata | None, expected: ForecastFate) -> None:
    assert fate(entry_, there, owner="a", namespace=namespace).fate is expected


def fates(steps: list[PlannedStep], held: dict[str, HeldContent], **there: dict[str, Any]) -> dict[str, ForecastFate]:
    """The fate of each object by name, if all of them exist. `there`: the metadata of some."""
    existing = {}
    for step in steps:
        for it in step.entries:
            ref = it.object
            made = found(ref.name, **({"labels": {OWNER_LABEL: step.owner}} | there.get(ref.name, {})))
            existing[ref.group, ref.kind, ref.namespace, ref.name] = made
    seen = with_containers(steps, plain_forecast(steps, existing), held)
    return {item.entry.object.name: item.fate for some in seen.steps.values() for item in some}


def room(*names: str, **more: Any) -> dict[str, HeldContent]:
    return {"room": HeldContent(content=tuple(content("ConfigMap", name, **more) for name in names))}


NAMESPACE, MAP = entry("Namespace", "room"), entry("ConfigMap", "c")


def test_a_namespace_goes_with_what_its_own_step_removes_and_stays_with_anything_else() -> None:
    step = PlannedStep(owner="a", entries=(NAMESPACE, MAP))
    assert fates([step], room("c", "kube-root-ca.crt")) == {"room": ForecastFate.GOES, "c": ForecastFate.GOES}
    assert fates([step], room("c", "theirs")) == {"room": ForecastFate.STAYS, "c": ForecastFate.GOES}
    assert fates([step], room("c"), c={"annotations": SKIP}) == {"room": ForecastFate.STAYS, "c": ForecastFate.STAYS}


def test_a_namespace_goes_with_objects_that_the_removed_ones_own() -> None:
    step = PlannedStep(owner="a", entries=(NAMESPACE, MAP))
    held = {"room": HeldContent(content=(content("ConfigMap", "c"), content("ConfigMap", "child", "c")))}
    assert fates([step], held)["room"] is ForecastFate.GOES


@pytest.mark.parametrize(("later", "expected"), [((), ForecastFate.GOES), (("b",), ForecastFate.STAYS)])
def test_objects_of_another_step_keep_a_namespace_only_if_they_are_removed_later(
    later: tuple[str, ...], expected: ForecastFate
) -> None:
    steps = [
        PlannedStep(owner="a", entries=(NAMESPACE,), later=frozenset(later)),
        PlannedStep(owner="b", entries=(MAP,), wave=2),
    ]
    assert fates(steps, room("c"))["room"] is expected


def test_what_is_taken_along_is_named_and_goes_whatever_its_policy_says() -> None:
    step = PlannedStep(owner="a", entries=(NAMESPACE, MAP), take_along=True)
    existing = {
        ("", "Namespace", "", "room"): found("room"),
        ("", "ConfigMap", "room", "c"): found("c", annotations=SKIP),
    }
    seen = with_containers([step], plain_forecast([step], existing), room("c", "theirs"))
    assert [item.fate for item in seen.steps["a"]] == [ForecastFate.GOES, ForecastFate.GOES]
    assert [ref.name for ref in seen.along] == ["theirs"]


def test_a_definition_stays_with_foreign_resources_and_the_leases_of_removed_workloads_keep_nothing() -> None:
    definition = entry("CustomResourceDefinition", "gadgets.example.dev")
    step = PlannedStep(owner="a", entries=(definition,))
    held = {"gadgets.example.dev": HeldContent(content=(content("Gadget", "theirs", group="example.dev"),))}
    assert fates([step], held) == {"gadgets.example.dev": ForecastFate.STAYS}
    deployment = Entry(
        object=ObjectRef(group="apps", version="v1", kind="Deployment", namespace="room", name="web", uid="web"),
        resource="deployments",
        state="Confirmed",
    )
    lease = content("Lease", "lock", group="coordination.k8s.io")
    for holder, expected in (
        ("web-7d4f", ForecastFate.GOES),
        ("other-7d4f", ForecastFate.STAYS),
        (None, ForecastFate.GOES),
    ):
        contained = {"room": HeldContent(content=(lease,), holders={"lock": holder})}
        step = PlannedStep(owner="a", entries=(NAMESPACE, deployment))
        assert fates([step], contained)["room"] is expected


@pytest.mark.parametrize(
    ("kind", "take_along", "expected"),
    [("Pod", True, ForecastFate.STAYS), ("ConfigMap", True, ForecastFate.GOES), ("Pod", False, ForecastFate.STAYS)],
)
def test_a_cascading_namespace_stays_only_with_what_is_in_it_after_its_own_objects_are_removed(
    kind: str, take_along: bool, expected: ForecastFate
) -> None:
    step = PlannedStep(owner="a", entries=(NAMESPACE, MAP), take_along=take_along, tried=True)
    existing = {("", "Namespace", "", "room"): found("room"), ("", "ConfigMap", "room", "c"): found("c")}
    first = plain_forecast([step], existing)

    def of_room(*more: Any) -> ForecastFate:
        pods = frozenset(it.metadata.uid for it in (content("Pod", "ours"), *more) if it.resource.kind == "Pod")
        inside = (content("ConfigMap", "c"), content("Pod", "ours", "c"), *more)
        held = {"room": HeldContent(content=inside, counted=pods)}
        seen = with_containers([step], first, held, {"room": "protected"})
        return next(item.fate for item in seen.steps["a"] if item.entry.object.name == "room")

    assert of_room() is ForecastFate.GOES
    assert of_room(content(kind, "theirs")) is expected
