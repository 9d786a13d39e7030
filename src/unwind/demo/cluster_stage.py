"""The environment of the demo on an existing cluster: checks before, set-up, and the removal of all of its objects.

Every object is created with POST, so that none that exists is changed, and has the label of the run or is in one of its
namespaces. So the removal needs no list of what was created: it finds everything by the label, also after a crash.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import DEMO_LABEL
from unwind.api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    EVENTS,
    NAMESPACES,
    NODES,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
    Resource,
)
from unwind.api.unwind import GROUP
from unwind.demo import cluster_objects, scenario
from unwind.demo.cluster_objects import KINDS, DemoRun
from unwind.demo.manager_process import running_manager
from unwind.errors import TimedOutError, UnwindError
from unwind.install.existing_objects import require_admission_policies
from unwind.install.running_managers import running_managers
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube import object_watch
from unwind.kube.discovery import Discovery, Named
from unwind.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnreachableError,
)
from unwind.kube.kubeconfig import Token
from unwind.local.paths import Port
from unwind.preview.cluster_preview import foresee
from unwind.server.manager_names import MANAGER
from unwind.teardown import requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from unwind.api.unwind import Teardown
    from unwind.kube.client import Client
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.preview.object_preview import Foreseen

Object = dict[str, Any]

_LONG = 90.0
_PODS_WITHIN = 30.0
_GONE_WITHIN = 120.0
_LOOK_AGAIN = 0.3
_ALL = "*"
_TOKEN_SECONDS = 3600
# Where the API server stores Events about cluster-scoped objects.
_DEFAULT_NAMESPACE = "default"


class ClusterStage:
    """The demo on an existing cluster, while it runs."""

    def __init__(self, client: Client, run: DemoRun, log: Path) -> None:
        self.client = client
        self.run = run
        self.log = log
        """The log file of the manager."""
        self._discovery = Discovery(client)

    async def refusal(self) -> str:
        """Delete the protected namespace; returns why it was refused. Waits until the policy is in effect."""
        name = self.run.protected
        uid = (await self.client.get(NAMESPACES, name))["metadata"]["uid"]
        try:
            async with asyncio.timeout(_LONG):
                while not await self._refused(name, uid, dry_run=True):  # noqa: ASYNC110 - nothing reports it
                    await asyncio.sleep(_LOOK_AGAIN)
        except TimeoutError:
            raise UnwindError(
                f"timed out after {_LONG:.0f}s waiting for the protection of Namespace {name}",
                remedy="run `unwind version` to see whether a manager runs, and read its log",
            ) from None
        return await self._refused(name, uid, dry_run=False)

    async def _refused(self, name: str, uid: str, *, dry_run: bool) -> str:
        try:
            await self.client.delete(NAMESPACES, name, uid=uid, dry_run=dry_run)
        except ForbiddenError as error:
            return error.status.message
        return ""

    async def until_operator_runs(self) -> bool:
        """Whether the Pod of the operator runs; False if there is no node, or it does not run in time."""
        if not await self.client.list(NODES):
            return False
        try:
            await object_watch.until_true(
                self.client, DEPLOYMENTS, scenario.OPERATOR, "Available", namespace=self.run.shop, within=_PODS_WITHIN
            )
        except TimedOutError:
            return False
        return True

    async def preview(self) -> Foreseen:
        """What the deletion of the shop would remove."""
        named = Named(resource=NAMESPACES, name=self.run.shop)
        return await foresee(self.client, named, home=self.run.home)

    async def grant(self, seen: Foreseen) -> None:
        """Grant the manager the rights to delete these objects, and what belongs to them."""
        refs = [*(ref for some in seen.objects.values() for ref in some), *seen.along]
        kinds = {(ref.group, ref.kind) for ref in refs}
        resources = [await self._discovery.resource(kind, group=group) for group, kind in sorted(kinds)]
        await _create(self.client, cluster_objects.rights(self.run, resources))

    async def delete(self, seen: Foreseen) -> Teardown:
        """Request the deletion of the shop, as `unwind delete` does."""
        now = datetime.now(UTC)
        return await requests.request(self.client, seen.target, plural=NAMESPACES.plural, now=now)

    async def absent(self, seen: Foreseen, known: Collection[str]) -> set[str]:
        """The uids of the objects that are gone. `known`: those that were before."""
        gone = set(known)
        for ref in (ref for refs in seen.objects.values() for ref in refs if ref.uid not in gone):
            resource = await self._discovery.resource(ref.kind, group=ref.group)
            try:
                found = await self.client.get(resource, ref.name, namespace=ref.namespace or None)
            except NotFoundError:
                gone.add(ref.uid)
            else:
                if found["metadata"]["uid"] != ref.uid:
                    gone.add(ref.uid)
        return gone

    async def let_go(self) -> None:
        """Remove the finalizer without controller, as after a manual backup."""
        databases, shop = self.run.databases, self.run.shop
        found = await self.client.get(databases, scenario.HELD, namespace=shop)
        left = [finalizer for finalizer in found["metadata"].get("finalizers", ()) if finalizer != scenario.BACKUP]
        await self.client.revise(databases, found, {"metadata": {"finalizers": left}})

    async def operator_runs(self) -> bool:
        """Whether the Deployment of the operator exists: its Pod may not run, for lack of a node or an image."""
        try:
            found = await self.client.get(DEPLOYMENTS, scenario.OPERATOR, namespace=self.run.shop)
        except NotFoundError:
            return False
        return "deletionTimestamp" not in found["metadata"]


# Before


async def check(client: Client) -> str:
    """The version of the API server. Raises UnwindError if the demo cannot run there; nothing is changed."""
    review = {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": {"verb": _ALL, "group": _ALL, "resource": _ALL}},
    }
    answer = await client.create(SELF_SUBJECT_ACCESS_REVIEWS, review)
    if not answer["status"].get("allowed"):
        raise UnwindError(
            "cannot run the demo: it creates CRDs, cluster roles and admission policies, and this user may not do that",
            remedy="use a context with the rights of cluster-admin, or run `unwind demo` without --kubeconfig",
        )
    version = await require_admission_policies(client, "run the demo")
    if found := await find(client):
        runs = ", ".join(sorted({obj["metadata"]["labels"][DEMO_LABEL] for _, obj in found}))
        raise UnwindError(
            f"cannot run the demo: {len(found)} objects of another run exist ({DEMO_LABEL}: {runs})",
            remedy="wait until it ends, or delete them with `unwind demo --clean-up`",
        )
    crds = [crd["metadata"]["name"] for crd in await client.list(CUSTOM_RESOURCE_DEFINITIONS)]
    if ours := [name for name in crds if name.endswith(f".{GROUP}")]:
        raise UnwindError(
            f"cannot run the demo: Unwind is installed on this cluster (CRD {ours[0]} exists)",
            remedy="try `unwind plan ns/NAME` there, which only reads, or run `unwind demo` without --kubeconfig",
        )
    return version


# Set-up


@asynccontextmanager
async def set_up(
    connection: ClusterConnection, client: Client, run: DemoRun, announce: Callable[[str], None]
) -> AsyncIterator[ClusterStage]:
    """Unwind with a manager on this machine, and the shop. Everything is deleted at the end."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(clean_up, client, announce, run)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unwind-demo-")))
        # Kept if the demo fails.
        stage = ClusterStage(client, run, Path(tempfile.gettempdir()) / f"{run.home}.log")
        await _create(client, cluster_objects.installed(run))
        await _create(client, cluster_objects.furniture(run))
        await _create(client, cluster_objects.shop(run))
        announce(f"namespace {run.shop} has a web shop, and databases with their operator")
        if not await stage.until_operator_runs():
            announce("its Pods do not run (no node, or no image): the demo plays the operator anyway")
        port = Port()
        port.release()
        kubeconfig = await _kubeconfig(connection, client, run, directory)
        listen, environment = f"127.0.0.1:{port}", {"UNWIND_NAMESPACE": run.home}
        try:
            async with (
                running_manager(kubeconfig, stage.log, listen=listen, environment=environment),
                asyncio.TaskGroup() as group,
            ):
                await _until_alive(client, stage)
                announce("the manager of Unwind runs on this machine, with a ServiceAccount of the cluster")
                operating = group.create_task(scenario.operate(client, run.databases, runs=stage.operator_runs))
                yield stage
                operating.cancel()
        except asyncio.CancelledError:
            stage.log.unlink(missing_ok=True)  # Ctrl-C is no failure
            raise
        stage.log.unlink(missing_ok=True)


