"""Helm releases that a user installed on a member with the real Helm, and policies that select them, for tests."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import yaml

from tests.plane.support.controllers import HOLD
from tests.plane.support.fixed_policies import FixedPolicies
from unwind.api.policies import SourceKind
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.companions.helm_release_handles import HelmCompanion
from unwind.companions.step_source import CompanionSteps, HandleDecision
from unwind.helm.program import Helm
from unwind.kube.errors import NotFoundError
from unwind.local import build, tools
from unwind.testing.charts import chart_metadata

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Effort
    from unwind.companions.companion import Handle
    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps
    from unwind.testing.charts import ChartRepository


class HelmUser:
    """Somebody who runs Helm on a member."""

    def __init__(self, member: LocalCluster, namespace: str, program: Path, repository: ChartRepository) -> None:
        self.client = member.client
        self.namespace = namespace
        self._kubeconfig = member.kubeconfig
        self._program = program
        self._repository = repository

    @classmethod
    async def of(cls, it: TeardownScene, repository: ChartRepository) -> HelmUser:
        return cls(it.member, it.on_member, (await build.ensure([tools.HELM]))["helm"].path, repository)

    async def install(self, release: str, chart: str, *more: str, namespace: str = "") -> None:
        await self._run("install", release, chart, *self._chart(), *more, namespace=namespace)

    async def upgrade(self, release: str, chart: str, *more: str) -> None:
        await self._run("upgrade", release, chart, *self._chart(), *more)

    async def uninstall(self, release: str) -> None:
        await self._run("uninstall", release)

    def _chart(self) -> list[str]:
        return [f"--repo={self._repository.url}", "--version=1.0.0"]

    async def _run(self, *argv: str, namespace: str = "") -> None:
        where = f"--namespace={namespace or self.namespace}"
        await asyncio.to_thread(
            subprocess.run,
            [str(self._program), *argv, where, f"--kubeconfig={self._kubeconfig}"],
            check=True,
            capture_output=True,
            text=True,
        )

    async def secrets(self, release: str, *, namespace: str = "") -> list[Object]:
        """The Secrets of its revisions."""
        where = namespace or self.namespace
        return await self.client.list(SECRETS, namespace=where, labels=f"owner=helm,name={release}")

    async def config_map(self, name: str) -> Object | None:
        with suppress(NotFoundError):
            return await self.client.get(CONFIG_MAPS, name, namespace=self.namespace)
        return None

    async def hold(self, name: str) -> None:
        """Give a ConfigMap a finalizer that no controller removes."""
        await self._set_finalizers(name, [HOLD])

    async def free(self, name: str) -> None:
        """Remove all finalizers from a ConfigMap."""
        await self._set_finalizers(name, None)

    async def _set_finalizers(self, name: str, finalizers: list[str] | None) -> None:
        patch = {"metadata": {"finalizers": finalizers}}
        await self.client.patch(CONFIG_MAPS, name, patch, namespace=self.namespace)


def chart_file(name: str, annotations: Mapping[str, str]) -> str:
    """A Chart.yaml with annotations."""
    return yaml.dump(chart_metadata(name, "1.0.0") | {"annotations": dict(annotations)})


class ReleasePolicies(FixedPolicies):
    """What policies say about releases: those in the namespace of the scene are steps. `efforts`: by name."""

    sources = frozenset({SourceKind.HELM})

    def __init__(
        self,
        it: TeardownScene,
        helm: Helm | None,
        efforts: Mapping[str, Effort] | None = None,
        *,
        named: Collection[str] = (),
        namespace: str = "",
    ) -> None:
        """`named`: the releases that a policy names without wildcards. `namespace`: where steps are, if elsewhere."""
        super().__init__(efforts)
        self._namespace = namespace or it.on_member
        self._helm = helm
        self.named = set(named)

    def steps(self, deps: RemovalDeps) -> CompanionSteps:
        """The step source, for a manager."""
        companion = HelmCompanion(deps.inventories.client, self._helm, named=self.is_named)
        return CompanionSteps(companion, self, deps.members, deps.inventories)

    async def is_named(self, target: ClusterTarget, release: ObjectRef) -> bool:
        return release.name in self.named

    def decide(self, handle: Handle) -> HandleDecision | None:
        if handle.ref.namespace != self._namespace or (handle.exactly and handle.ref.name not in self.named):
            return None
        return super().decide(handle)


async def helm_program() -> Helm:
    """Helm, as the manager runs it."""
    return Helm((await build.ensure([tools.HELM]))["helm"].path)
