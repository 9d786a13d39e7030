"""API types of Sveltos: status of profiles and ClusterSummaries, and ClusterConfiguration."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from unwind.api.fields import ATOMIC, Model, Word, doc, listed
from unwind.api.meta import Condition, ObjectMeta, Reference

_CONDITIONS = doc("Conditions of the object.", **listed("type"))


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
    feature_summaries: Annotated[tuple[FeatureSummary, ...], doc("State of each feature.", **listed("featureID"))] = ()
    deployed_gvks: Annotated[
        tuple[DeployedKinds, ...], doc("Kinds that each feature deployed.", **listed("featureID"))
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
