"""Sveltos: what says which add-ons go on which clusters. `config.projectsveltos.io` and `lib.projectsveltos.io`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from unwind.api.fields import ATOMIC, Model, Unknown, Word, doc, listed
from unwind.api.meta import LabelSelector, ObjectMeta, Reference
from unwind.api.resources import Resource
from unwind.api.sveltos_status import ClusterSummaryStatus, ProfileStatus

CONFIG_GROUP = "config.projectsveltos.io"
LIB_GROUP = "lib.projectsveltos.io"
CLUSTER_PROFILES = Resource(CONFIG_GROUP, "v1beta1", "clusterprofiles", "ClusterProfile", namespaced=False)
PROFILES = Resource(CONFIG_GROUP, "v1beta1", "profiles", "Profile")
CLUSTER_SUMMARIES = Resource(CONFIG_GROUP, "v1beta1", "clustersummaries", "ClusterSummary")
CLUSTER_CONFIGURATIONS = Resource(CONFIG_GROUP, "v1beta1", "clusterconfigurations", "ClusterConfiguration")
SVELTOS_CLUSTERS = Resource(LIB_GROUP, "v1beta1", "sveltosclusters", "SveltosCluster")


class ClusterDeletionBehavior(Word):
    """What becomes of a profile's add-ons when their cluster is deleted."""

    LEAVE = "LeavePolicies"
    """They stay as they are."""
    REMOVE = "RemovePolicies"
    """Their removal is tried, and the cluster does not wait for it."""
    ENFORCE = "EnforceRemovePolicies"
    """They are removed, and the cluster waits until all of it was seen to be absent."""


class StopMatchingBehavior(Word):
    """What becomes of them when a cluster no longer matches."""

    WITHDRAW = "WithdrawPolicies"
    # The proposal of clusterDeletionBehavior writes it so, in its examples; it means WithdrawPolicies.
    REMOVE = "RemovePolicies"
    LEAVE = "LeavePolicies"

    @property
    def withdraws(self) -> bool:
        return self is not StopMatchingBehavior.LEAVE


class SyncMode(Word):
    """How a profile is kept in step with its clusters."""

    ONE_TIME = "OneTime"
    CONTINUOUS = "Continuous"
    CONTINUOUS_WITH_DRIFT_DETECTION = "ContinuousWithDriftDetection"
    DRY_RUN = "DryRun"


class DeploymentType(Word):
    """Where the objects of a reference go."""

    LOCAL = "Local"
    """To the management cluster."""
    REMOTE = "Remote"
    """To the member."""


