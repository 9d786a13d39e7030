"""The gate without a server: caches that hold what a test puts there, and a stand-in that is read from."""

from __future__ import annotations

import inspect
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tests.unit.capi.asked import UID, body
from unwind.addons.caches import AddonCaches, SeenProfile
from unwind.addons.summary_gate_source import SummaryGateSource
from unwind.api.hooks import Hook
from unwind.api.meta import LabelSelector, ObjectMeta, OwnerReference, manifest
from unwind.api.names import CLUSTER_UID_ANNOTATION
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.api.sveltos import (
    CLUSTER_PROFILES,
    CLUSTER_SUMMARIES,
    ClusterSummary,
    ClusterSummarySpec,
    ProfileSpec,
    ProfileStatus,
)
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Teardown
from unwind.capi import hook_protocol
from unwind.capi.hook_handlers import HookHandlers
from unwind.capi.hook_registry import HookPlugin, HookRegistry
from unwind.inventory.inventories import Inventories
from unwind.kube.events import EVENTS, Recorder
from unwind.server.routes import Request, Response
from unwind.teardown.recorded_gate_source import RecordedGateSource
from unwind.teardown.signatures import RecordKeys
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.hooks import Rule
    from unwind.kube.client import Client
    from unwind.kube.informers import Informer

DELETE = Hook.BEFORE_CLUSTER_DELETE
SERVED = (NAMESPACES, SECRETS, TEARDOWNS, CLUSTER_SUMMARIES, INVENTORIES, EVENTS)


PROFILE = SeenProfile(
    metadata=ObjectMeta(name="all", uid="uid-all", resource_version="1"),
    spec=ProfileSpec(cluster_selector=LabelSelector(match_labels={"env": "prod"})),
    status=ProfileStatus(),
)
"""The profile that owns the summaries."""


NOT_LOADED = (
    "cannot load the hook rules of package others 1.0 for BeforeClusterDelete: ImportError: no module;"
    " fix or uninstall the package, then restart the manager"
)


def unloadable(hook: str = DELETE.value) -> HookPlugin:
    """Rules of a package that does not load. `NOT_LOADED` is what is said about it."""

    def load() -> Any:
        raise ImportError("no module")

    return HookPlugin(hook, load, source="others 1.0")


class Standin:
    """What answers hooks, and all that it knows."""

    def __init__(
        self,
        *,
        rules: Iterable[Rule] = (),
        plugins: Iterable[HookPlugin] = (),
        hooks: Iterable[Hook] = Hook,
        served: Iterable[Any] = SERVED,
        client: Client | None = None,
        addons: bool = True,
    ) -> None:
        """`client`: what is read by, if not from the stand-in. `addons`: whether that feature runs."""
        self.objects = Objects(resources=served)
        client = client or self.objects.client
        self.caches = AddonCaches(client)
        registry = HookRegistry(rules, plugins=plugins)
        registry.load()
        self.keys = RecordKeys(client, namespace="unwind-system")
        self.keys._keys = {"key-1": b"k" * 32}
        self.recorder = Recorder(client, instance="test")
        inventories = Inventories(client, namespace="unwind-system")
        source = SummaryGateSource(client, self.caches, inventories) if addons else RecordedGateSource(inventories)
        self.asking = HookHandlers(
            client,
            self.caches,
            source,
            namespace="unwind-system",
            registry=registry,
            hooks=hooks,
            keys=self.keys,
            recorder=self.recorder,
        )
        self.routes = {route.path: route for route in self.asking.routes()}
        informers: list[Informer[Any]] = [*self.caches._informers()]
        for informer in informers:
            informer._synced.set()
        self.caches.clusters._looked = True
        self.caches.cluster_profiles.cache.put(PROFILE)

    def knows(self, *found: Teardown | ClusterSummary) -> None:
        """Have it in the caches; Teardowns as the manager writes them."""
        for item in map(self._signed, found):
            informer: Informer[Any] = self.caches.teardowns if isinstance(item, Teardown) else self.caches.summaries
            informer._tell(informer.cache.put(item))

    def has(self, *found: Teardown | ClusterSummary) -> None:
        """Have it in the API; Teardowns as the manager writes them."""
        for item in map(self._signed, found):
            self.objects.put(manifest(TEARDOWNS if isinstance(item, Teardown) else CLUSTER_SUMMARIES, item))

    def _signed(self, one: Teardown | ClusterSummary) -> Teardown | ClusterSummary:
        return self.keys.signed(one) if isinstance(one, Teardown) else one

    async def post(self, path: str, sent: bytes, *, within: float = 9.0) -> Response:
        request = Request(method="POST", path=path, query="", headers={}, peer="", ends=time.monotonic() + within)
        said = self.routes[path].handler(sent, request)
        return await said if inspect.isawaitable(said) else said

    async def ask(self, hook: Hook = DELETE, *, within: float = 9.0, **more: Any) -> Any:
        answer = await self.post(hook_protocol.path(hook), body(hook, **more), within=within)
        assert answer.status == 200
        told = json.loads(answer.body)
        assert told["status"] == "Success"
        return told


def summary(
    name: str,
    behaviour: str | None,
    *,
    remembered: str | None = None,
    uid: str | None = UID,
    of: str = "prod-7",
    owned: bool = True,
) -> ClusterSummary:
    """`owned`: whether a profile owns it that selects the cluster."""
    owner = OwnerReference(
        api_version=CLUSTER_PROFILES.api_version,
        kind="ClusterProfile",
        name=PROFILE.metadata.name,
        uid=PROFILE.metadata.uid,
    )
    annotations = {"unwind.dev/cluster-deletion-behavior": remembered} if remembered else {}
    if uid:
        annotations[CLUSTER_UID_ANNOTATION] = uid
    return ClusterSummary(
        metadata=ObjectMeta(
            name=name,
            namespace="fleet",
            uid=f"uid-{name}",
            resource_version="1",
            annotations=annotations,
            owner_references=(owner,) if owned else (),
        ),
        spec=ClusterSummarySpec(
            cluster_namespace="fleet",
            cluster_name=of,
            cluster_type="Capi",
            cluster_profile_spec=ProfileSpec(cluster_deletion_behavior=behaviour),
        ),
    )


def later(it: Teardown, **status: Any) -> Teardown:
    """The same, after something has happened."""
    version = str(int(it.metadata.resource_version) + 1)
    return msgspec.structs.replace(
        it,
        metadata=msgspec.structs.replace(it.metadata, resource_version=version),
        status=msgspec.structs.replace(it.status, **status),
    )
