"""The nodes of a cluster whose Pods run for real."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.resources import LEASES, NODES, PODS
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.client import Client
from unwind.kube.errors import AlreadyExistsError, ApiError, NotFoundError, UnreachableError
from unwind.kube.informers import Informer
from unwind.local.cluster import ALL_RIGHTS
from unwind.local.plane_programs import RUNS_PODS
from unwind.local.pods import images
from unwind.local.pods.addresses import Addresses
from unwind.local.pods.container import now
from unwind.local.pods.pod import PodRunner
from unwind.local.pods.services import ServiceProxy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.decoding import RawObject
    from unwind.local.cluster import LocalCluster
    from unwind.local.pods.images import Image

log = logs.get(__name__)

NODE_NAMES = ("machine-1", "machine-2")
NODE_SELECTOR = {RUNS_PODS: "true"}
"""The nodeSelector of Pods that are to run for real."""
TOLERATIONS = [{"key": RUNS_PODS, "operator": "Exists", "effect": "NoSchedule"}]
"""Their tolerations: no other Pod is scheduled here."""
CHART_VALUES = {
    "nodeSelector": NODE_SELECTOR,
    "tolerations": TOLERATIONS,
    # All Pods share the network of this machine, each with an address of its own.
    "env": [
        {"name": "UNWIND_LISTEN", "value": "$(POD_IP):9443"},
        {"name": "UNWIND_METRICS_LISTEN", "value": "$(POD_IP):8080"},
    ],
}
"""Values of Unwind's chart, for replicas that run here."""
USER = "system:node-agent"
_LEASE_SECONDS = 40
_RENEWED_EVERY = 10.0
_CAPACITY = {"cpu": "32", "memory": "64Gi", "pods": "200"}


class PodAgent:
    """Runs the Pods of two nodes; use it as an async context manager. Needs root."""

    def __init__(self, cluster: LocalCluster, archives: Mapping[str, Path]) -> None:
        """`archives`: the OCI archive for each image, by the last part of its name, such as `unwind`."""
        self.runners: dict[str, PodRunner] = {}
        """By the uid of the Pod."""
        self._cluster = cluster
        self._archives = archives
        self._images: dict[str, Image] = {}
        self._addresses = Addresses()
        self._client = Client(cluster.connection(USER, groups=ALL_RIGHTS), user_agent="node-agent")
        self._tasks: set[asyncio.Task[None]] = set()
        self._directory = cluster.files.directory / "pods"
        self.hosts = self._directory / "hosts"
        """A hosts file with the Services of the cluster."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register the nodes, and run their Pods from now on."""
        if os.geteuid():
            raise UnwindError("cannot run Pods: this user is not root", remedy="run it as root")
        for name, archive in self._archives.items():
            self._images[name] = await asyncio.to_thread(images.unpack_image, archive)
        self._addresses.__enter__()
        await self._client.__aenter__()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._start(ServiceProxy(self._client, self._addresses, self.hosts).run(), "services")
            for name in NODE_NAMES:
                await self._register(name)
            self._start(self._renew(), "node leases")
            informer = Informer(self._client, decoding.raw(PODS))
            informer.subscribe(self._changed)
            self._start(informer.run(), "pods")
            await informer.until_synced()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Kill all Pods, and remove the nodes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in NODE_NAMES:
            with suppress(ApiError, UnreachableError):
                node = await self._client.get(NODES, name)
                await self._client.delete(NODES, name, uid=node["metadata"]["uid"])
        await self._client.__aexit__(None, None, None)
        self._addresses.__exit__()
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    def runner(self, pod: Object) -> PodRunner:
        """The runner of a Pod."""
        return self.runners[pod["metadata"]["uid"]]

    def _start(self, work: object, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("task of a node failed", task=task.get_name(), exc_info=error)

    def _changed(self, change: Change[RawObject]) -> None:
        if change.old and (not change.new or change.new.uid != change.old.uid) and change.old.uid in self.runners:
            self.runners[change.old.uid].gone()
        if not change.new:
            return
        pod = change.new.decode()
        if pod["spec"].get("nodeName") not in NODE_NAMES:
            return
        if runner := self.runners.get(change.new.uid):
            runner.see(pod)
        elif (
            pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]
        ):
            runner = self.runners[change.new.uid] = self._new_runner(pod)
            self._start(self._run(runner), f"pod {change.key}")

    async def _run(self, runner: PodRunner) -> None:
        try:
            await runner.run()
        finally:
            self.runners.pop(runner.pod["metadata"]["uid"], None)
            self._addresses.free(runner.ip)

    def _new_runner(self, pod: Object) -> PodRunner:
        port = str(self._cluster.port)
        return PodRunner(
            self._client,
            pod,
            directory=self._directory / pod["metadata"]["uid"],
            find_image=lambda reference: self._images.get(images.repository(reference)),
            variables={
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": port,
                "KUBERNETES_SERVICE_PORT_HTTPS": port,
            },
            hosts=self.hosts,
            ip=self._addresses.take(),
            host_ip=self._addresses.node,
        )

    # Nodes

    async def _register(self, name: str) -> None:
        with suppress(AlreadyExistsError):
            await self._client.create(NODES, self._node(name))

    def _node(self, name: str) -> Object:
        arch = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        ready = {"type": "Ready", "status": "True", "reason": "AgentReady", "lastTransitionTime": now()}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    **NODE_SELECTOR,
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": arch,
                    "topology.kubernetes.io/zone": name,
                },
            },
            "spec": {"taints": [{"key": RUNS_PODS, "value": "true", "effect": "NoSchedule"}]},
            "status": {
                "addresses": [{"type": "InternalIP", "address": self._addresses.node}],
                "allocatable": _CAPACITY,
                "capacity": _CAPACITY,
                "conditions": [ready | {"lastHeartbeatTime": now()}],
            },
        }

    async def _renew(self) -> None:
        """Renew the Leases by which the controller manager sees that nodes are alive."""
        while True:
            for name in NODE_NAMES:
                spec = {
                    "holderIdentity": name,
                    "leaseDurationSeconds": _LEASE_SECONDS,
                    "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                }
                lease = {
                    "apiVersion": LEASES.api_version,
                    "kind": LEASES.kind,
                    "metadata": {"name": name, "namespace": "kube-node-lease"},
                    "spec": spec,
                }
                with suppress(ApiError, UnreachableError, NotFoundError):
                    await self._client.apply(LEASES, lease, field_manager=USER)
            await asyncio.sleep(_RENEWED_EVERY)
