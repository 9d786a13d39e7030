"""API types of Sveltos: profiles and clusters (`config.projectsveltos.io`, `lib.projectsveltos.io`)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from unwind.api.fields import ATOMIC, Model, Unknown, Word, doc, list_map
from unwind.api.meta import Condition, LabelSelector, ObjectMeta, Reference
from unwind.api.resources import Resource

# API types of Sveltos: status of profiles and ClusterSummaries, and ClusterConfiguration.

_CONDITIONS = doc("Conditions of the object.", **list_map("type"))


class FeatureID(Word):
    """The ways to deploy add-ons."""

    RESOURCES = "Resources"
    HELM = "Helm"
    KUSTOMIZE = "Kustomize"


class FeatureStatus(Word):
    """State of a feature."""

    PROVISIONING = "Provisioning"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"
    FAILED_NON_RETRIABLE = "FailedNonRetriable"
    REMOVING = "Removing"
    REMOVED = "Removed"
    AGENT_REMOVING = "AgentRemoving"


class Clusters(Model, frozen=True, kw_only=True):
    """Clusters with the same version of a profile."""

    hash: Annotated[str, doc("Hash of the profile's version.", format="byte")] = ""
    clusters: Annotated[tuple[Reference, ...], doc("The clusters.", **ATOMIC)] = ()


class ProfileStatus(Model, frozen=True, kw_only=True):
    """The clusters that a profile matches."""

    # Sveltos' Go field is MatchingClusterRefs; this is its name in JSON.
    matching_clusters: Annotated[tuple[Reference, ...], doc("The matching clusters.", **ATOMIC)] = ()
    updating_clusters: Annotated[Clusters, doc("The clusters that are being updated.")] = Clusters()
    updated_clusters: Annotated[Clusters, doc("The clusters that are up to date.")] = Clusters()
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()


class FeatureSummary(Model, frozen=True, kw_only=True):
    """State of one feature on a cluster."""

    feature_id: Annotated[str, doc("Resources, Helm or Kustomize.", required=True, choice=FeatureID)] = msgspec.field(
        default="", name="featureID"
    )
    status: Annotated[str, doc("State of the feature.", choice=FeatureStatus)] = ""
    hash: Annotated[str, doc("Hash of what was deployed.", format="byte")] = ""
    failure_reason: Annotated[str | None, doc("Category of the failure.")] = None
    failure_message: Annotated[str | None, doc("Message of the failure.")] = None
    consecutive_failures: Annotated[int, doc("Number of consecutive failures.")] = 0
    last_applied_time: Annotated[datetime | None, doc("When the feature was last applied.")] = None


class DeployedKinds(Model, frozen=True, kw_only=True):
    """The kinds that a feature deployed."""

    feature_id: Annotated[str, doc("Resources, Helm or Kustomize.", required=True, choice=FeatureID)] = msgspec.field(
        default="", name="featureID"
    )
    deployed_group_version_kind: Annotated[
        tuple[str, ...], doc("The kinds, each as kind.version.group.", **ATOMIC)
    ] = ()


class HelmReleaseSummary(Model, frozen=True, kw_only=True):
    """State of a Helm release."""

    release_name: Annotated[str, doc("Name of the Helm release.", required=True, minLength=1)] = ""
    release_namespace: Annotated[str, doc("Namespace of the Helm release.", required=True, minLength=1)] = ""
    status: Annotated[str, doc("Managing, or Conflict with another profile.", required=True)] = ""
    conflict_message: Annotated[str, doc("The profile that it conflicts with.")] = ""
    failure_message: Annotated[str | None, doc("Error message of Helm.")] = None
    values_hash: Annotated[str, doc("Hash of the values.", format="byte")] = ""


class ClusterSummaryStatus(Model, frozen=True, kw_only=True):
    """The observed state of a deployment, by feature."""

    dependencies: Annotated[str | None, doc("The profiles that it waits for.")] = None
    feature_summaries: Annotated[
        tuple[FeatureSummary, ...], doc("State of each feature.", **list_map("featureID"))
    ] = ()
    deployed_gvks: Annotated[
        tuple[DeployedKinds, ...], doc("Kinds that each feature deployed.", **list_map("featureID"))
    ] = msgspec.field(default=(), name="deployedGVKs")
    helm_release_summaries: Annotated[tuple[HelmReleaseSummary, ...], doc("State of each Helm release.", **ATOMIC)] = ()
    failure_message: Annotated[str | None, doc("Failure of the deployment as a whole.")] = None
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()


class DeployedResource(Model, frozen=True, kw_only=True):
    """An object on a cluster."""

    group: Annotated[str, doc("API group of the object.", required=True)] = ""
    version: Annotated[str, doc("API version of the object.", required=True, minLength=1)] = ""
    kind: Annotated[str, doc("Kind of the object.", required=True, minLength=1)] = ""
    namespace: Annotated[str, doc("Namespace of the object.")] = ""
    name: Annotated[str, doc("Name of the object.", required=True, minLength=1)] = ""
    last_applied_time: Annotated[datetime | None, doc("When the object was last applied.")] = None


class DeployedChart(Model, frozen=True, kw_only=True):
    """A Helm release on a cluster."""

    repo_url: Annotated[str, doc("URL of the chart repository.", required=True, minLength=1)] = msgspec.field(
        default="", name="repoURL"
    )
    release_name: Annotated[str, doc("Name of the Helm release.", required=True, minLength=1)] = ""
    namespace: Annotated[str, doc("Namespace of the Helm release.")] = ""
    chart_version: Annotated[str, doc("Version of the chart.", required=True)] = ""
    app_version: Annotated[str, doc("Version of the application.")] = ""
    last_applied_time: Annotated[datetime | None, doc("When the Helm release was last applied.")] = None


class DeployedFeature(Model, frozen=True, kw_only=True):
    """The objects and releases that one feature deployed."""

    feature_id: Annotated[str, doc("Resources, Helm or Kustomize.", required=True, choice=FeatureID)] = msgspec.field(
        default="", name="featureID"
    )
    resources: Annotated[tuple[DeployedResource, ...], doc("Deployed objects.", **ATOMIC)] = ()
    charts: Annotated[tuple[DeployedChart, ...], doc("Deployed Helm releases.", **ATOMIC)] = ()


_FEATURES = doc("What the profile deployed, by feature.", **ATOMIC)


class ClusterProfileResources(Model, frozen=True, kw_only=True):
    """What a ClusterProfile deployed on a cluster."""

    cluster_profile_name: Annotated[str, doc("Name of the ClusterProfile.", required=True)] = ""
    # Capitalized: it is Sveltos' own spelling.
    features: Annotated[tuple[DeployedFeature, ...], _FEATURES] = msgspec.field(default=(), name="Features")


class ProfileResources(Model, frozen=True, kw_only=True):
    """What a Profile deployed on a cluster."""

    profile_name: Annotated[str, doc("Name of the Profile.", required=True)] = ""
    features: Annotated[tuple[DeployedFeature, ...], _FEATURES] = msgspec.field(default=(), name="Features")


class ClusterConfigurationStatus(Model, frozen=True, kw_only=True):
    """What is deployed on a cluster, by profile."""

    cluster_profile_resources: Annotated[
        tuple[ClusterProfileResources, ...], doc("Resources by ClusterProfile.", **ATOMIC)
    ] = ()
    profile_resources: Annotated[tuple[ProfileResources, ...], doc("Resources by Profile.", **ATOMIC)] = ()


class ClusterConfiguration(Model, frozen=True, kw_only=True):
    """The add-ons that are deployed on a cluster."""

    metadata: ObjectMeta = ObjectMeta()
    status: Annotated[ClusterConfigurationStatus, doc("What is deployed on the cluster.")] = (
        ClusterConfigurationStatus()
    )


CONFIG_GROUP = "config.projectsveltos.io"
LIB_GROUP = "lib.projectsveltos.io"
CLUSTER_PROFILES = Resource(CONFIG_GROUP, "v1beta1", "clusterprofiles", "ClusterProfile", namespaced=False)
PROFILES = Resource(CONFIG_GROUP, "v1beta1", "profiles", "Profile")
CLUSTER_SUMMARIES = Resource(CONFIG_GROUP, "v1beta1", "clustersummaries", "ClusterSummary")
CLUSTER_CONFIGURATIONS = Resource(CONFIG_GROUP, "v1beta1", "clusterconfigurations", "ClusterConfiguration")
SVELTOS_CLUSTERS = Resource(LIB_GROUP, "v1beta1", "sveltosclusters", "SveltosCluster")


class ClusterDeletionBehavior(Word):
    """What happens to a profile's add-ons when their cluster is deleted."""

    LEAVE = "LeavePolicies"
    """They stay."""
    REMOVE = "RemovePolicies"
    """Best effort: removal is attempted, and cluster deletion does not wait for it."""
    ENFORCE = "EnforceRemovePolicies"
    """They are removed, and cluster deletion waits until all of their objects are verified absent."""