async def _create(client: Client, objects: list[tuple[Resource, Object]]) -> None:
    """Create objects in order; CRDs are established before the objects after them."""
    waiting: list[str] = []
    for resource, obj in objects:
        if resource == CUSTOM_RESOURCE_DEFINITIONS:
            waiting.append(obj["metadata"]["name"])
        else:
            for name in waiting:
                await object_watch.until_true(client, CUSTOM_RESOURCE_DEFINITIONS, name, "Established", within=_LONG)
            waiting.clear()
        try:
            await client.create(resource, obj)
        except AlreadyExistsError as error:
            raise UnwindError(
                f"cannot create {resource.kind} {obj['metadata']['name']}: it exists, and is not of this run",
                remedy="check whether Unwind was installed in the meantime",
            ) from error


async def _kubeconfig(connection: ClusterConnection, client: Client, run: DemoRun, directory: Path) -> Path:
    """A kubeconfig with a token of the manager's ServiceAccount."""
    spec = {"expirationSeconds": _TOKEN_SECONDS}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made = await client.post(SERVICE_ACCOUNTS, MANAGER, "token", body, namespace=run.home)
    own = msgspec.structs.replace(
        connection, certificate=None, key=None, impersonate=None, credential=Token(made["status"]["token"])
    )
    path = directory / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(kubeconfigs.document(own, cluster="demo", user=MANAGER))
    return path