class SourceKind(Word):
    """What holds the objects of a reference."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - a kind
    GIT_REPOSITORY = "GitRepository"
    OCI_REPOSITORY = "OCIRepository"
    BUCKET = "Bucket"


class HelmChartAction(Word):
    """What is done with a chart."""

    INSTALL = "Install"
    UNINSTALL = "Uninstall"


class ClusterType(Word):
    """Whose kind a cluster is of."""

    CAPI = "Capi"
    SVELTOS = "Sveltos"


_TIER = doc("Who wins where two want the same object: the lower number.", minimum=1, default=100)
_DEPLOYMENT_TYPE = doc(
    "Remote (the member) or Local (the management cluster).", choice=DeploymentType, default="Remote"
)


class PolicyRef(Model, frozen=True, kw_only=True):
    """A source of manifests."""

    kind: Annotated[str, doc("What holds the manifests.", choice=SourceKind)] = ""
    namespace: Annotated[str, doc("Its namespace; empty for that of the cluster.")] = ""
    name: Annotated[str, doc("Its name; may be a template.")] = ""
    path: Annotated[str, doc("The directory in it.")] = ""
    deployment_type: Annotated[str, _DEPLOYMENT_TYPE] = DeploymentType.REMOTE.value
    optional: Annotated[bool, doc("Whether it may be missing.")] = False
    tier: Annotated[int, _TIER] = 100


class ValuesFrom(Model, frozen=True, kw_only=True):
    """A ConfigMap or Secret with values."""

    kind: Annotated[str, doc("ConfigMap or Secret.", required=True)] = ""
    namespace: Annotated[str, doc("Its namespace.")] = ""
    name: Annotated[str, doc("Its name.", required=True, minLength=1)] = ""
    optional: Annotated[bool, doc("Whether it may be missing.")] = False


class HelmChart(Model, frozen=True, kw_only=True):
    """A release of a chart."""

    repository_url: Annotated[str, doc("Where charts are.", required=True, minLength=1)] = msgspec.field(
        default="", name="repositoryURL"
    )
    repository_name: Annotated[str, doc("What the repository is called.")] = ""
    chart_name: Annotated[str, doc("The chart.")] = ""
    chart_version: Annotated[str, doc("Its version.")] = ""
    release_name: Annotated[str, doc("The release.", required=True, minLength=1)] = ""
    release_namespace: Annotated[str, doc("The release's namespace.", required=True, minLength=1)] = ""
    helm_chart_action: Annotated[str, doc("Install or Uninstall.", choice=HelmChartAction, default="Install")] = (
        HelmChartAction.INSTALL.value
    )
    values: Annotated[str, doc("Values, as YAML; may be a template.")] = ""
    values_from: Annotated[tuple[ValuesFrom, ...], doc("More values.", **ATOMIC)] = ()
    options: Annotated[dict[str, Any], doc("What is passed on to Helm.")] = msgspec.field(default_factory=dict)


class KustomizationRef(PolicyRef, frozen=True, kw_only=True):
    """A source of kustomizations."""

    target_namespace: Annotated[str, doc("The namespace that everything is put into.")] = ""
    values: Annotated[dict[str, str], doc("Values.")] = msgspec.field(default_factory=dict)
    values_from: Annotated[tuple[ValuesFrom, ...], doc("More values.", **ATOMIC)] = ()


class TemplateResourceRef(Model, frozen=True, kw_only=True):
    """An object of the management cluster that templates may use."""

    resource: Annotated[Reference, doc("The object.", required=True)] = Reference()
    identifier: Annotated[str, doc("What templates call it.", required=True)] = ""
    optional: Annotated[bool, doc("Whether it may be missing.")] = False


_RAW = dict[str, Any]


class ProfileSpec(Model, frozen=True, kw_only=True):
    """Which add-ons go on which clusters, and what becomes of them."""

    cluster_selector: Annotated[
        LabelSelector, doc("Clusters by their labels. Empty matches none.", **{"x-kubernetes-map-type": "atomic"})
    ] = LabelSelector()
    cluster_refs: Annotated[tuple[Reference, ...], doc("Clusters by name.", **ATOMIC)] = ()
    set_refs: Annotated[tuple[str, ...], doc("Sets of clusters, by name.", **ATOMIC)] = ()
    sync_mode: Annotated[
        str, doc("How the add-ons are kept in step.", choice=SyncMode, default=SyncMode.CONTINUOUS.value)
    ] = SyncMode.CONTINUOUS.value
    tier: Annotated[int, _TIER] = 100
    continue_on_conflict: Annotated[bool, doc("Go on with the others where one is somebody else's.")] = False
    continue_on_error: Annotated[bool, doc("Go on with the others where one fails.")] = False
    max_update: Annotated[
        int | str | None,
        doc("How many clusters at once: a number or a share (30%).", pattern="^((100|[0-9]{1,2})%|[0-9]+)$"),
    ] = None
    stop_matching_behavior: Annotated[
        str | None,
        doc(
            "What becomes of the add-ons when a cluster no longer matches. RemovePolicies means WithdrawPolicies.",
            choice=StopMatchingBehavior,
            default=StopMatchingBehavior.WITHDRAW.value,
        ),
    ] = None
    cluster_deletion_behavior: Annotated[
        str | None,
        doc(
            "What becomes of the add-ons when the cluster itself is deleted. LeavePolicies: they stay. "
            "RemovePolicies: their removal is tried, and the cluster does not wait for it. "
            "EnforceRemovePolicies: the cluster waits until they were seen to be absent.",
            choice=ClusterDeletionBehavior,
            default=ClusterDeletionBehavior.REMOVE.value,
        ),
    ] = None
    """None where it is not served: an API server that knows the field sets its default."""
    depends_on: Annotated[
        tuple[str, ...],
        doc(
            "Profiles of the same kind that this one needs: they are deployed before it and go after it.",
            maxItems=1000,
            **ATOMIC,
            items={"type": "string", "maxLength": 253},
        ),
    ] = ()
    policy_refs: Annotated[tuple[PolicyRef, ...], doc("Manifests.", **ATOMIC)] = ()
    helm_charts: Annotated[tuple[HelmChart, ...], doc("Helm charts.", **ATOMIC)] = ()
    kustomization_refs: Annotated[tuple[KustomizationRef, ...], doc("Kustomizations.", **ATOMIC)] = ()
    template_resource_refs: Annotated[
        tuple[TemplateResourceRef, ...], doc("Objects that templates use.", **listed("identifier"))
    ] = ()
    pre_deploy_checks: Annotated[tuple[_RAW, ...], doc("What is checked before deploying.", **ATOMIC)] = ()
    validate_healths: Annotated[tuple[_RAW, ...], doc("What is checked after deploying.", **ATOMIC)] = ()
    pre_delete_checks: Annotated[tuple[_RAW, ...], doc("What is checked before removing.", **ATOMIC)] = ()
    post_delete_checks: Annotated[tuple[_RAW, ...], doc("What is checked after removing.", **ATOMIC)] = ()
    drift_exclusions: Annotated[tuple[_RAW, ...], doc("What may differ.", **ATOMIC)] = ()
    patches: Annotated[tuple[_RAW, ...], doc("What is patched before deploying.", **ATOMIC)] = ()
    reloader: Annotated[bool, doc("Restart workloads whose ConfigMaps or Secrets changed.")] = False

    @property
    def deletion(self) -> ClusterDeletionBehavior | Unknown:
        """What becomes of the add-ons when their cluster is deleted; RemovePolicies where nothing is said."""
        said = self.cluster_deletion_behavior
        return ClusterDeletionBehavior.REMOVE if said is None else ClusterDeletionBehavior.read(said)

    @property
    def stop_matching(self) -> StopMatchingBehavior | Unknown:
        """What becomes of the add-ons when a cluster no longer matches; WithdrawPolicies where nothing is said."""
        said = self.stop_matching_behavior
        return StopMatchingBehavior.WITHDRAW if said is None else StopMatchingBehavior.read(said)


class ClusterProfile(Model, frozen=True, kw_only=True):
    """Add-ons for clusters in any namespace."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[ProfileSpec, doc("Which add-ons go on which clusters.")] = ProfileSpec()
    status: Annotated[ProfileStatus, doc("Which clusters match.")] = ProfileStatus()