class StopMatchingBehavior(Word):
    """What happens to a profile's add-ons when a cluster no longer matches."""

    WITHDRAW = "WithdrawPolicies"
    # Sveltos' proposal for clusterDeletionBehavior uses this value in its examples; it means WithdrawPolicies.
    REMOVE = "RemovePolicies"
    LEAVE = "LeavePolicies"

    @property
    def withdraws(self) -> bool:
        return self is not StopMatchingBehavior.LEAVE


class SyncMode(Word):
    """How a profile is synchronized to its clusters."""

    ONE_TIME = "OneTime"
    CONTINUOUS = "Continuous"
    CONTINUOUS_WITH_DRIFT_DETECTION = "ContinuousWithDriftDetection"
    DRY_RUN = "DryRun"


class DeploymentType(Word):
    """The cluster that manifests are deployed to."""

    LOCAL = "Local"
    """The management cluster."""
    REMOTE = "Remote"
    """The member cluster."""


class SourceKind(Word):
    """The kind of object that holds manifests."""

    CONFIG_MAP = "ConfigMap"
    SECRET = "Secret"  # noqa: S105 - a kind
    GIT_REPOSITORY = "GitRepository"
    OCI_REPOSITORY = "OCIRepository"
    BUCKET = "Bucket"


class HelmChartAction(Word):
    """What to do with a Helm chart."""

    INSTALL = "Install"
    UNINSTALL = "Uninstall"


