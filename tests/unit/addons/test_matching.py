"""Which clusters a profile is for, and what stands against a profile."""

from __future__ import annotations

import msgspec
import pytest

from unwind.addons import cluster_summaries, validation
from unwind.addons.matching import ProfileKey, Selection, Verdict, match, selection, selects
from unwind.api.meta import LabelSelector, ObjectRef, Reference, SelectorRequirement
from unwind.api.sveltos import ClusterType, HelmChart, PolicyRef, ProfileSpec, ValuesFrom
from unwind.members.targets import AddonTarget, cluster_key

WIDE = ProfileKey("ClusterProfile", "", "web")
NARROW = ProfileKey("Profile", "team", "web")


def target(type_: ClusterType = ClusterType.CAPI, *, namespace: str = "team", **more: object) -> AddonTarget:
    ref = ObjectRef(kind="Cluster", namespace=namespace, name="prod-7", uid="u")
    it = AddonTarget(type=type_, ref=ref, labels={"env": "prod", "zone": "a"}, secret="s", ready=True)  # noqa: S106 - the name of a Secret
    return msgspec.structs.replace(it, **more)


def requires(key: str, operator: str, *values: str) -> LabelSelector:
    return LabelSelector(match_expressions=(SelectorRequirement(key=key, operator=operator, values=values),))


def chosen(selector: LabelSelector) -> ProfileSpec:
    return ProfileSpec(cluster_selector=selector)


PROD = ProfileSpec(cluster_selector=LabelSelector(match_labels={"env": "prod"}))


def matches(key: ProfileKey, spec: ProfileSpec, cluster: AddonTarget) -> bool:
    return selection(key, spec, cluster, ()) is Selection.YES


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (LabelSelector(), False),
        (LabelSelector(match_labels={"env": "prod"}), True),
        (LabelSelector(match_labels={"env": "prod", "zone": "b"}), False),
        (requires("env", "In", "dev", "prod"), True),
        (requires("env", "In", "dev"), False),
        (requires("missing", "In", "dev"), False),
        (requires("env", "NotIn", "dev"), True),
        (requires("env", "NotIn", "prod"), False),
        (requires("missing", "NotIn", "dev"), True),
        (requires("env", "Exists"), True),
        (requires("missing", "Exists"), False),
        (requires("env", "DoesNotExist"), False),
        (requires("missing", "DoesNotExist"), True),
    ],
)
def test_a_selector_means_what_it_means_to_kubernetes(selector: LabelSelector, selected: bool) -> None:
    assert selects(selector, {"env": "prod", "zone": "a"}) is selected


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        (
            requires("env", "in", "prod"),
            "clusterSelector: unknown operator 'in' for key env (valid: In, NotIn, Exists, DoesNotExist)",
        ),
        (
            requires("env", "Gt", "3"),
            "clusterSelector: unknown operator 'Gt' for key env (valid: In, NotIn, Exists, DoesNotExist)",
        ),
        (requires("env", "In"), "clusterSelector: operator In for key env needs values; add some"),
        (
            requires("missing", "DoesNotExist", "x"),
            "clusterSelector: operator DoesNotExist for key missing takes no values; remove them",
        ),
    ],
)
def test_what_is_not_understood_of_a_selector_selects_nothing_and_is_told(selector: LabelSelector, told: str) -> None:
    both = msgspec.structs.replace(selector, match_labels={"env": "prod"})
    assert not selects(both, {"env": "prod"})
    assert validation.objections(WIDE, chosen(both)).mistaken == (told,)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", "v1alpha9"])
def test_a_cluster_is_named_in_any_version(version: str) -> None:
    reference = Reference(api_version=f"cluster.x-k8s.io/{version}", kind="Cluster", namespace="team", name="prod-7")
    assert matches(WIDE, ProfileSpec(cluster_refs=(reference,)), target())
    assert not matches(WIDE, ProfileSpec(cluster_refs=(reference,)), target(ClusterType.SVELTOS))
    assert not matches(WIDE, ProfileSpec(cluster_refs=(reference,)), target(namespace="other"))


