from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.policies import SourceKind
from unwind.api.unwind import Effort, Entry, EntryState, Step
from unwind.cli import plan
from unwind.companions.companion import Handle, HandleEntry
from unwind.companions.snapshots import Snapshot
from unwind.companions.step_source import HandleDecision
from unwind.members.member import Member
from unwind.members.targets import ClusterTarget
from unwind.preview import companion_preview
from unwind.preview.companion_preview import NO_POLICY, CompanionPreview, HandleOutlook, foreseen_handle
from unwind.preview.removal_forecast import ForecastFate
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from unwind.preview.removal_forecast import ObjectForecast
    from unwind.removal.deletion_scope import Told

WEB = ObjectRef(group="addons.cluster.x-k8s.io", kind="HelmReleaseProxy", namespace="shops", name="web", uid="u-web")
STEP = "HelmReleaseProxy/shops/web"


def entry(name: str, *, kept: str = "") -> Entry:
    ref = ObjectRef(version="v1", kind="ConfigMap", namespace="apps", name=name, uid=f"u-{name}")
    source = f"HelmReleaseProxy shops/web: {kept}" if kept else "HelmReleaseProxy shops/web"
    state = EntryState.CONFIRMED.value
    return Entry(object=ref, resource="configmaps", state=state, source=source, kept=bool(kept))


def handle(**more: object) -> Handle:
    listed = (HandleEntry(object=entry("a").object),)
    return msgspec.structs.replace(Handle(ref=WEB, source=SourceKind.HELM_RELEASE_PROXY, entries=listed), **more)


SNAPSHOT = Snapshot({"a": entry("a"), "data": entry("data", kept="Helm keeps it")})


class Words:
    """What policies say: this effort for every handle, or nothing."""

    terms = None

    def __init__(self, effort: Effort | None) -> None:
        self._effort = effort

    def namespaces(self, source: SourceKind) -> Collection[str]:
        return ("shops",)

    def decide(self, handle: Handle) -> HandleDecision | None:
        return HandleDecision(effort=self._effort, policies=("p",)) if self._effort else None


def test_a_handle_of_a_cluster_without_policy_is_a_step_that_is_left() -> None:
    [step] = companion_preview._steps([(handle(), SNAPSHOT)], Words(None)).steps
    assert (step.draft.effort, step.draft.objects) == (Effort.LEAVE, 2)


def claim() -> Entry:
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace="apps", name="data-db-0", uid="u-claim")
    return Entry(object=ref, resource="persistentvolumeclaims", source="StatefulSet db", kept=True)


def test_claims_that_a_deployer_leaves_stay_unless_the_handle_is_left_in_place() -> None:
    steps = companion_preview._steps([(handle(), SNAPSHOT)], Words(Effort.ENFORCE))
    seen = CompanionPreview(steps=steps, claims={WEB.uid: (claim(),)})
    step = Step(name=STEP, object=WEB, effort=Effort.ENFORCE.value)
    forecast = {it.entry.object.name: it.why for it in seen.forecast(step, SNAPSHOT.entries.values()) or ()}
    assert "a claim of StatefulSet db" in forecast["data-db-0"]
    left = msgspec.structs.replace(step, effort=Effort.LEAVE.value)
    assert "data-db-0" not in {it.entry.object.name for it in seen.forecast(left, SNAPSHOT.entries.values()) or ()}


def test_claims_that_the_deployer_of_a_single_handle_leaves_are_leaks() -> None:
    seen = foreseen_handle(handle(), SNAPSHOT, HandleOutlook(), claims=[claim()])
    assert [told.object.name for told in seen.leaks] == ["data", "data-db-0"], "its deployer keeps both"


def test_what_no_policy_removes_is_a_leak_and_stays_with_the_reason() -> None:
    steps = companion_preview._steps([(handle(), SNAPSHOT)], Words(None))
    seen = CompanionPreview(steps=steps, why_left={STEP: NO_POLICY})
    step = Step(name=STEP, object=WEB, effort=Effort.LEAVE.value)
    forecast = seen.forecast(step, SNAPSHOT.entries.values()) or []
    assert {item.why for item in forecast} == {NO_POLICY}
    assert [(told.object, told.why) for told in seen.leaks(step, forecast)] == [(WEB, NO_POLICY)]


