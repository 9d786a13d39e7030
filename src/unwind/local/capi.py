"""Cluster API's core manager on the management cluster, and Clusters with members as workload clusters."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from unwind.api.capi import CLUSTERS
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.object_watch import until, until_absent, until_true
from unwind.local import stubs
from unwind.local.cluster import ALL_RIGHTS
from unwind.local.paths import Port
from unwind.local.processes import Daemon, DiedEarlyError, well
from unwind.local.stubs import CLUSTER_CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from unwind.kube.client import Client, Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane_programs import ClusterFiles

USER = "capi-manager"
_INSTALLING_AT_ONCE = 4
_ATTEMPTS = 3
_STARTING = 60.0
# Mounts a hosts file in a mount namespace of its own, and becomes the program that follows.
_WITH_HOSTS = ("unshare", "--mount", "sh", "-ec", 'mount --bind "$0" /etc/hosts; exec "$@"')


class ClusterApi:
    """Cluster API on a management cluster: its CRDs, the stub CRDs with their ClusterClass, and its manager.

    Its conversion webhook is registered, its admission webhooks are not. Providers are simulated by
    unwind.local.provider.
    """

    def __init__(
        self,
        management: LocalCluster,
        *,
        program: Path,
        crds: Path,
        rate_limited: bool = False,
        hosts: Path | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`rate_limited`: reconcile each object at most once a second, as installations do; setup then takes 4 s.

        `hosts`: a hosts file, by which the manager finds Services; needs root.
        """
        self.daemon: Daemon | None = None
        self._management = management
        self._program = program
        self._crds = crds
        self._rate_limited = rate_limited
        self._hosts = hosts
        self._changed = changed
        self._ports: list[Port] = []

    async def start(self) -> None:
        """Start it; return when it reconciles."""
        definitions = await asyncio.to_thread(read_definitions, self._crds)
        self._management.write_kubeconfig(USER, groups=ALL_RIGHTS)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._start(definitions)
            except BaseException as error:
                await self.stop()
                # The port is reserved on loopback, but the webhook server listens on all addresses.
                taken = isinstance(error, DiedEarlyError) and "address already in use" in error.words
                if not taken or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def stop(self) -> None:
        """Stop the manager. Its objects remain."""
        if self.daemon:
            await self.daemon.stop()
        for port in self._ports:
            port.release()

    async def _start(self, definitions: list[Object]) -> None:
        client = self._management.client
        health, webhooks = self._ports = [Port(), Port()]
        conversion = self._conversion(webhooks)
        convertible = [obj | {"spec": obj["spec"] | {"conversion": conversion}} for obj in definitions]
        await gather_limited(
            (
                install_definition(client, definition)
                for definition in [*convertible, *stubs.custom_resource_definitions()]
            ),
            limit=_INSTALLING_AT_ONCE,
        )
        for resource, manifest in stubs.cluster_class():
            await client.apply(resource, manifest)
        await self._restart_garbage_collection()
        self.daemon = self._manager(health=health, webhooks=webhooks)
        await self.daemon.start(within=_STARTING)
        # Its readiness probe only shows that the webhook server listens, which is before any controller runs.
        await until(
            client,
            CLUSTER_CLASSES,
            stubs.CLASS,
            _reconciled,
            "reconciled",
            namespace=stubs.CLASS_NAMESPACE,
            within=_STARTING,
        )

    def _conversion(self, webhooks: Port) -> Object:
        """The conversion webhook: without it, a Cluster written as v1beta1 loses its references."""
        authority = self._management.files.certificate("ca").read_bytes()
        config = {"url": f"https://127.0.0.1:{webhooks}/convert", "caBundle": base64.b64encode(authority).decode()}
        return {"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}}

    async def _restart_garbage_collection(self) -> None:
        # The garbage collector discovers new kinds when it starts and every 30 s. Until then, dependents of a new
        # kind's objects outlive them.
        for daemon in self._management.daemons:
            if daemon.name == "kube-controller-manager":
                await daemon.stop()
                await daemon.start()

    def _manager(self, *, health: Port, webhooks: Port) -> Daemon:
        management = self._management
        argv = manager(
            self._program,
            management.files,
            health=health.number,
            webhooks=webhooks.number,
            rate_limited=self._rate_limited,
        )
        return Daemon(
            USER,
            [*_WITH_HOSTS, str(self._hosts), *argv] if self._hosts else argv,
            log=management.files.log(USER),
            ready=lambda: well(f"http://127.0.0.1:{health}/readyz"),
            directory=management.files.directory,
            changed=self._changed,
        )


def manager(program: Path, files: ClusterFiles, *, health: int, webhooks: int, rate_limited: bool) -> list[str]:
    """The command line of the manager."""
    gates = {"ClusterTopology": True, "RuntimeSDK": True, "ReconcilerRateLimiting": rate_limited}
    return [
        str(program),
        f"--kubeconfig={files.kubeconfig(USER)}",
        f"--feature-gates={','.join(f'{gate}={str(on).lower()}' for gate, on in gates.items())}",
        f"--health-addr=127.0.0.1:{health}",
        "--diagnostics-address=0",  # off
        # The webhook server cannot be disabled, nor bound to an address.
        f"--webhook-port={webhooks}",
        f"--webhook-cert-dir={files.directory}",
        f"--webhook-cert-name={files.certificate('server').name}",
        f"--webhook-key-name={files.key('server').name}",
    ]


async def create_cluster(
    client: Client,
    *,
    name: str,
    namespace: str,
    member: str,
    topology: bool = True,
    labels: Mapping[str, str] | None = None,
    version: str = "",
    within: float = 60.0,
) -> Object:
    """Create a Cluster with a member as workload cluster, with or without ClusterClass, and wait until Available."""
    manifests = stubs.cluster_of_class if topology else stubs.cluster_by_hand
    version = version or msgspec.json.decode(await client.raw("/version"))["gitVersion"]
    for resource, manifest in manifests(name, namespace, member=member, version=version, labels=labels or {}):
        await client.create(resource, manifest)
    return await until_available(client, name=name, namespace=namespace, within=within)


async def until_available(client: Client, *, name: str, namespace: str, within: float = 60.0) -> Object:
    """Wait until a Cluster is Available, and return it."""
    return await until_true(client, CLUSTERS, name, "Available", namespace=namespace, within=within)


async def delete_cluster(client: Client, *, name: str, namespace: str, within: float = 60.0) -> None:
    """Delete the Cluster of this name; return when it is absent."""
    cluster = await client.get(CLUSTERS, name, namespace=namespace)
    await client.delete(CLUSTERS, name, uid=cluster["metadata"]["uid"], namespace=namespace)
    await until_absent(client, CLUSTERS, name, namespace=namespace, within=within)


def _reconciled(obj: Object | None) -> bool:
    return obj is not None and obj.get("status", {}).get("observedGeneration") == obj["metadata"]["generation"]


async def install_definition(client: Client, definition: Object) -> None:
    """Create a CRD, wait until it is served, and use it once."""
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, definition)
    name, spec = definition["metadata"]["name"], definition["spec"]
    await until_true(client, CUSTOM_RESOURCE_DEFINITIONS, name, "Established", within=_STARTING)
    # The API server sets a kind up on its first request, and answers 429 meanwhile; each controller of the manager
    # would wait a second for that (seen: 2.5 s until it reconciles, instead of 0.6 s).
    version = next(version["name"] for version in spec["versions"] if version["storage"])
    await client.list(Resource(spec["group"], version, spec["names"]["plural"], spec["names"]["kind"]))


def read_definitions(directory: Path) -> list[Any]:
    """The CRDs in the files of a directory."""
    paths = sorted(directory.glob("*.yaml"))
    if not paths:
        raise UnwindError(f"no CRDs in {directory}", remedy="run `unwind local build`")
    return [yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader) for path in paths]
