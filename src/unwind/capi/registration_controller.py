"""ExtensionConfigs, in whichever version Cluster API serves them; there may be no such kind at all."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api import meta as api_meta
from unwind.api import names
from unwind.api.capi import ExtensionConfig
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from unwind.capi import hook_protocol
from unwind.capi.gate_policies import extension_name
from unwind.capi.manifests import VERSIONS, with_prefix
from unwind.clock import SYSTEM
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.fencing import Fences
from unwind.kube.informers import Informer
from unwind.kube.served_versions import ServedVersions
from unwind.kube.workqueue import Backoff, Queue
from unwind.server.identity import CERTIFICATE, REGISTRATION, remembered
from unwind.server.path_segments import HOOKS, Segments, corrected, prefix, redacted
from unwind.teardown import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.hooks import Hook
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.kube.fencing import ShardOwner
    from unwind.kube.metrics import Metrics
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.teardown.gate import GateFault


log = logs.get(__name__)


class Extensions:
    """Follows one ExtensionConfig."""

    def __init__(self, client: Client, name: str, *, clock: Clock, changed: Callable[[], None]) -> None:
        """`changed` is told whenever it, or what is known of it, is no longer what it was."""
        self._client = client
        self._key = Key("", name)
        self._clock = clock
        self._changed = changed
        self._versions = ServedVersions(client, VERSIONS, clock=clock, troubled=self._troubled, found=self._found)
        self._tasks: asyncio.TaskGroup | None = None
        self._following: asyncio.Task[None] | None = None
        self._informer: Informer[ExtensionConfig] | None = None
        self._looked = False
        self._trouble = ""

    @property
    def known(self) -> bool:
        """Whether it is known what there is, or that there is no such kind."""
        return self._looked and (self._informer is None or self._informer.synced)

    @property
    def resource(self) -> Resource | None:
        """The version that is served; None while there is no such kind."""
        return self._informer.view.resource if self._informer else None

    @property
    def ours(self) -> ExtensionConfig | None:
        return self._informer.cache.get(self._key) if self._informer else None

    def take(self, config: ExtensionConfig) -> None:
        """Put in what a write of our own has answered."""
        if self._informer:
            self._informer.take(config)

    async def run(self) -> None:
        """Follow it until cancelled; begin anew where another version is served, or none any more."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._versions.run())

    def _found(self, served: Resource | None) -> None:
        if served != self.resource and self._tasks:
            if self._following:
                self._following.cancel()
            self._informer = self._follow(served) if served else None
            self._following = self._tasks.create_task(self._informer.run()) if self._informer else None
        self._looked = True
        self._changed()

    def _follow(self, resource: Resource) -> Informer[ExtensionConfig]:
        informer = Informer(
            self._client,
            decoding.typed(resource, ExtensionConfig),
            clock=self._clock,
            troubled=self._troubled,
            listed=self._changed,
        )
        informer.subscribe(self._config_changed)
        return informer

    def _config_changed(self, change: Change[ExtensionConfig]) -> None:
        if change.key == self._key:
            self._changed()

    def _troubled(self, error: Exception) -> None:
        if str(error) != self._trouble:
            log.warning("ExtensionConfigs cannot be followed for now", why=str(error))
        self._trouble = str(error)


# Our registration with Cluster API, looked after: made again where it vanished, discovered anew, and known to be good.
#
# What `unwind install` would write stands in a ConfigMap, so that a Cluster API that comes later finds us registered.

# Cluster API itself waits up to 1000 s before it looks again at an extension that did not answer.
_ASK_AGAIN = 30.0
_RETRY = Backoff(first=0.5, limit=30.0)