class Profile(ClusterProfile, frozen=True, kw_only=True):
    """Add-ons for the clusters of its namespace."""


class ClusterSummarySpec(Model, frozen=True, kw_only=True):
    """One profile on one cluster."""

    cluster_namespace: Annotated[str, doc("The cluster's namespace.", required=True)] = ""
    cluster_name: Annotated[str, doc("The cluster's name.", required=True)] = ""
    cluster_type: Annotated[str, doc("Capi or Sveltos.", required=True)] = ""
    cluster_profile_spec: Annotated[ProfileSpec, doc("What the profile says.")] = ProfileSpec()


class ClusterSummary(Model, frozen=True, kw_only=True):
    """How far one profile has come on one cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[ClusterSummarySpec, doc("Which profile, on which cluster.")] = ClusterSummarySpec()
    status: Annotated[ClusterSummaryStatus, doc("What was deployed or removed.")] = ClusterSummaryStatus()


def summary_name(*, profile_kind: str, profile: str, cluster_type: ClusterType, cluster: str) -> str:
    """What Sveltos calls the summary of a profile on a cluster."""
    prefix = "p--" if profile_kind == PROFILES.kind else ""
    return f"{prefix}{profile}-{cluster_type.value.lower()}-{cluster}"


class SveltosClusterSpec(Model, frozen=True, kw_only=True):
    """How a cluster is reached."""

    kubeconfig_name: Annotated[str, doc("The Secret with its kubeconfig; NAME-sveltos-kubeconfig if empty.")] = ""
    kubeconfig_key_name: Annotated[str, doc("The key in that Secret; the first one if empty.")] = ""
    paused: Annotated[bool, doc("Leave it alone for now.")] = False
    pull_mode: Annotated[bool, doc("Whether an agent in the cluster fetches what it shall have.")] = False


class SveltosClusterStatus(Model, frozen=True, kw_only=True):
    """Whether a cluster is reached."""

    ready: Annotated[bool, doc("Whether it can be deployed to.")] = False
    version: Annotated[str, doc("Its Kubernetes version.")] = ""
    connection_status: Annotated[str, doc("Healthy or Down.")] = ""
    failure_message: Annotated[str | None, doc("Why it is not ready.")] = None
    connection_failures: Annotated[int, doc("How often in a row it was not reached.")] = 0


class SveltosCluster(Model, frozen=True, kw_only=True):
    """A cluster that is registered by its kubeconfig. Deleting one only means that it is no longer managed."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[SveltosClusterSpec, doc("How it is reached.")] = SveltosClusterSpec()
    status: Annotated[SveltosClusterStatus, doc("Whether it is reached.")] = SveltosClusterStatus()

    @property
    def kubeconfig_secret(self) -> str:
        return self.spec.kubeconfig_name or f"{self.metadata.name}-sveltos-kubeconfig"