class ClusterType(Word):
    """The API that a cluster belongs to."""

    CAPI = "Capi"
    SVELTOS = "Sveltos"


DEFAULT_TIER = 100
_TIER = doc("Precedence if two profiles deploy the same object: the lower tier wins.", minimum=1, default=DEFAULT_TIER)
_DEPLOYMENT_TYPE = doc(
    "Remote (the member) or Local (the management cluster).", choice=DeploymentType, default="Remote"
)


class PolicyRef(Model, frozen=True, kw_only=True):
    """A source of manifests."""

    kind: Annotated[str, doc("Kind of the source.", choice=SourceKind)] = ""
    namespace: Annotated[str, doc("Namespace of the source; defaults to the namespace of the cluster.")] = ""
    name: Annotated[str, doc("Name of the source; may be a template.")] = ""
    path: Annotated[str, doc("Directory within the source.")] = ""
    deployment_type: Annotated[str, _DEPLOYMENT_TYPE] = DeploymentType.REMOTE.value
    optional: Annotated[bool, doc("Whether the source may be missing.")] = False
    tier: Annotated[int, _TIER] = DEFAULT_TIER


class ValuesFrom(Model, frozen=True, kw_only=True):
    """A ConfigMap or Secret with values."""

    kind: Annotated[str, doc("ConfigMap or Secret.", required=True)] = ""
    namespace: Annotated[str, doc("Namespace of the object.")] = ""
    name: Annotated[str, doc("Name of the object.", required=True, minLength=1)] = ""
    optional: Annotated[bool, doc("Whether the object may be missing.")] = False


class HelmChart(Model, frozen=True, kw_only=True):
    """A Helm release."""

    repository_url: Annotated[str, doc("URL of the chart repository.", required=True, minLength=1)] = msgspec.field(
        default="", name="repositoryURL"
    )
    repository_name: Annotated[str, doc("Name of the chart repository.")] = ""
    chart_name: Annotated[str, doc("Name of the chart.")] = ""
    chart_version: Annotated[str, doc("Version of the chart.")] = ""
    release_name: Annotated[str, doc("Name of the Helm release.", required=True, minLength=1)] = ""
    release_namespace: Annotated[str, doc("Namespace of the Helm release.", required=True, minLength=1)] = ""
    helm_chart_action: Annotated[str, doc("Install or Uninstall.", choice=HelmChartAction, default="Install")] = (
        HelmChartAction.INSTALL.value
    )
    values: Annotated[str, doc("Values as YAML; may be a template.")] = ""
    values_from: Annotated[tuple[ValuesFrom, ...], doc("Objects with additional values.", **ATOMIC)] = ()
    options: Annotated[dict[str, Any], doc("Options that are passed to Helm.")] = msgspec.field(default_factory=dict)


