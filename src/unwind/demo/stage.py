"""The stage: a real control plane with Cluster API, Unwind running on it, and a cluster with add-ons."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.rights import HOME, Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, Inventory
from unwind.demo import scenery
from unwind.demo.operator import operate
from unwind.errors import UnwindError
from unwind.installing.gatekeeping import extension_name
from unwind.installing.install import install
from unwind.kube.errors import ApiError
from unwind.local import plane as planes
from unwind.local import tools, waiting
from unwind.local.capi import create_cluster
from unwind.local.home import Shape
from unwind.local.ports import Port
from unwind.local.toolbox import equip
from unwind.testing.charts import ChartRepository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from unwind.kube.client import Client, Object
    from unwind.local.building import Progress
    from unwind.local.plane import Plane

_USER = f"system:serviceaccount:{HOME}:unwind"
_MEMBER = "member-1"
# A load balancer does not vanish at once.
_CLOUD_DELAY = 4.0
_LONG = 90.0
_LOOK_AGAIN = 0.1


class Stage:
    """Everything that is up."""

    def __init__(self, plane: Plane, log: Path) -> None:
        self.plane = plane
        self.client = plane.management.client
        self.member = plane.members[_MEMBER]
        self.log = log
        """What the manager says."""

    @property
    def member_client(self) -> Client:
        return self.member.client

    @property
    def load_balancers(self) -> int:
        """How many there are in the cloud, which cost money."""
        return len(self.plane.clouds[_MEMBER].load_balancers)

    async def cluster(self) -> Object:
        """A cluster with all add-ons on it, as its object is then."""
        await create_cluster(
            self.client,
            name=scenery.CLUSTER,
            namespace=scenery.NAMESPACE,
            member=_MEMBER,
            labels=scenery.LABELS,
            within=_LONG,
        )
        for profile in scenery.PROFILES:
            await self._until_on(f"{profile}-capi-{scenery.CLUSTER}")
        return await self.client.get(CLUSTERS, scenery.CLUSTER, namespace=scenery.NAMESPACE)

    async def _until_on(self, summary: str) -> None:
        where = scenery.NAMESPACE
        try:
            await waiting.until(
                self.client, CLUSTER_SUMMARIES, summary, _provisioned, "deployed", namespace=where, within=_LONG
            )
        except UnwindError as error:
            found = await self.client.get(CLUSTER_SUMMARIES, summary, namespace=where)
            told = [one.get("failureMessage", "") for one in _features(found)]
            raise UnwindError(error.what, remedy="; ".join(filter(None, told)) or f"see {self.log}") from None

    async def deployed(self) -> int:
        """How many objects the add-ons have put there."""
        return sum(len(one.spec.entries) for one in await self.inventories())

    async def inventories(self) -> list[Inventory]:
        found = await self.client.list(INVENTORIES, namespace=HOME)
        return msgspec.convert(found, list[Inventory])

    async def refusal(self) -> str:
        """What somebody reads who deletes the protected namespace."""
        uid = (await self.client.get(NAMESPACES, scenery.PROTECTED))["metadata"]["uid"]
        async with asyncio.timeout(_LONG):
            # Not meant until it is refused: the API server may not know of the protection yet.
            while not await self._refused(uid, dry_run=True):  # noqa: ASYNC110 - nobody tells when it does
                await asyncio.sleep(_LOOK_AGAIN)
        return await self._refused(uid, dry_run=False)

    async def _refused(self, uid: str, *, dry_run: bool) -> str:
        try:
            await self.client.delete(NAMESPACES, scenery.PROTECTED, uid=uid, dry_run=dry_run)
        except ApiError as error:
            if error.code != 403:
                raise
            return error.status.message
        return ""

    async def let_go(self) -> None:
        """Take the finalizer off that nobody serves: somebody has made the backup by hand."""
        found = await self.member_client.get(scenery.DATABASES, scenery.HELD, namespace=scenery.HELD_IN)
        left = [one for one in found["metadata"].get("finalizers", ()) if one != scenery.BACKUP]
        await self.member_client.revise(scenery.DATABASES, found, {"metadata": {"finalizers": left}})


@asynccontextmanager
async def set_up(progress: Progress, announce: Callable[[str], None]) -> AsyncIterator[Stage]:
    """The stage, up to where the cluster is made; all of it goes at the end."""
    shape = Shape(members=1, nodes=True, helm=True, capi=True, cloud=True, cloud_delay=_CLOUD_DELAY)
    toolbox = await equip(shape, progress)
    async with planes.running(shape, announce=announce) as plane:
        port = Port()
        url = f"https://127.0.0.1:{port}"
        await install(plane.management.client, Setting(url=url))
        port.release()  # for who listens there
        helm = toolbox.program(tools.HELM).parent
        async with (
            _managing(plane, f"127.0.0.1:{port}", helm) as log,
            ChartRepository() as charts,
            asyncio.TaskGroup() as group,
        ):
            stage = Stage(plane, log)
            operating = group.create_task(operate(stage.member_client))
            charts.add(scenery.CHART, scenery.chart(), version=scenery.CHART_VERSION)
            await _furnish(stage, charts.url)
            config = extension_name(HOME)
            await waiting.until(
                stage.client, EXTENSION_CONFIGS, config, _discovered, "discovered by Cluster API", within=_LONG
            )
            announce("Unwind runs, and Cluster API asks it before a cluster goes")
            yield stage
            operating.cancel()


async def _furnish(stage: Stage, repository: str) -> None:
    await stage.plane.management.create_namespace(scenery.NAMESPACE)
    await stage.client.create(NAMESPACES, scenery.protected())
    for source in scenery.sources():
        await stage.client.create(CONFIG_MAPS, source)
    for profile in scenery.profiles(repository):
        await stage.client.create(CLUSTER_PROFILES, profile)


@asynccontextmanager
async def _managing(plane: Plane, listen: str, helm: Path) -> AsyncIterator[Path]:
    """`unwind run`, with the rights that it was installed with; what it logs is in the file."""
    kubeconfig = plane.management.write_kubeconfig(_USER, groups=("system:serviceaccounts",))
    log = plane.directory / "unwind.log"
    told = {
        "UNWIND_LISTEN": listen,
        "UNWIND_METRICS_LISTEN": "127.0.0.1:0",
        "UNWIND_FEATURE_GATES": "ResourcesDeletionProtection=true",
        "UNWIND_LOG_FORMAT": "json",
        "PATH": f"{helm}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", "from unwind.cli import main; main()", "run", "--kubeconfig", str(kubeconfig)),
            env=os.environ | told,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        await _until_listening(process, listen, log)
        yield log
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _until_listening(process: asyncio.subprocess.Process, listen: str, log: Path) -> None:
    host, _, port = listen.rpartition(":")
    ends = time.monotonic() + _LONG
    while time.monotonic() < ends:
        if process.returncode is not None:
            said = (await asyncio.to_thread(log.read_text)).strip().splitlines()
            raise UnwindError(f"the manager ended ({said[-1] if said else 'it said nothing'})")
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return
        await asyncio.sleep(_LOOK_AGAIN)
    raise UnwindError(f"the manager does not listen after {_LONG:.0f} s", remedy=f"see {log}")


def _provisioned(summary: Object | None) -> bool:
    features = _features(summary)
    return bool(features) and all(one.get("status") == "Provisioned" for one in features)


def _features(summary: Object | None) -> list[Object]:
    return ((summary or {}).get("status") or {}).get("featureSummaries") or []


def _discovered(config: Object | None) -> bool:
    return waiting.is_true(config, "Discovered") and bool(((config or {}).get("status") or {}).get("handlers"))
