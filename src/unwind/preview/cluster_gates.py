"""Which gate each Cluster has, and why. Read-only, and without the manager."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1, Cluster, ExtensionConfig
from unwind.api.hooks import Hook
from unwind.api.names import NO_CLUSTER_CLASS
from unwind.api.policies import PolicyGate
from unwind.api.resources import NAMESPACES
from unwind.api.unwind import Gate
from unwind.capi import extension_config_faults, hook_protocol
from unwind.capi.admission_policies import extension_name
from unwind.capi.manifests import VERSIONS
from unwind.companions.policy_reader import read_policies
from unwind.kube.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from unwind.api.policies import PolicyCluster
    from unwind.kube.client import Client

# The API server answers this for a kind that it does not serve.
_NOT_SERVED = 404
# What is said if policies differ: a fault first.
_FIRST = (
    PolicyGate.NOT_ARMED,
    PolicyGate.ARMED,
    PolicyGate.NOT_AVAILABLE,
    PolicyGate.NOT_CHOSEN,
    PolicyGate.NOT_NEEDED,
)


class ClusterGate(msgspec.Struct, frozen=True, kw_only=True):
    """The gate of one Cluster."""

    cluster: str
    """NAMESPACE/NAME."""
    gate: str
    """Hook, Machines, Admission or None."""
    state: str
    why: str = ""


async def read_gates(client: Client, *, namespace: str) -> list[ClusterGate]:
    """The gates of all Clusters; none if Cluster API is not installed. `namespace`: that of Unwind."""
    clusters = await list_clusters(client) or []
    if not clusters:
        return []
    chosen: dict[str, list[PolicyCluster]] = {}
    for policy in await read_policies(client):
        for cluster in policy.status.clusters:
            chosen.setdefault(cluster.uid, []).append(cluster)
    config = await _extension(client, extension_name(namespace))
    labels = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in await client.list(NAMESPACES)}
    found = [
        _by_policy(cluster, said) if (said := chosen.get(cluster.metadata.uid)) else _by_hook(cluster, config, labels)
        for cluster in clusters
    ]
    return sorted(found, key=lambda it: it.cluster)


def _by_policy(cluster: Cluster, said: list[PolicyCluster]) -> ClusterGate:
    words = {PolicyGate.read(item.gate): item for item in said}
    first = next((words[word] for word in _FIRST if word in words), said[0])
    return ClusterGate(cluster=_title(cluster), gate=first.gate_kind, state=first.gate, why=first.gate_message)


def _by_hook(cluster: Cluster, config: ExtensionConfig | None, labels: dict[str, dict[str, str]]) -> ClusterGate:
    title = _title(cluster)
    if not cluster.class_name:
        why = f"{NO_CLUSTER_CLASS}, and no TeardownPolicy selects it; choose a gate in one"
        return ClusterGate(cluster=title, gate=Gate.NONE.value, state=PolicyGate.NOT_AVAILABLE.value, why=why)
    name = config.metadata.name if config else ""
    handlers = [hook_protocol.handler(Hook.BEFORE_CLUSTER_DELETE)]
    fault = extension_config_faults.why_not(
        config, name=name, handlers=handlers, labels=labels.get(cluster.metadata.namespace)
    )
    state = PolicyGate.NOT_ARMED if fault else PolicyGate.ARMED
    why = str(fault) if fault else "Cluster API calls the hook"
    return ClusterGate(cluster=title, gate=Gate.HOOK.value, state=state.value, why=why)


def _title(cluster: Cluster) -> str:
    return f"{cluster.metadata.namespace}/{cluster.metadata.name}"


async def list_clusters(client: Client) -> list[Cluster] | None:
    """The Clusters of Cluster API, in the version that is served; None if it is not installed."""
    for resource in (CLUSTERS, CLUSTERS_V1BETA1):
        try:
            return msgspec.convert(await client.list(resource), list[Cluster])
        except ApiError as error:
            if error.code != _NOT_SERVED:
                raise
    return None


async def _extension(client: Client, name: str) -> ExtensionConfig | None:
    for resource in VERSIONS:
        try:
            return await client.get(resource, name, type=ExtensionConfig)
        except NotFoundError:
            return None
        except ApiError as error:
            if error.code != _NOT_SERVED:
                raise
    return None