class KustomizationRef(PolicyRef, frozen=True, kw_only=True):
    """A source of kustomizations."""

    target_namespace: Annotated[str, doc("Namespace that all objects are placed in.")] = ""
    values: Annotated[dict[str, str], doc("Values for templates.")] = msgspec.field(default_factory=dict)
    values_from: Annotated[tuple[ValuesFrom, ...], doc("Objects with additional values.", **ATOMIC)] = ()


class TemplateResourceRef(Model, frozen=True, kw_only=True):
    """An object of the management cluster that templates can refer to."""

    resource: Annotated[Reference, doc("The object.", required=True)] = Reference()
    identifier: Annotated[str, doc("Name of the object in templates.", required=True)] = ""
    optional: Annotated[bool, doc("Whether the object may be missing.")] = False


_RAW = dict[str, Any]


class ProfileSpec(Model, frozen=True, kw_only=True):
    """The add-ons to deploy, the clusters to deploy them to, and when to remove them."""

    cluster_selector: Annotated[
        LabelSelector,
        doc("Selects clusters by label. An empty selector matches none.", **{"x-kubernetes-map-type": "atomic"}),
    ] = LabelSelector()
    cluster_refs: Annotated[tuple[Reference, ...], doc("Clusters by name.", **ATOMIC)] = ()
    set_refs: Annotated[tuple[str, ...], doc("ClusterSets by name.", **ATOMIC)] = ()
    sync_mode: Annotated[
        str, doc("How add-ons are synchronized.", choice=SyncMode, default=SyncMode.CONTINUOUS.value)
    ] = SyncMode.CONTINUOUS.value
    tier: Annotated[int, _TIER] = DEFAULT_TIER
    continue_on_conflict: Annotated[
        bool, doc("Continue with other objects if an object belongs to another profile.")
    ] = False
    continue_on_error: Annotated[bool, doc("Continue with other objects if an object fails.")] = False
    max_update: Annotated[
        int | str | None,
        doc(
            "Maximum number of clusters to update at once: a number or a percentage (30%).",
            pattern="^((100|[0-9]{1,2})%|[0-9]+)$",
        ),
    ] = None
    stop_matching_behavior: Annotated[
        str | None,
        doc(
            "What to do with the add-ons when a cluster no longer matches. RemovePolicies means WithdrawPolicies.",
            choice=StopMatchingBehavior,
            default=StopMatchingBehavior.WITHDRAW.value,
        ),
    ] = None
    cluster_deletion_behavior: Annotated[
        str | None,
        doc(
            "What to do with the add-ons when the cluster is deleted. LeavePolicies: leave them. "
            "RemovePolicies: try to remove them without blocking cluster deletion. "
            "EnforceRemovePolicies: block cluster deletion until they are verified absent.",
            choice=ClusterDeletionBehavior,
            default=ClusterDeletionBehavior.REMOVE.value,
        ),
    ] = None
    """None if the field is not served: an API server with the field in its schema sets the default."""
    depends_on: Annotated[
        tuple[str, ...],
        doc(
            "Profiles of the same kind that this one depends on. They are deployed before it and removed after it.",
            maxItems=1000,
            **ATOMIC,
            items={"type": "string", "maxLength": 253},
        ),
    ] = ()
    policy_refs: Annotated[tuple[PolicyRef, ...], doc("Sources of manifests to deploy.", **ATOMIC)] = ()
    helm_charts: Annotated[tuple[HelmChart, ...], doc("Helm charts to deploy.", **ATOMIC)] = ()
    kustomization_refs: Annotated[tuple[KustomizationRef, ...], doc("Kustomizations to deploy.", **ATOMIC)] = ()
    template_resource_refs: Annotated[
        tuple[TemplateResourceRef, ...], doc("Objects that templates can refer to.", **list_map("identifier"))
    ] = ()
    pre_deploy_checks: Annotated[tuple[_RAW, ...], doc("Checks before deployment.", **ATOMIC)] = ()
    validate_healths: Annotated[tuple[_RAW, ...], doc("Health checks after deployment.", **ATOMIC)] = ()
    pre_delete_checks: Annotated[tuple[_RAW, ...], doc("Checks before removal.", **ATOMIC)] = ()
    post_delete_checks: Annotated[tuple[_RAW, ...], doc("Checks after removal.", **ATOMIC)] = ()
    drift_exclusions: Annotated[tuple[_RAW, ...], doc("Fields that are ignored in drift detection.", **ATOMIC)] = ()
    patches: Annotated[tuple[_RAW, ...], doc("Patches that are applied before deployment.", **ATOMIC)] = ()
    reloader: Annotated[bool, doc("Restart workloads when their ConfigMaps or Secrets change.")] = False

    @property
    def deletion(self) -> ClusterDeletionBehavior | Unknown:
        """What happens when the cluster is deleted; RemovePolicies by default."""
        said = self.cluster_deletion_behavior
        return ClusterDeletionBehavior.REMOVE if said is None else ClusterDeletionBehavior.read(said)

    @property
    def stop_matching(self) -> StopMatchingBehavior | Unknown:
        """What happens when a cluster no longer matches; WithdrawPolicies by default."""
        said = self.stop_matching_behavior
        return StopMatchingBehavior.WITHDRAW if said is None else StopMatchingBehavior.read(said)


