from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from unwind.api.capi import CLUSTERS, Cluster, ExtensionConfig
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import (
    FORCE_RELEASE_ANNOTATION,
    MANAGED_BY_LABEL,
    MANAGED_BY_UNWIND,
    OK_TO_DELETE_ANNOTATION,
    PAUSED_ANNOTATION,
    Reason,
)
from unwind.api.resources import CONFIG_MAPS
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import Blocker, Cause, Plan, Teardown, TeardownSpec, TeardownStatus
from unwind.why import cluster_findings, facts
from unwind.why.answers import Effect, Finding, Kubectl, Thing

if TYPE_CHECKING:
    from unwind.why.facts import ObjectSnapshot

KUBECTL = Kubectl()
NOW = dt.datetime(2026, 5, 4, 12, 0, tzinfo=dt.UTC)
TARGET = Thing(resource=CLUSTERS, name="prod", namespace="shop", uid="c-1").ref
OURS = cluster_findings.Extension(name="unwind-system", behind="Service unwind-system/unwind", ours=True)
BILLING = cluster_findings.Extension(name="billing", behind="https://billing/")
WAITING = "waiting for add-on cleanup: ClusterProfile/web"
HELD = "Cluster is deleting. Following hooks are blocking delete: BeforeClusterDelete: "
FAILED = (
    'failed to call extension handlers for hook "BeforeClusterDelete.hooks.runtime.cluster.x-k8s.io": failed to call'
    ' extension handler "before-cluster-delete.{}": http call failed: Post "https://127.0.0.1:1/": refused'
)


def cluster(
    said: str = "", *extensions: cluster_findings.Extension, around: dict[str, Any] | None = None, **fields: Any
) -> list[Finding]:
    conditions = [{"type": "TopologyReconciled", "status": "False", "message": said}] if said else []
    obj: dict[str, Any] = {
        "metadata": {
            "name": "prod",
            "namespace": "shop",
            "uid": "c-1",
            "deletionTimestamp": "2026-05-04T11:00:00Z",
            "annotations": fields.pop("annotations", {}),
        },
        "spec": fields,
        "status": {"conditions": conditions},
    }
    it = facts.facts_of(Thing(resource=CLUSTERS, name="prod"), obj)
    look: ObjectSnapshot = msgspec.structs.replace(it, **(around or {}))
    return cluster_findings.cluster_findings(look, msgspec.convert(obj, Cluster), KUBECTL, extensions)


def teardown(*blockers: Blocker, phase: str = "Held", cause: Cause = Cause.CLUSTER_DELETED) -> Teardown:
    return Teardown(
        metadata=ObjectMeta(name="c-1", uid="t-1"),
        spec=TeardownSpec(target=TARGET, cause=cause.value, plan=Plan()),
        status=TeardownStatus(phase=phase, blockers=blockers, wave="1/2", removed="3/6"),
    )


def blocker(**fields: Any) -> Blocker:
    ref = Thing(resource=CONFIG_MAPS, name="m", namespace="web", uid="m-1").ref
    return Blocker(**{"object": ref, "step": "ClusterProfile/web", "reason": "Finalizer", "since": NOW, **fields})


def test_a_cluster_that_unwind_holds_leads_to_its_teardown() -> None:
    [found] = cluster(HELD + WAITING, OURS, around={"teardowns": (teardown(),)})
    assert found.reason == Reason.GATE
    assert [(item.kind, item.name) for item in found.behind] == [("Teardown", "c-1")]


def test_another_extension_is_told_apart_from_ours() -> None:
    [alone] = cluster(f"{HELD}the bill is not paid", OURS, BILLING)
    assert alone.reason == Reason.EXTENSION
    assert "blocked by the Cluster API extension billing (https://billing/): the bill is not paid" in alone.message
    gate, other = cluster(f"{HELD}the bill is not paid, {WAITING}", OURS, BILLING, around={"teardowns": (teardown(),)})
    assert (gate.reason, other.reason) == (Reason.GATE, Reason.EXTENSION)
    assert other.message.endswith("billing (https://billing/): the bill is not paid")


@pytest.mark.parametrize(
    ("extension", "runs", "reason"),
    [
        ("unwind-system", True, Reason.UNREACHABLE),
        ("unwind-system", False, Reason.MANAGER_NOT_RUNNING),
        ("billing", True, Reason.EXTENSION),
        ("not.known", True, Reason.EXTENSION),
    ],
)
def test_an_extension_that_does_not_answer_is_named(extension: str, runs: bool, reason: Reason) -> None:
    [found] = cluster(FAILED.format(extension), OURS, BILLING, around={"manager_runs": runs})
    assert found.reason == reason
    assert f"must call the extension {extension} first" in found.message


def test_a_hook_that_was_passed_holds_nothing() -> None:
    found = cluster(HELD + WAITING, OURS, BILLING, annotations={OK_TO_DELETE_ANNOTATION: ""})
    assert found == []


