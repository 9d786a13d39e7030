"""What a Work says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from unwind.api.karmada import Cluster, ClusterSpec, Work, Workload, WorkSpec, WorkStatus
from unwind.api.meta import ObjectMeta, find, with_condition
from unwind.api.names import Reason
from unwind.api.resources import CONFIG_MAPS
from unwind.deploy.placements import place
from unwind.karmada import work_status
from unwind.karmada.work_apply import matters, source_of

if TYPE_CHECKING:
    from unwind.kube.client import Object

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "x"}}


def work(*manifests: Object, **meta: Any) -> Work:
    metadata = ObjectMeta(name="web", namespace="karmada-es-m", uid="u", **meta)
    return Work(metadata=metadata, spec=WorkSpec(workload=Workload(manifests=manifests)))


def test_a_member_that_does_not_answer_is_told_of_with_since_when_and_no_longer_when_it_does() -> None:
    first = work_status.failed(WorkStatus(), "no answer", reached=False, generation=1, now=NOW)
    again = work_status.failed(first, "no answer", reached=False, generation=1, now=LATER)
    assert again == first, "it is the same for as long as it lasts"
    found = find(first.conditions, "MemberUnreachable")
    assert found
    assert found.message == "since 2026-01-02T03:04:05Z: no answer"
    answered = work_status.applied_status(again, "", (), generation=1, now=LATER)
    assert [condition.type for condition in answered.conditions] == ["Applied"]


def test_what_is_waited_for_is_told_and_taken_back() -> None:
    waits = work_status.waiting_status(
        WorkStatus(), Reason.DELETING, "ConfigMap x/a waits for example.dev/hold", now=NOW
    )
    assert [(condition.type, condition.reason) for condition in waits.conditions] == [("Blocked", "Deleting")]
    assert work_status.waiting_status(waits, None, now=LATER) == WorkStatus()


def test_what_was_applied_says_for_which_generation() -> None:
    status = work_status.applied_status(work_status.suspended(WorkStatus(), now=NOW), "", (), generation=7, now=NOW)
    [one] = status.conditions
    assert (one.type, one.status, one.reason, one.observed_generation) == ("Applied", "True", "AppliedSuccessful", 7)


def test_only_our_conditions_are_written_and_the_first_ordinal_is_not_left_out() -> None:
    it = work(MAP)
    [placed] = place([source_of(it)], [CONFIG_MAPS]).objects.values()
    theirs = with_condition((), type="Theirs", status=True, reason="Because", now=NOW)
    obj = MAP | {"metadata": {"name": "a", "uid": "o", "resourceVersion": "1"}, "status": {"well": True}}
    said = [work_status.manifest_status(placed, 0, obj)]
    body = work_status.status_to_apply(
        it, work_status.applied_status(WorkStatus(conditions=theirs), "", said, generation=1, now=NOW)
    )
    assert [item["type"] for item in body["status"]["conditions"]] == ["Applied"]
    [told] = body["status"]["manifestStatuses"]
    assert told["identifier"]["ordinal"] == 0
    assert told["status"] == {"well": True}
    assert body["metadata"] == {"name": "web", "namespace": "karmada-es-m", "uid": "u"}


def test_a_status_that_is_too_large_for_a_work_is_left_out() -> None:
    it = work(MAP)
    [placed] = place([source_of(it)], [CONFIG_MAPS]).objects.values()
    obj = MAP | {"status": {"log": "x" * 20_000}}
    assert work_status.manifest_status(placed, 0, obj).status == {}


def test_a_manifest_that_cannot_be_read_is_named_by_its_place_and_the_others_are_read() -> None:
    source = source_of(work(MAP, {"apiVersion": "v1", "metadata": {"name": "b"}}, {"kind": "X"}))
    assert [manifest.name for manifest in source.manifests] == ["a"]
    assert source.faults == (
        "Work karmada-es-m/web, manifests[1]: kind is required",
        "Work karmada-es-m/web, manifests[2]: apiVersion is required",
    )


def test_a_work_is_put_there_again_for_what_it_says_and_not_for_what_is_said_of_it() -> None:
    cluster = Cluster(metadata=ObjectMeta(name="m", uid="c"), spec=ClusterSpec(id="k"))
    it = work(MAP, generation=1)
    assert matters(it, cluster) == matters(work(generation=1, resource_version="9"), cluster)
    assert matters(it, cluster) != matters(work(generation=2), cluster)
    assert matters(it, cluster) != matters(work(generation=1, annotations={"unwind.dev/adopt": "true"}), cluster)
    assert matters(it, cluster) != matters(it, Cluster(metadata=ObjectMeta(name="m", uid="d"), spec=cluster.spec))
