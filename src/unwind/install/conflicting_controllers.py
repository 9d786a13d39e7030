"""Finds controllers of other systems that would work against Unwind, by their workloads and Leases."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.features import Feature, Features
from unwind.api.resources import DEPLOYMENTS, LEASES, STATEFUL_SETS, Resource
from unwind.install.running_managers import lease_held

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from unwind.kube.client import Client


Object = dict[str, Any]


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """A controller that works on the same objects, and how to recognise it by its official manifests."""

    name: str
    feature: Feature
    """The feature that works on the same objects."""
    namespace: str = ""
    workload: str = ""
    """The name of its Deployment or StatefulSet in `namespace`."""
    labels: dict[str, tuple[str, ...]] = {}
    """A label, with its values, that its workloads carry in any namespace."""
    images: tuple[str, ...] = ()
    """The suffixes of its image repositories; a private registry usually keeps the last path segments."""
    leases: str = ""
    """A pattern for its Leases in `namespace`. It detects controllers that run in another cluster."""
    coexists: bool = False
    """If set, it may keep running; install prints this as a warning."""
    note: str = ""


def _sveltos(name: str, *, workload: str = "") -> Rival:
    workload = workload or name
    return Rival(
        name=f"Sveltos' {name}",
        feature=Feature.ADDONS,
        namespace="projectsveltos",
        workload=workload,
        labels={"control-plane": (workload,)},
        images=(f"projectsveltos/{name}",),
    )


RIVALS: tuple[Rival, ...] = (
    # Sveltos has no leader election, so there is no Lease. Its shards have other names, but the same labels.
    _sveltos("addon-controller"),
    _sveltos("sveltoscluster-manager", workload="sc-manager"),
    # It starts addon-controllers when a cluster gets a shard.
    _sveltos("shard-controller"),
    # It runs in the host cluster and works on Karmada's own API server: its Deployment is in the former, only its Lease
    # in the latter. The chart, the operator and karmadactl label it differently.
    Rival(
        name="Karmada's controller-manager",
        feature=Feature.KARMADA,
        namespace="karmada-system",
        workload="karmada-controller-manager",
        labels={
            "app": ("karmada-controller-manager",),
            "app.kubernetes.io/name": ("karmada-controller-manager",),
        },
        images=("karmada/karmada-controller-manager",),
        leases="karmada-controller-manager",
    ),
    # Runs in pull-mode members and applies their Works. It does not conflict within the member itself.
    Rival(name="Karmada's agent", feature=Feature.KARMADA, namespace="karmada-system", leases="karmada-agent-*"),
    Rival(
        name="OpenKruise",
        feature=Feature.PROTECTION,
        namespace="kruise-system",
        workload="kruise-controller-manager",
        images=("openkruise/kruise-manager",),
        coexists=True,
        note="its deletion protection keeps working beside Unwind's",
    ),
    Rival(
        name="Azure Service Operator",
        feature=Feature.EXTERNAL,
        namespace="azureserviceoperator-system",
        workload="azureserviceoperator-controller-manager",
        labels={"app": ("azure-service-operator-v2",)},
        images=("k8s/azureserviceoperator",),
        coexists=True,
        note="Unwind does not delete Azure resources that it manages",
    ),
)


CONFLICTING: Features = frozenset(rival.feature for rival in RIVALS if not rival.coexists)
"""The features that do not run beside a rival."""


class Alive(msgspec.Struct, frozen=True):
    """A running rival, and how to stop it."""

    rival: Rival
    found: str
    remedy: str


async def find_rivals(client: Client, features: Features, *, now: datetime) -> list[Alive]:
    """The rivals of these features that are running in this cluster."""
    if not any(rival.feature in features for rival in RIVALS):
        return []
    seen: list[Alive] = []
    for resource in (DEPLOYMENTS, STATEFUL_SETS):
        seen += in_workloads(resource, await client.list(resource))
    seen += in_leases(await client.list(LEASES), now=now)
    return [alive for alive in seen if alive.rival.feature in features]


def in_workloads(resource: Resource, workloads: Iterable[Object]) -> list[Alive]:
    """The rivals with a workload in this cluster that has, or is to have, replicas."""
    seen = []
    for workload in workloads:
        rival = next((rival for rival in RIVALS if _belongs(workload, rival)), None)
        # The desired replicas count, because one that is not running yet may start at any moment.
        wanted = workload.get("spec", {}).get("replicas", 1)
        status = workload.get("status", {})
        if rival is None or not (wanted or status.get("replicas", 0)):
            continue
        namespace, name = workload["metadata"]["namespace"], workload["metadata"]["name"]
        kind = resource.kind.lower()
        seen.append(
            Alive(
                rival,
                f"{resource.kind} {namespace}/{name}, {status.get('availableReplicas', 0)} of {wanted} available",
                f"kubectl -n {namespace} scale {kind} {name} --replicas=0",
            )
        )
    return seen


def in_leases(leases: Iterable[Object], *, now: datetime) -> list[Alive]:
    """The rivals that hold a Lease here, in whichever cluster they run."""
    seen = []
    for lease in leases:
        namespace, name = lease["metadata"]["namespace"], lease["metadata"]["name"]
        for rival in RIVALS:
            if (
                rival.leases
                and namespace == rival.namespace
                and fnmatchcase(name, rival.leases)
                and lease_held(lease, now=now)
            ):
                holder = lease["spec"]["holderIdentity"]
                seen.append(
                    Alive(
                        rival,
                        f"Lease {namespace}/{name}, held by {holder}",
                        f"stop {holder} and wait until its Lease expires",
                    )
                )
    return seen


def _belongs(workload: Object, rival: Rival) -> bool:
    metadata = workload["metadata"]
    if rival.workload and (metadata["namespace"], metadata["name"]) == (rival.namespace, rival.workload):
        return True
    labels = metadata.get("labels") or {}
    if any(labels.get(label) in values for label, values in rival.labels.items()):
        return True
    containers = workload.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or []
    return any(_from_image(container.get("image", ""), image) for container in containers for image in rival.images)


def _from_image(image: str, repository: str) -> bool:
    """Whether the image is from this repository, in any registry, with any tag or digest."""
    path = image.partition("@")[0]
    head, slash, last = path.rpartition("/")
    path = f"{head}{slash}{last.partition(':')[0]}"
    return path == repository or path.endswith(f"/{repository}")
