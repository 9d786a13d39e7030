"""A deployer for tests: its handles are ConfigMaps on the member, and it lets go of one when its DELETEs are sent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from tests.plane.support.fixed_policies import FixedPolicies
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.policies import SourceKind
from unwind.api.resources import CONFIG_MAPS
from unwind.companions.companion import DeletedHandle, Handle, HandleEntry
from unwind.companions.handle_remover import HandleRemover
from unwind.companions.left_objects import OwnRemoval
from unwind.companions.step_source import CompanionSteps
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.api.resources import Resource
    from unwind.api.unwind import Effort
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.members.contents import Content
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps

HANDLE_LABEL = "deployer.example.dev/handle"
DEPLOYED_BY_LABEL = "deployer.example.dev/deployed-by"
CLEANUP = "deployer.example.dev/cleanup"
SUSPENDED = "deployer.example.dev/suspended"


class ExampleDeployer(FixedPolicies):
    """The companion, and what policies say about its handles. `efforts`: by name; Enforce for all others."""

    source = SourceKind.FLUX
    controller = "the example deployer"
    sources = frozenset({SourceKind.FLUX})

    def __init__(self, it: TeardownScene, efforts: Mapping[str, Effort] | None = None) -> None:
        super().__init__(efforts)
        self._namespace = it.on_member
        self.remover = HandleRemover(self)
        self.removes = False
        """Whether policies let Unwind remove what suspended handles deployed."""

    def steps(self, deps: RemovalDeps) -> CompanionSteps:
        """The step source of the deployer, for a manager."""
        return CompanionSteps(self, self, deps.members, deps.inventories)

    def owns(self, ref: ObjectRef) -> bool:
        return (ref.group, ref.kind) == ("", "ConfigMap")

    async def handles(self, target: ClusterTarget, member: Member, namespaces: Collection[str]) -> list[Handle]:
        found = await member.client.list(CONFIG_MAPS, namespace=self._namespace, labels=f"{HANDLE_LABEL}=true")
        return [self._handle(item) for item in found]

    async def stranded(self, target: ClusterTarget, namespaces: Collection[str]) -> list[Handle]:
        return []

    def _handle(self, found: Object) -> Handle:
        needs = found["data"]["dependsOn"].split()
        return Handle(
            ref=ref_of(CONFIG_MAPS, msgspec.convert(found["metadata"], ObjectMeta)),
            source=self.source,
            entries=self._entries(found),
            depends_on=tuple(f"ConfigMap/{self._namespace}/{name}" for name in needs),
            terminating="deletionTimestamp" in found["metadata"],
            on_member=True,
        )

    def _entries(self, found: Object) -> tuple[HandleEntry, ...]:
        kept = found["data"]["kept"].split()
        return tuple(
            HandleEntry(
                object=ObjectRef(version="v1", kind="ConfigMap", namespace=self._namespace, name=name),
                kept="it is marked as kept" if name in kept else "",
            )
            for name in found["data"]["entries"].split()
        )

    def is_marked(self, handle: ObjectRef, found: Metadata) -> bool:
        return (found.labels or {}).get(DEPLOYED_BY_LABEL) == handle.name

    def resource(self, handle: ObjectRef) -> Resource:
        return CONFIG_MAPS

    def why_kept(self, handle: ObjectRef, kind: str, found: Metadata) -> str:
        return ""

    async def is_on_member(self, handle: ObjectRef, home: Member, member: Member) -> bool:
        return True

    def why_held(self, handle: Object) -> str:
        return "is suspended" if SUSPENDED in (handle["metadata"].get("annotations") or {}) else ""

    async def own_removal(
        self, handle: Object, target: ClusterTarget, member: Member, left: Sequence[Content]
    ) -> OwnRemoval | None:
        return OwnRemoval() if self.removes and self.why_held(handle) else None

    def before_delete(self, handle: Object) -> Object:
        return {}

    async def left_entries(
        self, handle: ObjectRef, recorded: Collection[ObjectRef], member: Member
    ) -> tuple[HandleEntry, ...]:
        found = await member.client.list(
            CONFIG_MAPS, namespace=self._namespace, labels=f"{DEPLOYED_BY_LABEL}={handle.name}"
        )
        return tuple(
            HandleEntry(
                object=ObjectRef(
                    version="v1", kind="ConfigMap", namespace=self._namespace, name=item["metadata"]["name"]
                )
            )
            for item in found
        )

    def before_stay(self, handle: Object) -> Object:
        return {}

    async def before_release(self, handle: Object) -> None:
        pass

    async def entries(self, handle: Object, member: Member) -> tuple[HandleEntry, ...]:
        # Like deployers that keep their inventory elsewhere, and forget it with the last object.
        return self._entries(handle) if CLEANUP in handle["metadata"]["finalizers"] else ()

    async def after_delete(self, handle: Object, member: Member) -> DeletedHandle:
        working = "the deployer is deleting" if CLEANUP in handle["metadata"]["finalizers"] else ""
        return DeletedHandle(working=working)


async def deployed(
    it: TeardownScene,
    name: str,
    *,
    objects: Sequence[str],
    depends_on: str = "",
    kept: str = "",
    finalizers: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """A handle on the member with these objects. `finalizers`, `labels`: of the objects."""
    client = it.member.client
    for one in objects:
        meta: Object = {
            "name": one,
            "namespace": it.on_member,
            "labels": {DEPLOYED_BY_LABEL: name, **(labels or {})},
            "finalizers": list(finalizers),
        }
        await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    handle: Object = {
        "name": name,
        "namespace": it.on_member,
        "labels": {HANDLE_LABEL: "true"},
        "annotations": dict(annotations or {}),
        "finalizers": [CLEANUP],
    }
    data = {"entries": " ".join(objects), "dependsOn": depends_on, "kept": kept}
    await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": handle, "data": data})


@asynccontextmanager
async def running_deployer(it: TeardownScene) -> AsyncIterator[None]:
    """The controller of the deployer, as long as the context lasts."""
    client, namespace = it.member.client, it.on_member

    async def reconcile(found: Object) -> None:
        meta = found["metadata"]
        if "deletionTimestamp" not in meta or CLEANUP not in (meta.get("finalizers") or ()):
            return
        suspended = SUSPENDED in (meta.get("annotations") or {})
        for name in set(found["data"]["entries"].split()) - set(found["data"]["kept"].split()):
            if suspended:
                break
            await _delete_by_name(client, namespace, name, handle=meta["name"])
        left = [item for item in meta["finalizers"] if item != CLEANUP]
        await client.revise(CONFIG_MAPS, found, {"metadata": {"finalizers": left}})

    async def run() -> None:
        while True:
            for found in await client.list(CONFIG_MAPS, namespace=namespace, labels=f"{HANDLE_LABEL}=true"):
                await reconcile(found)
            await asyncio.sleep(0.05)

    task = asyncio.ensure_future(run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _delete_by_name(client: Client, namespace: str, name: str, *, handle: str) -> None:
    """Delete an object by its name, as most deployers do, if it carries the mark."""
    with suppress(NotFoundError):
        there = await client.get(CONFIG_MAPS, name, namespace=namespace)
        if there["metadata"]["labels"].get(DEPLOYED_BY_LABEL) != handle:
            return
        await client.delete(CONFIG_MAPS, name, uid=there["metadata"]["uid"], namespace=namespace)