def test_a_paused_cluster_is_let_on_in_each_way_that_it_is_paused() -> None:
    [found] = cluster(paused=True, annotations={PAUSED_ANNOTATION: "true"})
    [remedy] = found.remedies
    assert remedy.effect is Effect.SAFE
    assert remedy.commands == (
        """kubectl patch -n shop clusters.cluster.x-k8s.io/prod --type=merge -p '{"spec":{"paused":false}}'""",
        "kubectl annotate -n shop clusters.cluster.x-k8s.io/prod cluster.x-k8s.io/paused-",
    )


def test_a_cluster_that_is_taken_apart_leads_to_its_parts() -> None:
    part = Thing(resource=CONFIG_MAPS, name="control-plane", namespace="shop", uid="p")
    [found] = cluster(around={"contents": (part,)})
    assert (found.reason, found.behind) == (Reason.HOLDS_OTHERS, (part.ref,))


def test_an_extension_counts_only_where_it_is_asked_about_deletions() -> None:
    config = ExtensionConfig(metadata=ObjectMeta(name="x", labels={MANAGED_BY_LABEL: MANAGED_BY_UNWIND}))
    assert cluster_findings.extension(config) is None


def test_a_blocker_on_the_member_is_followed_there() -> None:
    [found] = cluster_findings.teardown_findings(teardown(blocker()), KUBECTL, runs=True)
    assert (found.elsewhere, found.behind) == (TARGET, (blocker().object,))
    [release] = found.remedies
    assert release.effect is Effect.LEAVES
    assert FORCE_RELEASE_ANNOTATION in release.commands[0]


def test_an_unreachable_member_is_not_looked_into() -> None:
    there = blocker(
        object=TARGET, reason=Reason.UNREACHABLE, message="no answer", actor="the administrator of the member cluster"
    )
    [found] = cluster_findings.teardown_findings(teardown(there), KUBECTL, runs=True)
    assert (found.reason, found.behind, found.actor) == (
        Reason.UNREACHABLE,
        (),
        "the administrator of the member cluster",
    )


def test_a_member_that_does_not_answer_is_in_the_way_once() -> None:
    silent = [
        blocker(object=ObjectRef(kind="ConfigMap", name=f"web-{number}"), reason=Reason.UNREACHABLE)
        for number in range(7)
    ]
    [found] = cluster_findings.teardown_findings(teardown(*silent), KUBECTL, runs=True)
    assert found.reason == Reason.UNREACHABLE


def test_a_teardown_without_a_manager_says_so_first() -> None:
    first, _ = cluster_findings.teardown_findings(teardown(blocker()), KUBECTL, runs=False)
    assert first.reason == Reason.MANAGER_NOT_RUNNING
    assert cluster_findings.teardown_findings(teardown(blocker()), KUBECTL, runs=None)[0].reason == "Finalizer"


def test_of_many_blockers_the_first_are_followed_and_the_others_counted() -> None:
    seven = [blocker(object=ObjectRef(kind="ConfigMap", name=f"web-{number}")) for number in range(7)]
    found = cluster_findings.teardown_findings(teardown(*seven), KUBECTL, runs=True)
    assert len([item for item in found if item.behind]) == 4
    assert found[-1].message.startswith("3 more blockers; list them with `kubectl describe teardown")


def withdrawn(*blockers: Blocker, cause: Cause = Cause.WITHDRAWN) -> Teardown:
    it = teardown(*blockers, cause=cause)
    owner = Thing(resource=CLUSTER_SUMMARIES, name="web-capi-prod", namespace="shop", uid="s-1").ref
    return msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, target=owner, member=TARGET))


def test_a_blocker_of_a_withdrawal_is_on_the_member_and_the_summary_can_be_released() -> None:
    [found] = cluster_findings.teardown_findings(withdrawn(blocker()), KUBECTL, runs=True)
    assert found.elsewhere == TARGET
    assert "on Cluster shop/prod" in found.message
    [remedy] = found.remedies
    assert f"clustersummaries.config.projectsveltos.io/web-capi-prod '{FORCE_RELEASE_ANNOTATION}" in remedy.commands[0]


def test_a_withdrawal_that_waits_for_another_one_leads_to_it_on_the_management_cluster() -> None:
    other = Thing(resource=CLUSTER_SUMMARIES, name="top-capi-prod", namespace="shop", uid="s-2").ref
    [found] = cluster_findings.teardown_findings(
        withdrawn(blocker(object=other, reason=Reason.WAITING)), KUBECTL, runs=True
    )
    assert (found.elsewhere, found.behind) == (None, (other,))


def test_a_prune_is_released_like_a_withdrawal() -> None:
    [found] = cluster_findings.teardown_findings(withdrawn(blocker(), cause=Cause.PRUNED), KUBECTL, runs=True)
    [remedy] = found.remedies
    assert f"clustersummaries.config.projectsveltos.io/web-capi-prod '{FORCE_RELEASE_ANNOTATION}" in remedy.commands[0]


def test_a_teardown_that_goes_on_waits_for_nobody() -> None:
    [found] = cluster_findings.teardown_findings(teardown(phase="Removing"), KUBECTL, runs=True)
    assert (found.reason, found.message) == (Reason.DELETING, "in progress: wave 1/2, 3/6 objects removed")
    assert isinstance(TARGET, ObjectRef)
