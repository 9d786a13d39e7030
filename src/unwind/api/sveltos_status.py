"""Sveltos: what is said of profiles and of what was deployed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from unwind.api.fields import ATOMIC, Model, Word, doc, listed
from unwind.api.meta import Condition, ObjectMeta, Reference

_CONDITIONS = doc("What Unwind has to say.", **listed("type"))


class FeatureID(Word):
    """The three ways in which add-ons are given."""

    RESOURCES = "Resources"
    HELM = "Helm"
    KUSTOMIZE = "Kustomize"


class FeatureStatus(Word):
    """How far one of them has come."""

    PROVISIONING = "Provisioning"
    PROVISIONED = "Provisioned"
    FAILED = "Failed"
    FAILED_NON_RETRIABLE = "FailedNonRetriable"
    REMOVING = "Removing"
    REMOVED = "Removed"
    AGENT_REMOVING = "AgentRemoving"


class Clusters(Model, frozen=True, kw_only=True):
    """Clusters that have the same version of a profile."""

    hash: Annotated[str, doc("The version, as a hash.", format="byte")] = ""
    clusters: Annotated[tuple[Reference, ...], doc("The clusters.", **ATOMIC)] = ()


class ProfileStatus(Model, frozen=True, kw_only=True):
    """Which clusters a profile matches."""

    # Sveltos' Go field is MatchingClusterRefs; this is its name in JSON.
    matching_clusters: Annotated[tuple[Reference, ...], doc("The clusters that match.", **ATOMIC)] = ()
    updating_clusters: Annotated[Clusters, doc("Those that are being updated.")] = Clusters()
    updated_clusters: Annotated[Clusters, doc("Those that are up to date.")] = Clusters()
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()


class FeatureSummary(Model, frozen=True, kw_only=True):
    """How far one feature has come on a cluster."""

    feature_id: Annotated[str, doc("Resources, Helm or Kustomize.", required=True, choice=FeatureID)] = msgspec.field(
        default="", name="featureID"
    )
    status: Annotated[str, doc("How far it has come.", choice=FeatureStatus)] = ""
    hash: Annotated[str, doc("What was deployed, as a hash.", format="byte")] = ""
    failure_reason: Annotated[str | None, doc("What kind of failure.")] = None
    failure_message: Annotated[str | None, doc("What went wrong.")] = None
    consecutive_failures: Annotated[int, doc("How often in a row.")] = 0
    last_applied_time: Annotated[datetime | None, doc("When it was last looked after.")] = None


class DeployedKinds(Model, frozen=True, kw_only=True):
    """The kinds that a feature deployed."""

    feature_id: Annotated[str, doc("Resources, Helm or Kustomize.", required=True, choice=FeatureID)] = msgspec.field(
        default="", name="featureID"
    )
    deployed_group_version_kind: Annotated[tuple[str, ...], doc("Each as kind.version.group.", **ATOMIC)] = ()


class HelmReleaseSummary(Model, frozen=True, kw_only=True):
    """What became of a chart."""

    release_name: Annotated[str, doc("The release.", required=True, minLength=1)] = ""
    release_namespace: Annotated[str, doc("Its namespace.", required=True, minLength=1)] = ""
    status: Annotated[str, doc("Managing, or Conflict with another profile.", required=True)] = ""
    conflict_message: Annotated[str, doc("With whom.")] = ""
    failure_message: Annotated[str | None, doc("What Helm said.")] = None
    values_hash: Annotated[str, doc("The values, as a hash.", format="byte")] = ""


class ClusterSummaryStatus(Model, frozen=True, kw_only=True):
    """What was deployed or removed, feature by feature."""

    dependencies: Annotated[str | None, doc("What is waited for.")] = None
    feature_summaries: Annotated[tuple[FeatureSummary, ...], doc("Each feature.", **listed("featureID"))] = ()
    deployed_gvks: Annotated[tuple[DeployedKinds, ...], doc("Kinds deployed.", **listed("featureID"))] = msgspec.field(
        default=(), name="deployedGVKs"
    )
    helm_release_summaries: Annotated[tuple[HelmReleaseSummary, ...], doc("Each release.", **ATOMIC)] = ()
    failure_message: Annotated[str | None, doc("What is wrong with the whole.")] = None
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()


class DeployedResource(Model, frozen=True, kw_only=True):
    """An object on a cluster."""

    group: Annotated[str, doc("Its API group.", required=True)] = ""
    version: Annotated[str, doc("Its version.", required=True, minLength=1)] = ""
    kind: Annotated[str, doc("Its kind.", required=True, minLength=1)] = ""
    namespace: Annotated[str, doc("Its namespace.")] = ""
    name: Annotated[str, doc("Its name.", required=True, minLength=1)] = ""
    last_applied_time: Annotated[datetime | None, doc("When it was last applied.")] = None


class DeployedChart(Model, frozen=True, kw_only=True):
    """A release on a cluster."""

    repo_url: Annotated[str, doc("Where the chart is from.", required=True, minLength=1)] = msgspec.field(
        default="", name="repoURL"
    )
    release_name: Annotated[str, doc("The release.", required=True, minLength=1)] = ""
    namespace: Annotated[str, doc("Its namespace.")] = ""
    chart_version: Annotated[str, doc("The chart's version.", required=True)] = ""
    app_version: Annotated[str, doc("The application's version.")] = ""
    last_applied_time: Annotated[datetime | None, doc("When it was last applied.")] = None


class DeployedFeature(Model, frozen=True, kw_only=True):
    """What one feature put on a cluster."""

    feature_id: Annotated[str, doc("Resources, Helm or Kustomize.", required=True, choice=FeatureID)] = msgspec.field(
        default="", name="featureID"
    )
    resources: Annotated[tuple[DeployedResource, ...], doc("Objects.", **ATOMIC)] = ()
    charts: Annotated[tuple[DeployedChart, ...], doc("Releases.", **ATOMIC)] = ()


_FEATURES = doc("What it put there.", **ATOMIC)


class ClusterProfileResources(Model, frozen=True, kw_only=True):
    """What a ClusterProfile put on a cluster."""

    cluster_profile_name: Annotated[str, doc("The ClusterProfile.", required=True)] = ""
    # With a capital letter: it is Sveltos' own spelling.
    features: Annotated[tuple[DeployedFeature, ...], _FEATURES] = msgspec.field(default=(), name="Features")


class ProfileResources(Model, frozen=True, kw_only=True):
    """What a Profile put on a cluster."""

    profile_name: Annotated[str, doc("The Profile.", required=True)] = ""
    features: Annotated[tuple[DeployedFeature, ...], _FEATURES] = msgspec.field(default=(), name="Features")


class ClusterConfigurationStatus(Model, frozen=True, kw_only=True):
    """What is on a cluster, by profile."""

    cluster_profile_resources: Annotated[tuple[ClusterProfileResources, ...], doc("By ClusterProfile.", **ATOMIC)] = ()
    profile_resources: Annotated[tuple[ProfileResources, ...], doc("By Profile.", **ATOMIC)] = ()


class ClusterConfiguration(Model, frozen=True, kw_only=True):
    """What is on a cluster."""

    metadata: ObjectMeta = ObjectMeta()
    status: Annotated[ClusterConfigurationStatus, doc("What is there.")] = ClusterConfigurationStatus()