async def _until_alive(client: Client, stage: ClusterStage) -> None:
    try:
        async with asyncio.timeout(_LONG):
            while not await running_managers(client, stage.run.home):  # noqa: ASYNC110 - which Lease it gets is not known
                await asyncio.sleep(_LOOK_AGAIN)
    except TimeoutError:
        raise UnwindError(
            f"timed out after {_LONG:.0f}s waiting for the manager to start", remedy=f"see {stage.log}"
        ) from None


# Afterwards


async def find(client: Client, run: DemoRun | None = None) -> list[tuple[Resource, Object]]:
    """The cluster-scoped objects of a run, or of all, in the order of their deletion. Others are in the namespaces."""
    labels = run.selector if run else DEMO_LABEL
    return [(resource, obj) for resource in KINDS for obj in await client.list(resource, labels=labels)]


async def refuse_running(client: Client, found: list[tuple[Resource, Object]]) -> None:
    """Raise UnwindError if a manager runs in one of these namespaces: another demo is not over."""
    for resource, obj in found:
        name = obj["metadata"]["name"]
        if resource == NAMESPACES and (alive := await running_managers(client, name)):
            raise UnwindError(
                f"cannot clean up: a demo is running ({', '.join(alive)} has a Lease in namespace {name})",
                remedy="end it with Ctrl-C; if it was killed, retry after 30s",
            )


async def clean_up(client: Client, announce: Callable[[str], None], run: DemoRun | None = None) -> None:
    """Delete everything of a run, or of all runs, by label and uid, and return when it is gone."""
    announce("deleting all objects of the demo; Ctrl-C would leave them")
    uids: set[str] = set()
    namespaces: set[str] = set()
    names: dict[str, None] = {}
    trouble = ""
    try:
        async with asyncio.timeout(_GONE_WITHIN):
            while True:
                try:
                    found = await find(client, run)
                    uids |= {obj["metadata"]["uid"] for _, obj in found}
                    namespaces |= {obj["metadata"]["name"] for resource, obj in found if resource == NAMESPACES}
                    names |= {f"{resource.kind} {obj['metadata']['name']}": None for resource, obj in found}
                    trouble = await _delete(client, found, uids)
                    if not found:
                        await _delete_events(client, uids, namespaces)
                        break
                except (ApiError, UnreachableError) as error:
                    trouble = str(error)
                await asyncio.sleep(_LOOK_AGAIN)
    except TimeoutError:
        raise UnwindError(
            f"cannot delete all objects of the demo: {trouble or 'timed out'}",
            remedy="run `unwind demo --clean-up` with the same --kubeconfig and --context",
        ) from None
    announce(f"clean-up: {len(names)} cluster-scoped objects and all content of the namespaces are gone")


async def _delete(client: Client, found: list[tuple[Resource, Object]], uids: set[str]) -> str:
    """Delete these objects, or ask again; returns what stands in the way. Adds the uids of Teardowns."""
    trouble = ""
    for resource, obj in found:
        metadata = obj["metadata"]
        name = metadata["name"]
        try:
            if resource == CUSTOM_RESOURCE_DEFINITIONS:
                await _release(client, obj, uids)
            if "deletionTimestamp" not in metadata:
                await client.delete(resource, name, uid=metadata["uid"])
            trouble = trouble or f"{resource.kind} {name} is being deleted"
        except (NotFoundError, ConflictError):
            pass  # gone, or changed in the meantime: the next round sees it
        except ApiError as error:
            # Most likely a policy that is deleted, and still in effect for a moment.
            trouble = str(error)
    return trouble


async def _release(client: Client, crd: Object, uids: set[str]) -> None:
    """Remove the finalizers from the custom resources of one of our CRDs: their controllers do not run any more."""
    spec = crd["spec"]
    kind = Resource(
        spec["group"],
        spec["versions"][0]["name"],
        spec["names"]["plural"],
        spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
    )
    try:
        instances = await client.list(kind)
    except ApiError as error:
        if error.code != 404:  # it is not served yet, or not any more
            raise
        return
    for obj in instances:
        metadata = obj["metadata"]
        uids.add(metadata["uid"])
        if metadata.get("finalizers"):
            with suppress(NotFoundError, ConflictError):
                await client.patch(
                    kind,
                    metadata["name"],
                    {"metadata": {"uid": metadata["uid"], "finalizers": None}},
                    namespace=metadata.get("namespace"),
                )


async def _delete_events(client: Client, uids: set[str], namespaces: set[str]) -> None:
    """Delete the Events about cluster-scoped objects of the demo. Most others are gone with their namespaces.

    The endpoints controller reports about Endpoints that it could not create without their namespace and uid, so that
    such an Event is in the default namespace as well. Its message names the namespace of the Service.
    """
    for event in await client.list(EVENTS, namespace=_DEFAULT_NAMESPACE):
        metadata, message = event["metadata"], event.get("message") or ""
        about = (event.get("involvedObject") or {}).get("uid")
        if about in uids or any(name in message for name in namespaces):
            with suppress(NotFoundError, ConflictError):
                await client.delete(EVENTS, metadata["name"], uid=metadata["uid"], namespace=_DEFAULT_NAMESPACE)
