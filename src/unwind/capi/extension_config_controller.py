"""The controller of Unwind's ExtensionConfig: restores it, triggers discovery, and reports whether the gate is
armed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api import meta as api_meta
from unwind.api import names
from unwind.api.capi import ExtensionConfig
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from unwind.capi import extension_config_faults, hook_protocol
from unwind.capi.admission_policies import extension_name
from unwind.capi.manifests import VERSIONS, with_prefix
from unwind.concurrency import run_all
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.informers import InformerFactory
from unwind.kube.served_versions import ServedInformer
from unwind.server.manager_names import CERTIFICATE, REGISTRATION, recorded_extension
from unwind.server.path_segments import HOOKS, corrected, prefix
from unwind.server.registration import RegistrationController

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.hooks import Hook
    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.members.cluster_caches import ClusterCaches
    from unwind.server.registration import RegistrationDeps
    from unwind.teardown.deletion_gate import GateFault


log = logs.get(__name__)


class Extensions:
    """Watches one ExtensionConfig, in the version that Cluster API serves; the kind may not exist."""

    def __init__(
        self, client: Client, name: str, *, informers: InformerFactory, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """`changed`: called when the object, or the served version, changes."""
        self._key = Key("", name)
        self._changed = changed
        self._served: ServedInformer[ExtensionConfig] = ServedInformer(
            client,
            VERSIONS,
            lambda resource: decoding.typed(resource, ExtensionConfig),
            informers=informers,
            clock=clock,
            changed=self._config_changed,
            listed=changed,
        )
        self.run = self._served.run

    @property
    def known(self) -> bool:
        """Whether the object was listed, or the kind is known not to exist."""
        return self._served.known

    @property
    def resource(self) -> Resource | None:
        """The served version; None if the kind does not exist."""
        return self._served.resource

    @property
    def ours(self) -> ExtensionConfig | None:
        return self._served.informer.cache.get(self._key) if self._served.informer else None

    def take(self, config: ExtensionConfig) -> None:
        """Store the response of our own write."""
        if self._served.informer:
            self._served.informer.take(config)

    def _config_changed(self, change: Change[ExtensionConfig]) -> None:
        if change.key == self._key:
            self._changed()


# Registration with Cluster API
#
# The manifest that `unwind install` would write is in a ConfigMap, so that Unwind can register when Cluster API is
# installed later.

# Cluster API itself waits up to 1000 s before it retries an extension that did not respond.
_ASK_AGAIN = 30.0


class ExtensionConfigController(RegistrationController):
    """Reconciles our ExtensionConfig, and reports whether Cluster API calls our hooks for the clusters of a
    namespace."""

    name = "registration"

    def __init__(
        self,
        deps: RegistrationDeps,
        caches: ClusterCaches,
        *,
        hooks: Iterable[Hook],
        informers: InformerFactory | None = None,
    ) -> None:
        """`hooks`: the hooks that we serve."""
        super().__init__(deps)
        client, clock = deps.shared.client, deps.shared.clock
        self._extension = extension_name(deps.namespace)
        self._hooks = {hook_protocol.handler(hook): hook for hook in hooks}
        self._told: list[Callable[[], None]] = []
        informers = informers or InformerFactory(client, clock=clock)
        self._extensions = Extensions(
            client, self._extension, informers=informers, clock=clock, changed=self._extension_changed
        )
        self._namespaces = informers.metadata(NAMESPACES, troubled=_log_watch_failed, listed=self._tell)
        self._namespaces.subscribe(self._namespace_changed)
        self._seen: object = None
        # Outside the cluster, install creates it. In the cluster, the first manager does.
        self._existed = not self._through_service
        self._asked = float("-inf")
        for kind, name in ((CONFIG_MAPS, REGISTRATION), (SECRETS, CERTIFICATE)):
            key = Key(deps.namespace, name)
            caches.sources[kind.kind].subscribe(
                lambda change, key=key: self._enqueue_all() if change.key == key else None  # type: ignore[misc]
            )

    # Gate status

    @property
    def known(self) -> bool:
        return self._extensions.known

    def why_not(self, namespace: str) -> GateFault | None:
        """Why Cluster API would not call our hooks for the clusters of a namespace; None if it does."""
        found = self._namespaces.cache.get(Key("", namespace))
        labels = (found.labels or {}) if found else None
        return extension_config_faults.why_not(
            self._extensions.ours, name=self._extension, handlers=self._hooks, labels=labels
        )

    @property
    def settings(self) -> dict[str, str]:
        """The settings that Cluster API passes to the hooks."""
        return self._extensions.ours.spec.settings if self._extensions.ours else {}

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the gate status may have changed."""
        self._told.append(changed)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        await run_all(self._extensions, self._namespaces, self._queue)

    # Events

    def _enqueue_all(self) -> None:
        self._queue.add(self._extension)

    def _extension_changed(self) -> None:
        self._enqueue_all()
        ours = self._extensions.ours
        self._existed = self._existed or ours is not None
        # Most writes to it do not change the gate status.
        seen = (
            self._extensions.known,
            extension_config_faults.gate_fault(ours, name=self._extension, handlers=self._hooks),
            ours.spec.namespace_selector if ours else None,
        )
        if seen != self._seen:
            self._seen = seen
            self._tell()

    def _namespace_changed(self, change: Change[Metadata]) -> None:
        ours = self._extensions.ours
        selector = ours.spec.namespace_selector if ours else None
        if selector is None or selector.empty:
            return  # it has no label selector
        if (change.old.labels if change.old else None) != (change.new.labels if change.new else None):
            self._tell()

    def _tell(self) -> None:
        for told in self._told:
            told()

    # Reconcile

    async def _reconcile(self, _: str) -> float | None:
        resource = self._extensions.resource
        if resource is None or not self._extensions.known or not self._owner.owns(self._extension):
            return None
        ours = self._extensions.ours
        if ours is None:
            if self._answered:
                await self._register(resource)
        elif not ours.metadata.terminating and _is_ours(ours):
            if self._through_service and await self._update(resource, ours):
                return None
            if patch := self._address(ours) or await self._authority(ours):
                await self._patch(resource, ours, patch)
                return None  # the write comes back as an event
            return await self._trigger_discovery(resource, ours)
        return None

    async def _register(self, resource: Resource) -> None:
        """Create the ExtensionConfig as install would."""
        wanted = await self._recorded(resource)
        if wanted is None:
            return
        try:
            # The cache may be stale, and an apply would take over the object of another owner.
            await self._client.get(resource, self._extension)
        except NotFoundError:
            pass
        else:
            return
        existed = self._existed
        made = await self._apply(resource, wanted)
        about = {"object": f"{resource.kind}/{self._extension}", "uid": made.metadata.uid}
        if existed:
            log.warning(
                "ExtensionConfig was missing, recreated; Cluster API called no hooks meanwhile",
                remedy="see the audit log for the user who deleted it",
                **about,
            )
        else:
            log.info("ExtensionConfig created; Cluster API calls the hooks from now on", **about)

    async def _update(self, resource: Resource, ours: ExtensionConfig) -> bool:
        """Apply the recorded namespaceSelector and settings if they changed. Outside the cluster, install does that."""
        wanted = await self._recorded(resource)
        if wanted is None:
            return False
        spec = msgspec.convert(wanted, ExtensionConfig).spec
        if (spec.namespace_selector, spec.settings) == (ours.spec.namespace_selector, ours.spec.settings):
            return False
        await self._apply(resource, wanted | {"metadata": wanted["metadata"] | {"uid": ours.metadata.uid}})
        log.info("ExtensionConfig updated", object=f"{resource.kind}/{self._extension}", uid=ours.metadata.uid)
        return True

    async def _recorded(self, resource: Resource) -> Object | None:
        """The ExtensionConfig that install or the chart recorded; None if Unwind is not installed, or is being
        uninstalled."""
        try:
            kept = await self._client.get(CONFIG_MAPS, REGISTRATION, namespace=self._home)
        except NotFoundError:
            return None
        wanted = recorded_extension(kept, resource.api_version)
        if wanted is None or wanted.get("metadata", {}).get("name") != self._extension:
            log.warning(
                "registration manifest is invalid",
                object=f"ConfigMap/{self._home}/{REGISTRATION}",
                remedy="run `unwind install` or `helm upgrade` again",
            )
            return None
        return with_prefix(wanted, prefix(self._segments.key, HOOKS)) if self._segments.key else wanted

    async def _apply(self, resource: Resource, wanted: Object) -> ExtensionConfig:
        # With install's field manager, so that a later install owns the same fields.
        written = await self._client.apply(resource, wanted, field_manager=names.INSTALL_FIELD_MANAGER)
        made = msgspec.convert(written, ExtensionConfig)
        self._extensions.take(made)
        return made

    def _address(self, ours: ExtensionConfig) -> Object | None:
        """The patch that sets the current secret segment; None if it is set."""
        if not self._segments.key:
            return None
        way = ours.spec.client_config
        config: Object = {"url": way.url} if way.url else {"service": {"path": way.service.path if way.service else ""}}
        patch = corrected(config, self._segments.key)
        return {"spec": {"clientConfig": patch}} if patch else None

    async def _authority(self, ours: ExtensionConfig) -> Object | None:
        """The patch that sets the CA bundle of our certificate; None if it is set."""
        if names.INJECT_CA_ANNOTATION in ours.metadata.annotations:
            return None  # Cluster API injects it from the Secret
        try:
            secret = await self._client.get(SECRETS, CERTIFICATE, namespace=self._home)
        except NotFoundError:
            return None  # the certificate is managed elsewhere, and so is its CA
        bundle = (secret.get("data") or {}).get("ca.crt")
        if not bundle or bundle == ours.spec.client_config.ca_bundle:
            return None
        return {"spec": {"clientConfig": {"caBundle": bundle}}}

    async def _trigger_discovery(self, resource: Resource, ours: ExtensionConfig) -> float | None:
        """Trigger a new discovery if Cluster API does not know our handlers. Returns the seconds until the next check,
        if any."""
        wanted = {f"{name}.{self._extension}": hook.value for name, hook in self._hooks.items()}
        known = {handler.name: handler.request_hook.hook for handler in ours.status.handlers}
        if known == wanted and api_meta.is_true(ours.status.conditions, extension_config_faults.DISCOVERED):
            return None
        digest = hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()[:12]
        before, _, count = ours.metadata.annotations.get(names.HANDLERS_ANNOTATION, "").partition(".")
        since = self._clock.monotonic() - self._asked
        if before == digest and since < _ASK_AGAIN:
            return _ASK_AGAIN - since
        # It may have called a replica with other features, or none: any new value makes it call again.
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
            return  # changed concurrently; the change comes as an event
        self._extensions.take(msgspec.convert(written, ExtensionConfig))


def _is_ours(config: ExtensionConfig) -> bool:
    return config.metadata.labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY_UNWIND


def _log_watch_failed(error: Exception) -> None:
    log.warning("namespace watch failed, will retry; until then namespaceSelector is not evaluated", why=str(error))
