"""The API types decode what real systems write, and no content of an object makes them fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pytest
import yaml

from tests.plane.support.crd_examples import EXAMPLES
from unwind.api import annotation_values, capi, karmada, names, sveltos, unwind
from unwind.api.annotation_values import DeletePolicy, DeleteProtection, OnDeadline
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.sveltos import ClusterDeletionBehavior, StopMatchingBehavior

if TYPE_CHECKING:
    from unwind.api.fields import Word

T = TypeVar("T")


def read(text: str, model: type[T]) -> T:
    return msgspec.convert(yaml.load(text, Loader=yaml.CSafeLoader), model)


def wire(text: str, model: type[T]) -> T:
    return msgspec.json.decode(text.encode(), type=model)


STRICT_CLEANUP = EXAMPLES.split("---\n")[1]


def test_the_profile_of_the_proposal_is_read() -> None:
    profile = read(STRICT_CLEANUP, sveltos.ClusterProfile)
    assert profile.metadata.name == "strict-cleanup"
    assert profile.spec.cluster_selector.match_labels == {"env": "prod"}
    assert profile.spec.deletion is ClusterDeletionBehavior.ENFORCE
    assert profile.spec.stop_matching is StopMatchingBehavior.REMOVE
    assert profile.spec.sync_mode == "Continuous"
    assert profile.spec.tier == 100


def test_a_profile_that_says_nothing_removes_and_withdraws_and_one_can_see_that_nothing_was_said() -> None:
    spec = sveltos.ProfileSpec()
    assert spec.deletion is ClusterDeletionBehavior.REMOVE
    assert spec.stop_matching is StopMatchingBehavior.WITHDRAW
    assert spec.cluster_deletion_behavior is None
    assert spec.cluster_selector.empty


@pytest.mark.parametrize("text", ["enforceRemovePolicies", "Leave", "", "EnforceRemovePolicies "])
def test_a_behaviour_that_nobody_knows_is_read_as_unknown_and_never_as_a_default(text: str) -> None:
    spec = sveltos.ProfileSpec(cluster_deletion_behavior=text, stop_matching_behavior=text)
    assert spec.deletion == Unknown(text, "LeavePolicies, RemovePolicies, EnforceRemovePolicies")
    assert spec.stop_matching == Unknown(text, "WithdrawPolicies, RemovePolicies, LeavePolicies")
    assert text in str(spec.deletion)


@pytest.mark.parametrize(
    "words",
    [OnDeadline, DeleteProtection, DeletePolicy, ClusterDeletionBehavior, karmada.RemoveStrategy, unwind.Phase],
)
def test_every_list_of_words_knows_its_own_and_tells_the_others(words: type[Word]) -> None:
    assert [words.read(word.value) for word in words] == list(words)
    assert words.read("typo") == Unknown("typo", ", ".join(words))


def test_withdraw_and_remove_mean_the_same_when_a_cluster_stops_matching() -> None:
    assert [word.withdraws for word in StopMatchingBehavior] == [True, True, False]


def test_charts_and_references_are_read_with_sveltos_own_spelling() -> None:
    profile = read(
        """
        spec:
          clusterRefs: [{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, namespace: default, name: prod-7}]
          dependsOn: [base, network]
          maxUpdate: 30%
          policyRefs:
          - {kind: ConfigMap, namespace: default, name: dashboards, deploymentType: Local}
          helmCharts:
          - repositoryURL: https://kyverno.github.io/kyverno/
            repositoryName: kyverno
            chartName: kyverno/kyverno
            chartVersion: v3.3.3
            releaseName: kyverno-latest
            releaseNamespace: kyverno
            helmChartAction: Install
            valuesFrom: [{kind: ConfigMap, namespace: default, name: values}]
            options: {installOptions: {createNamespace: true}}
        """,
        sveltos.Profile,
    )
    [chart], [policy] = profile.spec.helm_charts, profile.spec.policy_refs
    assert chart.repository_url == "https://kyverno.github.io/kyverno/"
    assert chart.values_from[0].name == "values"
    assert (policy.kind, policy.deployment_type, policy.tier) == ("ConfigMap", "Local", 100)
    assert profile.spec.depends_on == ("base", "network")
    assert profile.spec.max_update == "30%"


def test_a_summary_and_a_configuration_are_read() -> None:
    summary = wire(
        """{"metadata": {"name": "strict-cleanup-capi-prod-7", "namespace": "default"},
        "spec": {"clusterNamespace": "default", "clusterName": "prod-7", "clusterType": "Capi",
                 "clusterProfileSpec": {"clusterDeletionBehavior": "LeavePolicies"}},
        "status": {"dependencies": "no dependencies", "featureSummaries": [
            {"featureID": "Resources", "status": "Removing", "hash": "aGFzaA==", "consecutiveFailures": 2}],
            "deployedGVKs": [{"featureID": "Helm", "deployedGroupVersionKind": ["Deployment.v1.apps"]}]}}""",
        sveltos.ClusterSummary,
    )
    assert summary.spec.cluster_profile_spec.deletion is ClusterDeletionBehavior.LEAVE
    [feature] = summary.status.feature_summaries
    assert (feature.feature_id, feature.status, feature.consecutive_failures) == ("Resources", "Removing", 2)
    assert summary.status.deployed_gvks[0].deployed_group_version_kind == ("Deployment.v1.apps",)

    configuration = wire(
        """{"status": {"clusterProfileResources": [{"clusterProfileName": "p", "Features": [
            {"featureID": "Helm", "charts": [{"repoURL": "https://x", "releaseName": "r"}]}]}]}}""",
        sveltos.ClusterConfiguration,
    )
    [profile] = configuration.status.cluster_profile_resources
    assert profile.features[0].charts[0].repo_url == "https://x"


def test_summaries_are_called_what_sveltos_calls_them() -> None:
    names_ = [
        sveltos.summary_name(profile_kind=kind, profile="base", cluster_type=type_, cluster="prod-7")
        for kind in ("ClusterProfile", "Profile")
        for type_ in sveltos.ClusterType
    ]
    assert names_ == ["base-capi-prod-7", "base-sveltos-prod-7", "p--base-capi-prod-7", "p--base-sveltos-prod-7"]


def test_a_registered_cluster_names_its_kubeconfig_secret() -> None:
    metadata = ObjectMeta(name="edge")
    assert sveltos.SveltosCluster(metadata=metadata).kubeconfig_secret == "edge-sveltos-kubeconfig"  # noqa: S105 - a name
    spec = sveltos.SveltosClusterSpec(kubeconfig_name="mine")
    assert sveltos.SveltosCluster(metadata=metadata, spec=spec).kubeconfig_secret == "mine"  # noqa: S105 - a name


V1BETA1 = """{"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster",
  "metadata": {"name": "prod-7", "namespace": "default", "uid": "u", "creationTimestamp": null,
               "deletionTimestamp": "2026-01-02T03:04:05Z"},
  "spec": {"topology": {"class": "small", "version": "v1.36.3"},
           "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "StubCluster"}},
  "status": {"phase": "Deleting", "controlPlaneReady": true,
             "conditions": [{"type": "Ready", "status": "False", "severity": "Info",
                             "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}"""
V1BETA2 = """{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
  "metadata": {"name": "prod-7", "namespace": "default", "uid": "u", "deletionTimestamp": "2026-01-02T03:04:05Z"},
  "spec": {"topology": {"classRef": {"name": "small"}, "version": "v1.36.3"},
           "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "StubCluster"}},
  "status": {"phase": "Deleting", "initialization": {"controlPlaneInitialized": true}}}"""


@pytest.mark.parametrize("text", [V1BETA1, V1BETA2], ids=["v1beta1", "v1beta2"])
def test_a_cluster_of_either_version_reads_the_same(text: str) -> None:
    cluster = wire(text, capi.Cluster)
    assert cluster.class_name == "small"
    assert cluster.reachable_once
    assert cluster.metadata.terminating
    assert cluster.metadata.deletion_timestamp == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert cluster.spec.infrastructure_ref is not None
    assert cluster.spec.infrastructure_ref.group == "infrastructure.cluster.x-k8s.io"
    assert cluster.kubeconfig_secret == "prod-7-kubeconfig"  # noqa: S105 - a name
    assert not cluster.paused


@pytest.mark.parametrize("topology", ["{}", "null", '{"version": "v1.36.3"}'])
def test_a_cluster_without_a_class_has_no_class_name(topology: str) -> None:
    assert wire(f'{{"spec": {{"topology": {topology}}}}}', capi.Cluster).class_name == ""


def test_a_cluster_is_paused_by_its_spec_or_by_the_annotation() -> None:
    assert wire('{"spec": {"paused": true}}', capi.Cluster).paused
    assert wire(f'{{"metadata": {{"annotations": {{"{names.PAUSED_ANNOTATION}": ""}}}}}}', capi.Cluster).paused
    held = wire(f'{{"metadata": {{"annotations": {{"{names.PAUSED_ANNOTATION}": "unwind.dev"}}}}}}', capi.Cluster)
    assert held.held
    assert not held.paused, "Cluster API waits for its gate, and Unwind opens it"


def test_an_extension_without_a_namespace_selector_is_told_from_one_that_matches_everything() -> None:
    extension = '{"spec": {"clientConfig": {"service": {"name": "s", "namespace": "n", "port": 443}}%s}}'
    assert wire(extension % "", capi.ExtensionConfig).spec.namespace_selector is None
    everything = wire(extension % ', "namespaceSelector": {}', capi.ExtensionConfig).spec.namespace_selector
    assert everything is not None
    assert everything.empty


def test_a_member_keeps_its_objects_unless_it_says_required() -> None:
    assert karmada.Cluster().removal is karmada.RemoveStrategy.NEEDLESS
    spec = karmada.ClusterSpec(remove_strategy="Required")
    assert karmada.Cluster(spec=spec).removal is karmada.RemoveStrategy.REQUIRED
    spec = karmada.ClusterSpec(remove_strategy="needless")
    assert karmada.Cluster(spec=spec).removal == Unknown("needless", "Needless, Required")


def test_the_annotation_stands_in_where_the_field_is_not_served() -> None:
    metadata = ObjectMeta(name="m1", annotations={names.REMOVE_STRATEGY_ANNOTATION: "Required"})
    assert karmada.Cluster(metadata=metadata).removal is karmada.RemoveStrategy.REQUIRED
    assert karmada.Cluster(metadata=metadata).execution_namespace == "karmada-es-m1"


def test_the_member_of_the_proposal_is_read_with_its_condition() -> None:
    cluster = wire(
        """{"metadata": {"name": "member-1"},
        "spec": {"syncMode": "Push", "secretRef": {"namespace": "karmada-cluster", "name": "member-1"},
                 "insecureSkipTLSVerification": true, "proxyURL": "http://proxy:3128"},
        "status": {"conditions": [{"lastTransitionTime": "2021-05-08T12:34:15Z",
            "lastUpdateTime": "2021-05-08T12:34:30Z", "message": "Unjoining resources.",
            "reason": "UnjoinCluster", "status": "True", "type": "Unjoining"}]}}""",
        karmada.Cluster,
    )
    assert cluster.spec.insecure_skip_tls_verification
    assert cluster.spec.proxy_url == "http://proxy:3128"
    [condition] = cluster.status.conditions
    assert (condition.type, condition.reason) == (names.ConditionType.UNJOINING, names.Reason.UNJOIN_CLUSTER)


def test_a_works_manifests_arrive_whole() -> None:
    given = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    work = msgspec.convert({"spec": {"workload": {"manifests": [given]}}}, karmada.Work)
    assert work.spec.workload.manifests == (given,)


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("", False), ("Removing", False), ("Held", False), ("Complete", True), ("Released", True), ("TargetGone", True)],
)
def test_a_teardown_is_finished_in_its_last_phases_only(phase: str, finished: bool) -> None:
    assert unwind.Teardown(status=unwind.TeardownStatus(phase=phase)).finished is finished


def test_a_teardown_in_a_phase_that_nobody_knows_is_not_finished() -> None:
    teardown = unwind.Teardown(status=unwind.TeardownStatus(phase="Done"))
    assert teardown.phase == Unknown("Done", ", ".join(unwind.Phase))
    assert not teardown.finished


def test_a_new_object_is_written_as_the_api_wants_it() -> None:
    target = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="default", name="prod-7", uid="u")
    teardown = unwind.Teardown(
        metadata=ObjectMeta(name="u"),
        spec=unwind.TeardownSpec(
            title=str(target),
            target=target,
            cause=unwind.Cause.CLUSTER_DELETED.value,
            requested_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        ),
    )
    assert manifest(unwind.TEARDOWNS, teardown) == {
        "apiVersion": "unwind.dev/v1alpha1",
        "kind": "Teardown",
        "metadata": {"name": "u"},
        "spec": {
            "title": "Cluster default/prod-7",
            "target": {
                "group": "cluster.x-k8s.io",
                "kind": "Cluster",
                "namespace": "default",
                "name": "prod-7",
                "uid": "u",
            },
            "cause": "ClusterDeleted",
            "requestedAt": "2026-01-02T03:04:05Z",
        },
    }


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("30m", timedelta(minutes=30)),
        ("1h30m", timedelta(minutes=90)),
        ("90s", timedelta(seconds=90)),
        ("0s", timedelta()),
        ("7d", timedelta(days=7)),
        ("1d12h", timedelta(hours=36)),
    ],
)
def test_a_span_of_time_is_read(text: str, span: timedelta) -> None:
    assert annotation_values.parse_duration(text) == span


@pytest.mark.parametrize("text", ["", "30", "30 m", "m", "d", "1m1h", "1h1d", "-5m", "1.5h", "٣m", "forever"])
def test_what_is_no_span_of_time_is_unknown(text: str) -> None:
    assert annotation_values.parse_duration(text) == Unknown(text, "a duration such as 30m, 2h or 1d")