class RegistrationController:
    """Looks after our ExtensionConfig, and knows whether Cluster API asks about the clusters of a namespace."""

    name = "registration"

    def __init__(
        self,
        client: Client,
        caches: ClusterCaches,
        *,
        namespace: str,
        hooks: Iterable[Hook],
        owner: ShardOwner,
        metrics: Metrics,
        segments: Segments | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`namespace`: Unwind's own. `hooks`: those that we answer. `segments`: the secret segments of our paths."""
        self._client = client
        self._home = namespace
        self._extension = extension_name(namespace)
        self._hooks = {hook_protocol.handler(hook): hook for hook in hooks}
        self._owner = owner
        self._segments = segments or Segments()
        self._clock = clock
        self._told: list[Callable[[], None]] = []
        self._extensions = Extensions(client, self._extension, clock=clock, changed=self._extension_changed)
        self._namespaces: Informer[Metadata] = Informer(
            client, decoding.metadata(NAMESPACES), clock=clock, troubled=_tell_blind, listed=self._tell
        )
        self._namespaces.subscribe(self._namespace_changed)
        self._seen: object = None
        self._asked = float("-inf")
        self._queue: Queue[str] = Queue(
            metrics.timed(self.name, Fences(owner).around(self._reconcile, lambda _: self._extension)),
            backoff=_RETRY,
            clock=clock,
            failed=_tell_failed,
        )
        metrics.queue(self.name, self._queue)
        for kind, name in ((CONFIG_MAPS, REGISTRATION), (SECRETS, CERTIFICATE)):
            key = Key(namespace, name)
            caches.sources[kind.kind].subscribe(
                lambda change, key=key: self._look() if change.key == key else None  # type: ignore[misc]
            )
        owner.subscribe(self._look)
        self._segments.subscribe(self._look)

    # What others want to know

    @property
    def ready(self) -> bool:
        """Always: nobody has to wait for Cluster API, which may come later or never."""
        return True

    @property
    def known(self) -> bool:
        return self._extensions.known

    def why_not(self, namespace: str) -> GateFault | None:
        """Why Cluster API would not ask about the clusters of a namespace; None if it does."""
        found = self._namespaces.cache.get(Key("", namespace))
        labels = (found.labels or {}) if found else None
        return gate.why_not(self._extensions.ours, name=self._extension, handlers=self._hooks, labels=labels)

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it told when that may have changed."""
        self._told.append(changed)

    async def run(self) -> None:
        """Look after it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._extensions.run())
            tasks.create_task(self._namespaces.run())
            tasks.create_task(self._queue.run())

    # What happens

    def _look(self) -> None:
        self._queue.add(self._extension)

    def _extension_changed(self) -> None:
        self._look()
        ours = self._extensions.ours
        # Most of what is written to it changes nothing for anybody.
        seen = (
            self._extensions.known,
            gate.fault(ours, name=self._extension, handlers=self._hooks),
            ours.spec.namespace_selector if ours else None,
        )
        if seen != self._seen:
            self._seen = seen
            self._tell()

    def _namespace_changed(self, change: Change[Metadata]) -> None:
        ours = self._extensions.ours
        selector = ours.spec.namespace_selector if ours else None
        if selector is None or selector.empty:
            return  # it does not go by labels
        if (change.old.labels if change.old else None) != (change.new.labels if change.new else None):
            self._tell()

    def _tell(self) -> None:
        for told in self._told:
            told()

    # What is done

    async def _reconcile(self, _: str) -> float | None:
        resource = self._extensions.resource
        if resource is None or not self._extensions.known or not self._owner.owns(self._extension):
            return None
        ours = self._extensions.ours
        if ours is None:
            await self._make(resource)
        elif not ours.metadata.terminating and _is_ours(ours):
            if patch := self._address(ours) or await self._authority(ours):
                await self._patch(resource, ours, patch)
                return None  # what was written comes back as a change
            return await self._have_discovered(resource, ours)
        return None

    async def _make(self, resource: Resource) -> None:
        """Register us as install would have."""
        try:
            kept = await self._client.get(CONFIG_MAPS, REGISTRATION, namespace=self._home)
        except NotFoundError:
            return  # nobody has installed us, or somebody uninstalls us
        wanted = remembered(kept, resource.api_version)
        if wanted is None or wanted.get("metadata", {}).get("name") != self._extension:
            log.warning("what is to be registered cannot be read", object=f"ConfigMap/{self._home}/{REGISTRATION}")
            return
        try:
            # A cache may be behind, and to apply would take over what somebody else has put there.
            await self._client.get(resource, self._extension)
        except NotFoundError:
            pass
        else:
            return
        if self._segments.key:
            wanted = with_prefix(wanted, prefix(self._segments.key, HOOKS))
        # As install would: who installs again finds its own fields.
        made = await self._client.apply(resource, wanted, field_manager=names.INSTALL_FIELD_MANAGER)
        log.warning(
            "our ExtensionConfig was not there and was made again: Cluster API did not ask about clusters meanwhile",
            object=f"{resource.kind}/{self._extension}",
            uid=made["metadata"]["uid"],
        )
        self._extensions.take(msgspec.convert(made, ExtensionConfig))

    def _address(self, ours: ExtensionConfig) -> Object | None:
        """The patch that has Cluster API call us by the current segment; None if it does."""
        if not self._segments.key:
            return None
        way = ours.spec.client_config
        config: Object = {"url": way.url} if way.url else {"service": {"path": way.service.path if way.service else ""}}
        patch = corrected(config, self._segments.key)
        return {"spec": {"clientConfig": patch}} if patch else None

    async def _authority(self, ours: ExtensionConfig) -> Object | None:
        """The patch that has Cluster API trust the certificate that we show; None if it does."""
        if names.INJECT_CA_ANNOTATION in ours.metadata.annotations:
            return None  # it reads the Secret itself
        try:
            secret = await self._client.get(SECRETS, CERTIFICATE, namespace=self._home)
        except NotFoundError:
            return None  # the certificate is somebody else's; and so is what it is verified by
        bundle = (secret.get("data") or {}).get("ca.crt")
        if not bundle or bundle == ours.spec.client_config.ca_bundle:
            return None
        return {"spec": {"clientConfig": {"caBundle": bundle}}}

    async def _have_discovered(self, resource: Resource, ours: ExtensionConfig) -> float | None:
        """Have Cluster API look again where it does not know what we answer to. When to look next, if it is to."""
        wanted = {f"{name}.{self._extension}": hook.value for name, hook in self._hooks.items()}
        known = {handler.name: handler.request_hook.hook for handler in ours.status.handlers}
        if known == wanted and api_meta.is_true(ours.status.conditions, gate.DISCOVERED):
            return None
        digest = hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()[:12]
        before, _, count = ours.metadata.annotations.get(names.HANDLERS_ANNOTATION, "").partition(".")
        since = self._clock.monotonic() - self._asked
        if before == digest and since < _ASK_AGAIN:
            return _ASK_AGAIN - since
        # It may have asked a replica that answers otherwise, or found nobody: any other value has it ask once more.
        again = int(count) + 1 if count.isdecimal() else 1
        value = f"{digest}.{again}" if before == digest else digest
        self._asked = self._clock.monotonic()
        await self._patch(resource, ours, {"metadata": {"annotations": {names.HANDLERS_ANNOTATION: value}}})
        return _ASK_AGAIN

    async def _patch(self, resource: Resource, ours: ExtensionConfig, patch: Object) -> None:
        meta = ours.metadata
        read = {"metadata": {"name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version}}
        try:
            written = await self._client.revise(resource, read, patch)
        except (NotFoundError, ConflictError):
            return  # somebody else was faster, and what they did comes by itself
        self._extensions.take(msgspec.convert(written, ExtensionConfig))


def _is_ours(config: ExtensionConfig) -> bool:
    return config.metadata.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY_UNWIND


def _tell_blind(error: Exception) -> None:
    log.warning("namespaces cannot be followed, so a namespaceSelector cannot be judged", why=str(error))


def _tell_failed(_: str, error: Exception) -> None:
    log.warning("our registration with Cluster API could not be looked after", why=redacted(str(error)))