def previewed(effort: Effort, handle: Handle, **more: Any) -> tuple[list[ObjectForecast], list[Told]]:
    """The forecast of the only step, and what it leaves behind."""
    steps = companion_preview._steps([(handle, SNAPSHOT)], Words(effort))
    given_up = companion_preview._given_up([handle], Words(effort))
    seen = CompanionPreview(steps=steps, given_up=given_up, **more)
    step = Step(name=STEP, object=WEB, effort=effort.value)
    forecast = seen.forecast(step, SNAPSHOT.entries.values()) or []
    return forecast, seen.leaks(step, forecast)


def test_what_a_deployer_keeps_is_left_behind() -> None:
    forecast, left = previewed(Effort.ENFORCE, handle())
    assert [item.fate for item in forecast] == [ForecastFate.GOES, ForecastFate.STAYS]
    assert [(told.object.name, told.why) for told in left] == [("data", "Helm keeps it")]


def test_what_a_policy_leaves_is_chosen() -> None:
    forecast, left = previewed(Effort.LEAVE, handle())
    assert {item.fate for item in forecast} == {ForecastFate.STAYS}
    assert left == []


def test_a_held_handle_that_is_only_tried_is_given_up_and_left_behind() -> None:
    forecast, left = previewed(Effort.TRY, handle(held="is suspended, so Flux would leave what it deployed"))
    assert {item.fate for item in forecast} == {ForecastFate.STAYS}
    why = "would be given up: it is suspended, so Flux would leave what it deployed"
    assert [(told.object, told.why) for told in left] == [(WEB, why)]
    held, waits = previewed(Effort.ENFORCE, handle(held="is suspended"))
    assert [item.fate for item in held] == [ForecastFate.GOES, ForecastFate.STAYS]
    assert [told.object.name for told in waits] == ["data"], "an enforced step waits for a user"


def test_claims_of_stateful_sets_stay_and_are_left_behind() -> None:
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace="apps", name="data-db-0", uid="u-claim")
    claim = Entry(object=ref, resource="persistentvolumeclaims", source="StatefulSet db", kept=True)
    forecast, left = previewed(Effort.ENFORCE, handle(), claims={WEB.uid: (claim,)})
    assert forecast[-1].fate is ForecastFate.STAYS
    assert "unwind.dev/volumes: Delete" in forecast[-1].why
    assert [told.object.name for told in left] == ["data", "data-db-0"]


def test_what_a_handle_lists_without_the_marks_of_its_deployer_is_left_behind() -> None:
    other = ObjectRef(version="v1", kind="ConfigMap", namespace="apps", name="other")
    _, left = previewed(Effort.ENFORCE, handle(), foreign={WEB.uid: (other,)})
    assert [told.object.name for told in left] == ["data", "other"]


def test_a_step_that_is_no_handle_is_not_forecast_here() -> None:
    step = Step(name="ClusterProfile/web", object=ObjectRef(kind="ClusterSummary", name="web", uid="u-other"))
    assert CompanionPreview().forecast(step, [entry("a")]) is None


def test_deleting_a_handle_removes_what_its_deployer_deletes_and_leaves_the_rest_behind() -> None:
    seen = foreseen_handle(handle(), SNAPSHOT, HandleOutlook())
    assert [ref.name for ref in seen.objects[STEP]] == ["a"]
    assert [(told.object.name, told.why) for told in seen.leaks] == [("data", "Helm keeps it")]
    assert plan.total(seen) == 2, "the object and the handle"
    assert seen.staying == ()


def test_a_handle_that_its_deployer_forgets_leaks_every_object() -> None:
    seen = foreseen_handle(handle(), SNAPSHOT, HandleOutlook(leaks="would be left behind"))
    assert [told.object.name for told in seen.leaks] == ["a", "data"]
    assert seen.objects[STEP] == ()


