"""One local cluster: an API server, a controller manager and optional nodes."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from unwind.api.resources import NAMESPACES, NODES, SERVICE_ACCOUNTS, Resource
from unwind.certificates import Authority, KeyPair, new_private_key, private_pem, public_pem
from unwind.concurrency import gather_limited
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.errors import AlreadyExistsError
from unwind.kube.kubeconfig import ClusterConnection
from unwind.local import audit_log, plane_programs
from unwind.local.paths import Port
from unwind.local.processes import Daemon, well

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from unwind.kube.client import Object

ADMIN = "admin"
ALL_RIGHTS = ("system:masters",)
_NODE_NAMES = ("node-1", "node-2")


class Programs(msgspec.Struct, frozen=True, kw_only=True):
    """The binaries of a cluster."""

    api_server: Path
    controller_manager: Path
    nodes: NodePrograms | None = None


class NodePrograms(msgspec.Struct, frozen=True, kw_only=True):
    """The binaries for scheduling and running Pods."""

    scheduler: Path
    kwok: Path
    stages: Path


class LocalCluster:
    """A cluster with its own CA, keys and etcd prefix.

    A request to the wrong cluster fails in the TLS handshake, as between two real clusters.
    """

    def __init__(
        self, name: str, *, directory: Path, programs: Programs, changed: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self.files = plane_programs.ClusterFiles(directory)
        self.audit = audit_log.AuditLog(self.files.audit_log)
        self.daemons: list[Daemon] = []
        self._programs = programs
        self._changed = changed
        self._port = Port()
        self._ports = [self._port]
        self._authority = Authority(f"unwind-local-{name}")
        self._stack = AsyncExitStack()
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """An administrator's client, open while the cluster runs."""
        assert self._client, "the cluster is not up"  # noqa: S101 - a mistake in the calling program
        return self._client

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig file of the administrator."""
        return self.files.kubeconfig(ADMIN)

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """The loopback port of the API server."""
        return self._port.number

    @property
    def api_server(self) -> Daemon:
        """The API server process, which tests may stop and start."""
        return self.daemons[0]

    def connection(self, user: str, *, groups: Sequence[str] = ()) -> ClusterConnection:
        """A connection as this user and groups, with their RBAC rights."""
        pair = self._authority.client(user, groups=groups)
        return ClusterConnection(
            server=self.server,
            authority=self._authority.certificate,
            certificate=pair.certificate,
            key=pair.key,
        )

    def write_kubeconfig(self, user: str, *, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig file for a user; it exists as long as the cluster."""
        path = self.files.kubeconfig(user)
        connection = self.connection(user, groups=groups)
        _write(path, kubeconfig.document(connection, cluster=self.name, user=user).encode())
        return path

    async def start(self) -> None:
        """Start it; return when Pods can be created in it."""
        self.prepare()
        self._client = await self._stack.enter_async_context(Client(kubeconfig.load(self.kubeconfig)))
        programs, files = self._programs, self.files
        await self._daemon(
            "kube-apiserver",
            plane_programs.api_server(programs.api_server, files, prefix=f"/{self.name}", port=self.port),
            ready=self._client.healthy,
        ).start()
        # Not earlier: they would poll for the API server once a second and compete for CPU time.
        others = [
            self._component("kube-controller-manager", programs.controller_manager, plane_programs.controller_manager)
        ]
        if programs.nodes:
            others.append(self._component("kube-scheduler", programs.nodes.scheduler, plane_programs.scheduler))
        await gather_limited((daemon.start() for daemon in others), limit=len(others))
        await self._until_there(SERVICE_ACCOUNTS, "default", namespace="default")
        if programs.nodes:
            await self._start_nodes(programs.nodes)

    async def stop(self) -> None:
        """Stop all processes; the directory remains."""
        for daemon in reversed(self.daemons):
            await daemon.stop()
        await self._stack.aclose()
        for port in self._ports:
            port.release()

    async def create_namespace(self, name: str) -> None:
        """Create a namespace, if missing, and wait until Pods can be created in it."""
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await self.client.create(NAMESPACES, manifest)
        except AlreadyExistsError:
            return
        await self._until_there(SERVICE_ACCOUNTS, "default", namespace=name)

    async def _until_there(self, resource: Resource, name: str, *, namespace: str | None = None) -> None:
        async with aclosing(self.client.watch(resource, namespace=namespace, name=name)) as events:
            async for event in events:
                if event.type in ("ADDED", "MODIFIED"):
                    return

    async def _start_nodes(self, programs: NodePrograms) -> None:
        self.write_kubeconfig("kwok", groups=ALL_RIGHTS)
        for name in _NODE_NAMES:
            await self.client.create(NODES, plane_programs.node(name))
        argv = plane_programs.kwok(programs.kwok, self.files, stages=programs.stages)
        await self._daemon("kwok", argv, ready=self._nodes_ready).start()

    async def _nodes_ready(self) -> bool:
        return all(_node_ready(node) for node in await self.client.list(NODES))

    def _component(self, name: str, program: Path, argv: Callable[..., list[str]]) -> Daemon:
        """A component with its own API user and health port."""
        self.write_kubeconfig(f"system:{name}")
        port = Port()
        self._ports.append(port)
        return self._daemon(
            name,
            argv(program, self.files, port=port.number),
            ready=lambda: well(f"https://127.0.0.1:{port}/healthz", authority=self._authority.certificate),
        )

    def _daemon(self, name: str, argv: list[str], *, ready: Callable[[], Awaitable[bool]]) -> Daemon:
        daemon = Daemon(
            name,
            argv,
            log=self.files.log(name),
            ready=ready,
            directory=self.files.directory.parent,
            changed=self._changed,
        )
        self.daemons.append(daemon)
        return daemon

    def prepare(self) -> None:
        """Write certificates, keys and configuration files."""
        self.files.directory.mkdir(parents=True, mode=0o700)
        self.write_kubeconfig(ADMIN, groups=ALL_RIGHTS)
        service_accounts = new_private_key()
        aggregator = Authority(f"unwind-local-{self.name}-aggregator")
        self._write_pair("ca", self._authority.pair)
        self._write_pair("server", self._authority.server("kube-apiserver", hosts=plane_programs.HOSTS))
        self._write_pair("aggregator-ca", aggregator.pair)
        self._write_pair("aggregator", aggregator.client("front-proxy-client"))
        _write(self.files.key("service-accounts"), private_pem(service_accounts))
        _write(self.files.service_account_public_key, public_pem(service_accounts))
        _write(self.files.audit_policy, yaml.dump(audit_log.POLICY).encode())

    def _write_pair(self, name: str, pair: KeyPair) -> None:
        _write(self.files.certificate(name), pair.certificate)
        _write(self.files.key(name), pair.key)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def _node_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