def test_a_reference_that_means_nothing_is_told() -> None:
    references = (
        Reference(api_version="apps/v1", kind="Cluster", namespace="team", name="prod-7"),
        Reference(api_version="lib.projectsveltos.io/v1beta1", kind="SveltosCluster", name="edge"),
    )
    wrong = "Cluster prod-7 (apiVersion apps/v1) is not a Cluster of Cluster API or a SveltosCluster"
    assert validation.objections(WIDE, ProfileSpec(cluster_refs=references)).mistaken == (
        f"clusterRefs: {wrong}; correct its apiVersion and kind",
        "clusterRefs: SveltosCluster edge has no namespace; set it",
    )


def test_a_profile_is_for_its_own_namespace_only() -> None:
    reference = Reference(api_version="cluster.x-k8s.io/v1beta2", kind="Cluster", namespace="other", name="prod-7")
    spec = msgspec.structs.replace(PROD, cluster_refs=(reference,))
    assert matches(NARROW, spec, target())
    assert not matches(NARROW, spec, target(namespace="other"))
    [told] = validation.objections(NARROW, spec).mistaken
    assert told == (
        "clusterRefs: Cluster prod-7 is in namespace other, but a Profile matches only its own namespace; use a"
        " ClusterProfile"
    )


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (target(), Verdict.WANTED),
        (target(paused=True), Verdict.WANTED),
        (target(ready=False), Verdict.LATER),
        (target(labels={}), Verdict.UNWANTED),
        (None, Verdict.UNWANTED),
        # Whether it matches still, or no longer: what becomes of its add-ons is the teardown's business.
        (target(terminating=True), Verdict.LEFT),
        (target(terminating=True, labels={}), Verdict.LEFT),
        # There is no teardown of what is only managed no longer.
        (target(ClusterType.SVELTOS, terminating=True), Verdict.UNWANTED),
    ],
)
def test_a_cluster_that_is_deleted_gets_nothing_new_and_is_left_to_its_teardown(
    cluster: AddonTarget | None, said: Verdict
) -> None:
    assert match(WIDE, PROD, cluster, ()) is said


NAMED = Reference(api_version="cluster.x-k8s.io/v1beta2", kind="Cluster", namespace="team", name="prod-7")
NOT_UNDERSTOOD = {
    "an operator in lower case": (chosen(requires("env", "in", "prod")), ()),
    "an operator without values": (chosen(requires("env", "In")), ()),
    "a misspelt kind": (ProfileSpec(cluster_refs=(msgspec.structs.replace(NAMED, kind="Clusters"),)), ()),
    "a misspelt group": (ProfileSpec(cluster_refs=(msgspec.structs.replace(NAMED, api_version="x-k8s.io/v1"),)), ()),
    "a reference without a namespace": (ProfileSpec(cluster_refs=(msgspec.structs.replace(NAMED, namespace=""),)), ()),
    "a ClusterSet": (ProfileSpec(set_refs=("prod",)), ()),
    "an unknown field of the selector": (ProfileSpec(), ("clusterSelector.matchLabel",)),
    "an unknown field of a requirement": (chosen(requires("a", "In", "b")), ("clusterSelector.matchExpressions[0].x",)),
    "an unknown field of a reference": (ProfileSpec(), ("clusterRefs[0].labels",)),
    "an unknown field beside the selector": (ProfileSpec(), ("clusterSelecter",)),
}