class ClusterProfile(Model, frozen=True, kw_only=True):
    """Add-ons for clusters in all namespaces."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[ProfileSpec, doc("The add-ons, and the clusters to deploy them to.")] = ProfileSpec()
    status: Annotated[ProfileStatus, doc("The matching clusters.")] = ProfileStatus()


class Profile(ClusterProfile, frozen=True, kw_only=True):
    """Add-ons for clusters in the profile's namespace."""


class ClusterSummarySpec(Model, frozen=True, kw_only=True):
    """One profile on one cluster."""

    cluster_namespace: Annotated[str, doc("Namespace of the cluster.", required=True)] = ""
    cluster_name: Annotated[str, doc("Name of the cluster.", required=True)] = ""
    cluster_type: Annotated[str, doc("Type of the cluster: Capi or Sveltos.", required=True)] = ""
    cluster_profile_spec: Annotated[ProfileSpec, doc("Copy of the profile's spec.")] = ProfileSpec()


class ClusterSummary(Model, frozen=True, kw_only=True):
    """The deployment of one profile on one cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[ClusterSummarySpec, doc("The profile and the cluster.")] = ClusterSummarySpec()
    status: Annotated[ClusterSummaryStatus, doc("The observed state of the deployment.")] = ClusterSummaryStatus()


def summary_name(*, profile_kind: str, profile: str, cluster_type: ClusterType, cluster: str) -> str:
    """The name that Sveltos gives to the ClusterSummary of a profile on a cluster."""
    prefix = "p--" if profile_kind == PROFILES.kind else ""
    return f"{prefix}{profile}-{cluster_type.value.lower()}-{cluster}"


class SveltosClusterSpec(Model, frozen=True, kw_only=True):
    """How to connect to a cluster."""

    kubeconfig_name: Annotated[str, doc("Secret with the kubeconfig; defaults to NAME-sveltos-kubeconfig.")] = ""
    kubeconfig_key_name: Annotated[str, doc("Key of the kubeconfig in the Secret; defaults to the first key.")] = ""
    paused: Annotated[bool, doc("Do not deploy to or remove from the cluster while true.")] = False
    pull_mode: Annotated[bool, doc("Whether an agent in the cluster pulls its configuration.")] = False


class SveltosClusterStatus(Model, frozen=True, kw_only=True):
    """The observed state of the connection to a cluster."""

    ready: Annotated[bool, doc("Whether the cluster is ready for deployments.")] = False
    version: Annotated[str, doc("Kubernetes version of the cluster.")] = ""
    connection_status: Annotated[str, doc("Healthy or Down.")] = ""
    failure_message: Annotated[str | None, doc("Why the cluster is not ready.")] = None
    connection_failures: Annotated[int, doc("Number of consecutive connection failures.")] = 0


class SveltosCluster(Model, frozen=True, kw_only=True):
    """A cluster that is registered by its kubeconfig. Deleting it only ends its management; the cluster stays."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[SveltosClusterSpec, doc("How to connect to the cluster.")] = SveltosClusterSpec()
    status: Annotated[SveltosClusterStatus, doc("The observed state of the connection.")] = SveltosClusterStatus()

    @property
    def kubeconfig_secret(self) -> str:
        return self.spec.kubeconfig_name or f"{self.metadata.name}-sveltos-kubeconfig"
