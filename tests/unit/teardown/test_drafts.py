"""From what is on a cluster to its Teardown: as tables."""

from __future__ import annotations

import datetime as dt

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import DEADLINE_ANNOTATION, ON_DEADLINE_ANNOTATION, ConditionType
from unwind.api.sveltos import ClusterType
from unwind.members.targets import AddonTarget
from unwind.teardown.drafts import misunderstood, teardown

CLUSTER = ObjectRef(group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace="ns", name="prod", uid="u-c")
AT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def target(**annotations: str) -> AddonTarget:
    return AddonTarget(type=ClusterType.CAPI, ref=CLUSTER, secret="s", annotations=annotations, deleted_at=AT)  # noqa: S106


def test_a_teardown_is_named_by_the_uid_of_its_target_and_counts_from_its_deletion() -> None:
    made = teardown(target(**{DEADLINE_ANNOTATION: "30m", ON_DEADLINE_ANNOTATION: "Release"}), None)
    spec = made.spec
    assert made.metadata.name == "u-c"
    assert (spec.title, spec.cause, spec.requested_at) == ("Cluster ns/prod", "ClusterDeleted", AT)
    assert (spec.deadline, spec.on_deadline) == ("30m", "Release")
    assert misunderstood(target(**{DEADLINE_ANNOTATION: "30m", ON_DEADLINE_ANNOTATION: "Release"})) == ()


def test_without_annotations_it_waits_for_ever() -> None:
    made = teardown(target(), None)
    assert (made.spec.deadline, made.spec.on_deadline) == ("", "Hold")
    assert misunderstood(target()) == ()


@pytest.mark.parametrize("text", ["", "half an hour", "30", "-5m", "1.5h"])
def test_a_deadline_that_is_no_span_is_none_and_says_so(text: str) -> None:
    annotations = {DEADLINE_ANNOTATION: text}
    assert teardown(target(**annotations), None).spec.deadline == ""
    [said] = misunderstood(target(**annotations))
    assert (said.type, DEADLINE_ANNOTATION in said.message) == (ConditionType.UNKNOWN_VALUE, True)


@pytest.mark.parametrize("text", ["", "release", "Free"])
def test_an_unknown_word_releases_nothing_at_the_deadline(text: str) -> None:
    annotations = {DEADLINE_ANNOTATION: "1h", ON_DEADLINE_ANNOTATION: text}
    assert teardown(target(**annotations), None).spec.on_deadline == "Hold"
    [said] = misunderstood(target(**annotations))
    assert ON_DEADLINE_ANNOTATION in said.message