@pytest.mark.parametrize(("spec", "unread"), NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
def test_a_profile_whose_clusters_are_not_understood_neither_wants_a_cluster_nor_gives_it_up(
    spec: ProfileSpec, unread: tuple[str, ...]
) -> None:
    assert match(WIDE, spec, target(), unread) is Verdict.UNKNOWN
    assert match(WIDE, spec, target(ready=False), unread) is Verdict.UNKNOWN
    # What is known does not depend on it.
    assert match(WIDE, spec, None, unread) is Verdict.UNWANTED
    assert match(WIDE, spec, target(terminating=True), unread) is Verdict.LEFT
    assert match(NARROW, spec, target(namespace="other"), unread) is Verdict.UNWANTED
    # What is understood selects the cluster.
    by_name = msgspec.structs.replace(spec, cluster_refs=(*spec.cluster_refs, NAMED))
    assert match(WIDE, by_name, target(), unread) is Verdict.WANTED


@pytest.mark.parametrize("unread", ["helmCharts[0].newThing", "policyRefs[2].tiers"])
def test_an_unknown_field_of_what_is_deployed_does_not_make_the_clusters_unknown(unread: str) -> None:
    assert match(WIDE, ProfileSpec(), target(), (unread,)) is Verdict.UNWANTED


def test_an_empty_selector_is_known_to_select_nothing() -> None:
    assert match(WIDE, ProfileSpec(), target(), ()) is Verdict.UNWANTED


def test_what_is_not_understood_of_the_clusters_is_told_with_what_is_valid() -> None:
    spec = ProfileSpec(set_refs=("prod",))
    unread = ("clusterRefs[0].names", "clusterSelecter", "clusterSelector.matchExpressions[0].value")
    assert validation.objections(WIDE, spec, (*unread, "clusterSelector.matchLabel", "helmCharts[0].x")).clusters == (
        "setRefs is not supported (valid: clusterSelector, clusterRefs)",
        "clusterRefs[0].names is not known (valid: apiVersion, kind, namespace, name)",
        "clusterSelecter is not known, and may be about clusters (valid: clusterSelector, clusterRefs)",
        "clusterSelector.matchExpressions[0].value is not known (valid: key, operator, values)",
        "clusterSelector.matchLabel is not known (valid: matchLabels, matchExpressions)",
    )


def test_words_that_are_not_known_are_told_with_their_field() -> None:
    spec = ProfileSpec(
        sync_mode="continuous",
        stop_matching_behavior="Withdraw",
        cluster_deletion_behavior="enforce",
        policy_refs=(PolicyRef(kind="Configmap", name="a"),),
    )
    said = validation.objections(WIDE, spec)
    assert said.unknown == (
        "syncMode: 'continuous' is not known (valid: OneTime, Continuous, ContinuousWithDriftDetection, DryRun)",
        "stopMatchingBehavior: 'Withdraw' is not known (valid: WithdrawPolicies, RemovePolicies, LeavePolicies)",
        "clusterDeletionBehavior: 'enforce' is not known (valid: LeavePolicies, RemovePolicies, EnforceRemovePolicies)",
        "policyRefs[0].kind: 'Configmap' is not known (valid: ConfigMap, Secret, GitRepository, OCIRepository, Bucket)",
    )
    assert said.unsupported == ()


def test_what_is_not_supported_yet_is_told_and_so_is_what_was_never_heard_of() -> None:
    spec = ProfileSpec(reloader=True, policy_refs=(PolicyRef(kind="ConfigMap", name="{{ .Cluster.metadata.name }}"),))
    document = {"reloader": True, "helmCharts": [{"chartName": "a", "newThing": 1}], "otherThing": {}}
    unread = validation.unknown_fields(document, ProfileSpec)
    assert unread == ["helmCharts[0].newThing", "otherThing"]
    said = validation.objections(WIDE, spec, unread)
    assert said.unsupported == (
        "helmCharts[0].newThing",
        "otherThing",
        "reloader",
        "policyRefs[0].name (template)",
    )


def test_a_profile_may_not_put_things_into_the_management_cluster() -> None:
    spec = ProfileSpec(policy_refs=(PolicyRef(kind="ConfigMap", name="a", deployment_type="Local"),))
    assert validation.objections(WIDE, spec).unsupported == ()
    assert validation.objections(NARROW, spec).unsupported == (
        "policyRefs[0].deploymentType Local in a Profile (use Remote, or a ClusterProfile)",
    )


def test_a_profile_reads_nothing_outside_of_its_namespace() -> None:
    spec = ProfileSpec(
        policy_refs=(PolicyRef(kind="Secret", namespace="kube-system", name="a"),),
        helm_charts=(HelmChart(values_from=(ValuesFrom(kind="Secret", namespace="kube-system", name="b"),)),),
    )
    body = cluster_summaries.new(NARROW, "p", spec, target())["spec"]["clusterProfileSpec"]
    assert body["policyRefs"][0]["namespace"] == "team"
    assert body["helmCharts"][0]["valuesFrom"][0]["namespace"] == "team"
    assert cluster_summaries.at_home(WIDE, spec) is spec


def test_two_summaries_may_be_called_the_same_and_are_told_apart_by_what_is_in_them() -> None:
    assert cluster_summaries.name_of(WIDE, target()) == "web-capi-prod-7"
    assert cluster_summaries.name_of(NARROW, target(ClusterType.SVELTOS)) == "p--web-sveltos-prod-7"
    assert cluster_key(target()).shard == "team/prod-7"