def test_what_creates_a_handle_again_is_a_warning() -> None:
    seen = foreseen_handle(handle(), SNAPSHOT, HandleOutlook(recreated="HelmChartProxy shops/web selects the cluster"))
    assert seen.warnings == ("it would be created again: HelmChartProxy shops/web selects the cluster",)


def test_a_handle_that_lists_nothing_although_it_deployed_is_unknown() -> None:
    unknown = handle(entries=(), unknown="its release is not on the cluster")
    [leak] = foreseen_handle(unknown, Snapshot({}), HandleOutlook()).leaks
    assert (leak.object, leak.why) == (WEB, "its release is not on the cluster")


def test_helm_releases_that_no_policy_mentions_are_one_warning() -> None:
    releases = [
        handle(
            ref=ObjectRef(group="helm.sh", kind="Release", namespace="apps", name=f"r{number}", uid=f"u-{number}"),
            source=SourceKind.HELM,
        )
        for number in range(7)
    ]
    shown, warning = companion_preview._shown(SourceKind.HELM, releases, Words(None))
    assert shown == []
    assert "would not be removed: apps/r0, apps/r1, apps/r2, apps/r3, apps/r4 and 2 more; to remove them" in warning
    assert companion_preview._shown(SourceKind.HELM, releases, Words(Effort.TRY)) == (releases, "")


def test_handles_of_a_deployer_are_shown_without_a_policy() -> None:
    assert companion_preview._shown(SourceKind.FLUX, [handle()], Words(None)) == ([handle()], "")


def test_an_enforced_release_that_a_deployer_drives_which_is_no_step_would_be_left_behind() -> None:
    driven = CompanionPreview(
        steps=companion_preview._steps([(handle(), SNAPSHOT)], Words(Effort.ENFORCE)), driven={STEP: "is left behind"}
    )
    step = Step(name=STEP, object=WEB, effort=Effort.ENFORCE.value, wave=1)
    forecast = driven.forecast(step, [entry("a")])
    assert forecast
    assert [item.fate for item in forecast] == [ForecastFate.STAYS]
    assert [(told.object, told.why) for told in driven.leaks(step, forecast)] == [(WEB, "is left behind")]
    chosen = msgspec.structs.replace(step, effort=Effort.LEAVE.value)
    assert driven.leaks(chosen, forecast) == []


async def previewed_unplaced(effort: Effort | None) -> CompanionPreview:
    """The preview of a cluster with a handle that may deploy on it, and of which that cannot be known."""
    ref = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="shops", name="prod", uid="prod")
    member = Member(ref, Objects().client, system_uid="standin")

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[Member]:
        yield member

    async def found(*_: object) -> list[Handle]:
        return [handle(unplaced="names its cluster by a ConfigMap", remedy="use secretRef")]

    return await companion_preview.preview_companions(
        [cast("Any", SimpleNamespace(source=SourceKind.FLUX, handles=found))],
        Words(effort),
        cast("Any", SimpleNamespace(member=connected, management=connected)),
        ClusterTarget(ref=ref, secret="", ready=True),
        selected=effort is not None,
    )


async def test_an_enforced_handle_whose_cluster_is_not_known_would_hold_and_is_not_said_to_hold_nothing() -> None:
    seen = await previewed_unplaced(Effort.ENFORCE)
    [notice] = seen.steps.said
    assert f"{STEP} names its cluster by a ConfigMap; nothing is removed from this cluster" in notice.message
    assert (seen.steps.steps, seen.steps.warnings, seen.unknown) == ((), (), ())


async def test_a_handle_whose_cluster_is_not_known_and_that_is_only_tried_is_not_waited_for() -> None:
    seen = await previewed_unplaced(Effort.TRY)
    assert seen.steps.said == ()
    assert seen.steps.warnings == (f"not a step, and not waited for: {STEP} names its cluster by a ConfigMap",)
    assert (await previewed_unplaced(None)).steps.warnings == (), "no policy mentions it"
