"""Controllers of others on a local cluster: Cluster API's providers for kubeadm and for Helm (CAAPH), and Flux."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.concurrency import gather_limited
from unwind.local import build, tools
from unwind.local.capi import install_definition, read_definitions
from unwind.local.cluster import ALL_RIGHTS
from unwind.local.paths import Port
from unwind.local.processes import Daemon, ProcessId, well
from unwind.local.stubs import CONTRACT_LABEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from unwind.local.build import Toolbox
    from unwind.local.cluster import LocalCluster
    from unwind.local.tools import Tool

RUNTIME_NAMESPACE = "flux-system"
_INSTALLING_AT_ONCE = 4
_STARTING = 60.0


class CompanionController:
    """A controller, and its CRDs. It acts with all rights, and can be stopped and started again."""

    def __init__(self, cluster: LocalCluster, tool: Tool, toolbox: Toolbox) -> None:
        self.name = tool.name
        self._cluster = cluster
        self._tool = tool
        self._toolbox = toolbox
        self._ports: list[Port] = []
        self._daemon: Daemon | None = None

    @property
    def process(self) -> ProcessId | None:
        """The running process."""
        return self._daemon.process if self._daemon else None

    @property
    def log(self) -> Path:
        return self._cluster.files.log(self.name)

    async def install(self) -> None:
        """Install the CRDs, also those of the sources that it watches."""
        definitions = await asyncio.to_thread(read_definitions, self._toolbox.assets_of(self._tool))
        if self._tool == tools.KUBEADM_CONTROL_PLANE:
            # Only the kustomization of the release sets it; see `stubs`.
            for definition in definitions:
                definition["metadata"]["labels"] = {CONTRACT_LABEL: "v1beta2"}
        await gather_limited(
            (install_definition(self._cluster.client, definition) for definition in definitions),
            limit=_INSTALLING_AT_ONCE,
        )

    async def start(self) -> None:
        """Start it; return when it answers that it is ready."""
        self._ports = [Port(), Port()]
        health, webhooks = self._ports
        config = self._cluster.write_kubeconfig(self.name, groups=ALL_RIGHTS)
        argv = command(
            self._tool,
            self._toolbox.program(self._tool),
            kubeconfig=config,
            health=health.number,
            webhooks=webhooks.number,
            certificates=await asyncio.to_thread(self._certificates),
        )
        self._daemon = Daemon(
            self.name,
            argv,
            log=self.log,
            ready=lambda: well(f"http://127.0.0.1:{health}/readyz"),
            directory=self._cluster.files.directory,
        )
        await self._daemon.start(within=_STARTING)

    async def stop(self) -> None:
        """Stop it. Its objects and CRDs remain."""
        if self._daemon:
            await self._daemon.stop()
            self._daemon = None
        for port in self._ports:
            port.release()

    def _certificates(self) -> Path:
        """A directory with the certificate of the webhook server, which Cluster API's providers always start. No
        webhook calls it."""
        files = self._cluster.files
        directory = files.directory / f"{self.name}-webhooks"
        directory.mkdir(exist_ok=True)
        shutil.copyfile(files.certificate("server"), directory / "tls.crt")
        shutil.copyfile(files.key("server"), directory / "tls.key")
        return directory


def command(
    tool: Tool, program: Path, *, kubeconfig: Path, health: int, webhooks: int, certificates: Path
) -> list[str]:
    """The command line of a controller, without leader election and with its ports on loopback."""
    if tool in (tools.CAAPH, tools.KUBEADM_CONTROL_PLANE):
        # It would reconcile each object at most once a second.
        gates = ["--feature-gates=ReconcilerRateLimiting=false"] if tool == tools.KUBEADM_CONTROL_PLANE else []
        return [
            str(program),
            f"--kubeconfig={kubeconfig}",
            f"--health-addr=127.0.0.1:{health}",
            "--diagnostics-address=0",  # off
            f"--webhook-port={webhooks}",
            f"--webhook-cert-dir={certificates}",
            *gates,
        ]
    return [
        # Flux has no flag for the kubeconfig; `env` is replaced by the program, which keeps the pid.
        "env",
        f"KUBECONFIG={kubeconfig}",
        f"RUNTIME_NAMESPACE={RUNTIME_NAMESPACE}",
        str(program),
        f"--health-addr=127.0.0.1:{health}",
        "--metrics-addr=0",  # off
        "--feature-gates=ExternalArtifact=true",
        # Tests would wait for the defaults of 30 s and of up to 15 min.
        "--requeue-dependency=1s",
        "--min-retry-delay=100ms",
        "--max-retry-delay=2s",
        # A source that is gone would occupy a worker for minutes, and there are four.
        "--http-retry=0",
    ]


@asynccontextmanager
async def running(tool: Tool, cluster: LocalCluster) -> AsyncIterator[CompanionController]:
    """A controller on this cluster, with its CRDs; built first if it is missing."""
    controller = CompanionController(cluster, tool, await build.toolbox([tool]))
    await controller.install()
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()
