"""The environment of the demo: a local control plane with Cluster API, Unwind, and a cluster with add-ons."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.features import Feature
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, Resource
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, Inventory
from unwind.capi.admission_policies import extension_name
from unwind.demo import scenario
from unwind.demo.manager_process import running_manager
from unwind.demo.scenario import operate
from unwind.errors import UnwindError
from unwind.install.install import install
from unwind.kube import object_watch
from unwind.kube.errors import ConflictError, ForbiddenError, NotFoundError
from unwind.local import build, tools
from unwind.local import plane as planes
from unwind.local.build import equip
from unwind.local.capi import create_cluster
from unwind.local.home import Shape
from unwind.local.paths import Port
from unwind.local.stubs import STUB_CLUSTERS, STUB_CONTROL_PLANES
from unwind.testing.charts import ChartRepository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection
    from pathlib import Path

    from unwind.kube.client import Client, Object
    from unwind.local.build import ProgressListener
    from unwind.local.plane import Plane

_USER = f"system:serviceaccount:{HOME}:unwind"
_MEMBER = "member-1"
_FEATURES = frozenset({Feature.ADDONS, Feature.CAPI, Feature.PROTECTION})
# Removing a load balancer takes time.
_CLOUD_DELAY = 4.0
_LONG = 90.0
_LOOK_AGAIN = 0.1


class DemoStage:
    """The running environment of the demo."""

    def __init__(self, plane: Plane, log: Path, kubectl: Path) -> None:
        self.plane = plane
        self._kubectl = kubectl
        self.client = plane.management.client
        self.member = plane.members[_MEMBER]
        self.log = log
        """The log file of the manager."""

    @property
    def member_client(self) -> Client:
        return self.member.client

    @property
    def load_balancers(self) -> int:
        """The number of simulated load balancers."""
        return len(self.plane.clouds[_MEMBER].load_balancers)

    async def cluster(self) -> Object:
        """Create a Cluster and wait until all add-ons are deployed; returns the Cluster."""
        await create_cluster(
            self.client,
            name=scenario.CLUSTER,
            namespace=scenario.NAMESPACE,
            member=_MEMBER,
            labels=scenario.LABELS,
            within=_LONG,
        )
        for profile in scenario.PROFILES:
            await self._until_on(f"{profile}-capi-{scenario.CLUSTER}")
        return await self.client.get(CLUSTERS, scenario.CLUSTER, namespace=scenario.NAMESPACE)

    async def _until_on(self, summary: str) -> None:
        where = scenario.NAMESPACE
        try:
            await object_watch.until(
                self.client, CLUSTER_SUMMARIES, summary, _provisioned, "deployed", namespace=where, within=_LONG
            )
        except UnwindError as error:
            found = await self.client.get(CLUSTER_SUMMARIES, summary, namespace=where)
            told = [feature.get("failureMessage", "") for feature in _features(found)]
            raise UnwindError(error.what, remedy="; ".join(filter(None, told)) or f"see {self.log}") from None

    async def deployed(self) -> int:
        """The number of objects that the add-ons deployed."""
        return sum(len(inventory.spec.entries) for inventory in await self.inventories())

    async def inventories(self) -> list[Inventory]:
        found = await self.client.list(INVENTORIES, namespace=HOME)
        return msgspec.convert(found, list[Inventory])

    async def until_protected(self) -> None:
        """Return when the API server refuses to delete the protected namespace: policies take effect with a delay."""
        uid = (await self.client.get(NAMESPACES, scenario.PROTECTED))["metadata"]["uid"]
        async with asyncio.timeout(_LONG):
            while True:
                try:
                    await self.client.delete(NAMESPACES, scenario.PROTECTED, uid=uid, dry_run=True)
                except ForbiddenError:
                    return
                await asyncio.sleep(_LOOK_AGAIN)

    async def kubectl(self, command: str) -> tuple[int, str]:
        """Run a kubectl command as printed; returns its exit code and output."""
        process = await asyncio.create_subprocess_exec(
            self._kubectl,
            *command.split()[1:],
            env=os.environ | {"KUBECONFIG": str(self.plane.management.kubeconfig)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode().strip()

    def infrastructure_after(self, uids: Collection[str]) -> float:
        """The seconds between the last deletion of these objects on the member and the first deletion of the cluster's
        control plane or infrastructure, from both audit logs. Raises UnwindError if the order is wrong."""
        on_member = [deletion.stage_timestamp for deletion in self.member.audit.deletions() if deletion.uid in uids]
        infrastructure = [
            deletion.request_received_timestamp
            for resource in (STUB_CONTROL_PLANES, STUB_CLUSTERS)
            for deletion in self.plane.management.audit.deletions(
                resource=resource.plural, namespace=scenario.NAMESPACE
            )
        ]
        if not on_member or not infrastructure:
            raise UnwindError(
                "cannot find the deletion of the cluster's infrastructure in the audit logs",
                remedy=f"see {self.log}, and run the demo again",
            )
        last, first = (datetime.fromisoformat(item) for item in (max(on_member), min(infrastructure)))
        if first < last:
            raise UnwindError(
                f"the cluster's infrastructure was deleted at {first}, before its last add-on at {last}",
                remedy=f"report this bug with {self.log}",
            )
        return (first - last).total_seconds()

    async def clear_member(self) -> None:
        """Delete what was left in place, because the member is reused; a real cluster would be gone."""
        for chunk in await self.inventories():
            for entry in chunk.spec.entries.values():
                it = entry.object
                if entry.ledger:
                    resource = Resource(it.group, it.version, entry.resource, it.kind, namespaced=bool(it.namespace))
                    with suppress(NotFoundError, ConflictError):
                        await self.member_client.delete(resource, it.name, uid=it.uid, namespace=it.namespace or None)

    async def let_go(self) -> None:
        """Remove the finalizer without controller, as after a manual backup."""
        found = await self.member_client.get(scenario.DATABASES, scenario.HELD, namespace=scenario.HELD_IN)
        left = [finalizer for finalizer in found["metadata"].get("finalizers", ()) if finalizer != scenario.BACKUP]
        await self.member_client.revise(scenario.DATABASES, found, {"metadata": {"finalizers": left}})


@asynccontextmanager
async def set_up(progress: ProgressListener, announce: Callable[[str], None]) -> AsyncIterator[DemoStage]:
    """The environment without the Cluster; everything is removed at the end."""
    shape = Shape(members=1, nodes=True, helm=True, capi=True, cloud=True, cloud_delay=_CLOUD_DELAY)
    toolbox = await equip(shape, progress)
    kubectl = (await build.ensure([tools.KUBECTL], progress))[tools.KUBECTL.name].path
    async with planes.running(shape, announce=announce) as plane:
        port = Port()
        url = f"https://127.0.0.1:{port}"
        await install(plane.management.client, Setting(url=url, features=_FEATURES))
        port.release()  # for the manager, which listens there
        helm = toolbox.program(tools.HELM).parent
        async with (
            _managing(plane, f"127.0.0.1:{port}", helm) as log,
            ChartRepository() as charts,
            asyncio.TaskGroup() as group,
        ):
            stage = DemoStage(plane, log, kubectl)
            operating = group.create_task(operate(stage.member_client))
            charts.add(scenario.CHART, scenario.chart(), version=scenario.CHART_VERSION)
            await _furnish(stage, charts.url)
            config = extension_name(HOME)
            await object_watch.until(
                stage.client, EXTENSION_CONFIGS, config, _discovered, "discovered by Cluster API", within=_LONG
            )
            announce("Unwind is running, and Cluster API calls its hook before a cluster is deleted")
            yield stage
            operating.cancel()


async def _furnish(stage: DemoStage, repository: str) -> None:
    await stage.plane.management.create_namespace(scenario.NAMESPACE)
    await stage.client.create(NAMESPACES, scenario.protected())
    for source in scenario.sources():
        await stage.client.create(CONFIG_MAPS, source)
    for profile in scenario.profiles(repository):
        await stage.client.create(CLUSTER_PROFILES, profile)


@asynccontextmanager
async def _managing(plane: Plane, listen: str, helm: Path) -> AsyncIterator[Path]:
    """Run `unwind run` with the installed RBAC rules; returns its log file."""
    kubeconfig = plane.management.write_kubeconfig(_USER, groups=("system:serviceaccounts",))
    log = plane.directory / "unwind.log"
    told = {
        "UNWIND_FEATURE_GATES": "ResourcesDeletionProtection=true",
        "PATH": f"{helm}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    async with running_manager(kubeconfig, log, listen=listen, environment=told):
        yield log


def _provisioned(summary: Object | None) -> bool:
    features = _features(summary)
    return bool(features) and all(feature.get("status") == "Provisioned" for feature in features)


def _features(summary: Object | None) -> list[Object]:
    return ((summary or {}).get("status") or {}).get("featureSummaries") or []


def _discovered(config: Object | None) -> bool:
    return object_watch.has_condition(config, "Discovered") and bool(
        ((config or {}).get("status") or {}).get("handlers")
    )
