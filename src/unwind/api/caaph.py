"""API types of Cluster API's add-on provider for Helm (CAAPH): `addons.cluster.x-k8s.io/v1alpha1`.

A HelmChartProxy selects Clusters in its namespace. CAAPH creates a HelmReleaseProxy for each, and a Helm release for
that on the cluster. Unwind never installs these CRDs.
"""

from __future__ import annotations

from unwind.api.fields import Model, Word
from unwind.api.meta import Condition, ObjectMeta
from unwind.api.resources import Resource

HELM_CHART_PROXIES = Resource("addons.cluster.x-k8s.io", "v1alpha1", "helmchartproxies", "HelmChartProxy")
HELM_RELEASE_PROXIES = Resource("addons.cluster.x-k8s.io", "v1alpha1", "helmreleaseproxies", "HelmReleaseProxy")
HELM_RELEASE_PROXY_FINALIZER = "helmreleaseproxy.addons.cluster.x-k8s.io"
HELM_CHART_PROXY_LABEL = "helmreleaseproxy.addons.cluster.x-k8s.io/helmchartproxy-name"
"""On a HelmReleaseProxy: the name of its HelmChartProxy, in the same namespace."""


class ReconcileStrategy(Word):
    """How long CAAPH looks after a release."""

    CONTINUOUS = "Continuous"
    INSTALL_ONCE = "InstallOnce"
    """It is installed and never changed. CAAPH does not uninstall it, either."""


class ClusterReference(Model, frozen=True, kw_only=True):
    """The Cluster of a release."""

    kind: str = ""
    namespace: str = ""
    name: str = ""


class UninstallOptions(Model, frozen=True, kw_only=True):
    """Options of `helm uninstall`."""

    keep_history: bool = False


class ReleaseProxyOptions(Model, frozen=True, kw_only=True):
    """Options of Helm."""

    disable_hooks: bool = False
    uninstall: UninstallOptions = UninstallOptions()


class HelmReleaseProxySpec(Model, frozen=True, kw_only=True):
    """A release on a cluster."""

    cluster_ref: ClusterReference = ClusterReference()
    chart_name: str = ""
    release_name: str = ""
    """Empty until CAAPH has installed a release with a generated name."""
    namespace: str = ""
    """The namespace of the release."""
    reconcile_strategy: str = ""
    """Empty for Continuous."""
    options: ReleaseProxyOptions = ReleaseProxyOptions()


class HelmReleaseProxyStatus(Model, frozen=True, kw_only=True):
    """What CAAPH knows about a release."""

    conditions: tuple[Condition, ...] = ()
    status: str = ""
    revision: int = 0


class HelmReleaseProxy(Model, frozen=True, kw_only=True):
    """One release on one cluster."""

    metadata: ObjectMeta
    spec: HelmReleaseProxySpec = HelmReleaseProxySpec()
    status: HelmReleaseProxyStatus = HelmReleaseProxyStatus()


class HelmChartProxy(Model, frozen=True, kw_only=True):
    """One chart for all clusters that it selects."""

    metadata: ObjectMeta
