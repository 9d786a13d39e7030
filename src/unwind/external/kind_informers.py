"""Informers of every kind with an external resource, started and stopped as CRDs come and go."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from unwind.deleters.chain_attempt import Failed
from unwind.deleters.deletion import pause
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import External
from unwind.external import tracked_objects
from unwind.external.object_status import Reports
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError, UnreachableError
from unwind.kube.informers import Informer, InformerFactory
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from unwind.api.meta import ObjectMeta
    from unwind.deleters.registry import DeleterRegistry
    from unwind.external.tracked_objects import Act, ExternalObject
    from unwind.kube.cache import Change
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.kube.discovery import ServedKind


# Which served kinds have an external resource, each in one version

# Not patch, although finalizers are patched: for a CRD that is being deleted, discovery no longer lists patch, but the
# server accepts it. That is just when its objects wait for us.
_NEEDED = frozenset(["get", "list", "watch"])


class ExternalKind(msgspec.Struct, frozen=True):
    """A kind that is reconciled."""

    resource: Resource
    end: External | Failed
    """How to reach its external system; or why that is unknown: then its objects are blocked."""


def candidates(served: Iterable[ServedKind], *, removed: Collection[str] = ()) -> dict[tuple[str, str], list[Resource]]:
    """The usable versions of each kind, the server's preferred one first.

    `removed`: deleted CRDs (`plural.group`) that discovery may still list.
    """
    kinds: dict[tuple[str, str], list[Resource]] = {}
    for kind in served:
        resource = kind.resource
        if kind.verbs >= _NEEDED and crd_name(resource) not in removed:
            kinds.setdefault((resource.group, resource.kind), []).append(resource)
    return kinds


async def survey_kinds(
    registry: DeleterRegistry, served: Iterable[ServedKind], *, defined: Collection[str], removed: Collection[str] = ()
) -> list[ExternalKind]:
    """The kinds with an external resource, and those for which it is unknown; `defined`: the existing CRDs."""
    found = []
    for versions in candidates(served, removed=removed).values():
        ends = [
            ExternalKind(resource, end) for resource in versions if (end := await _end(registry, resource)) is not None
        ]
        # A plugin may declare only one of several versions: then objects are read in that one.
        chosen = next((end for end in ends if isinstance(end.end, External)), ends[0] if ends else None)
        # A plugin that fails before it declares its kinds blocks all kinds, except built-in ones, which never get our
        # finalizer.
        if chosen and (isinstance(chosen.end, External) or crd_name(chosen.resource) in defined):
            found.append(chosen)
    return found


def unserved(defined: Iterable[str], served: Iterable[ServedKind]) -> set[str]:
    """The CRDs whose kinds are not served, or not yet."""
    return set(defined) - {crd_name(kind.resource) for kind in served}


def crd_name(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}"


async def _end(registry: DeleterRegistry, resource: Resource) -> External | Failed | None:
    try:
        return await registry.external(resource)
    except PermanentError as error:
        return Failed(str(error), error.reason, error.severity, error.pace, error.retry_after)


log = logs.get(__name__)

# A CRD exists a moment before its kind is served everywhere.
_RETRY = Backoff(first=0.1, limit=30.0)
# A CRD that is not served after this many checks was not accepted; if it is later, that is an event.
_LOOKS = 12


class ExternalKindInformer:
    """A kind and its informer."""

    def __init__(
        self, found: ExternalKind, informer: Informer[ExternalObject], reports: Reports, task: asyncio.Task[None]
    ) -> None:
        self.resource = found.resource
        self.end = found.end
        self.informer = informer
        self.reports = reports
        self.task = task

    def act(self, metadata: ObjectMeta) -> Act:
        """The action for an object of this kind."""
        return tracked_objects.act(metadata, () if isinstance(self.end, Failed) else self.end.finalizers)


class ExternalInformers:
    """The kinds with an external resource, each with a cache of its objects."""

    def __init__(
        self,
        shared: ControllerDeps,
        registry: DeleterRegistry,
        *,
        informers: InformerFactory,
        changed: Callable[[Resource, Change[ExternalObject]], None],
        left: Callable[[Resource], None],
    ) -> None:
        """`changed`: called for every object that changes. `left`: called for a kind that is not served any more."""
        self._shared = shared
        self._registry = registry
        self._changed = changed
        self._left = left
        self.discovery = Discovery(shared.client)
        self.kinds: dict[Resource, ExternalKindInformer] = {}
        self._troubles: dict[Resource, str] = {}
        """Why kinds cannot be watched, such as missing permissions."""
        self._crds = informers.metadata(
            CUSTOM_RESOURCE_DEFINITIONS, troubled=partial(self._troubled, CUSTOM_RESOURCE_DEFINITIONS)
        )
        self._removed: set[str] = set()
        """Deleted CRDs whose kinds discovery may still list."""
        self._wake = asyncio.Event()
        self._surveyed = False
        self._chance = JITTER
        self._crds.subscribe(self._crd_changed)

    @property
    def ready(self) -> bool:
        """Whether the kinds and their objects are known. A kind that is forbidden does not delay the others."""
        return self._surveyed and all(
            kind.informer.synced or resource in self._troubles for resource, kind in self.kinds.items()
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._crds.run())
            await self._crds.until_synced()
            looks = 0
            while True:
                self._wake.clear()
                try:
                    again = bool(await self._survey(tasks)) and looks < _LOOKS
                except (ApiError, UnreachableError, msgspec.MsgspecError) as error:
                    log.warning("API discovery failed, will retry", why=str(error))
                    again = True
                looks = looks + 1 if again else 0
                await pause(self._shared.clock, _RETRY.after(looks, self._chance) if again else None, self._wake)

    async def _survey(self, tasks: asyncio.TaskGroup) -> set[str]:
        """Read the served kinds; returns the CRDs that are not served."""
        served = await self.discovery.kinds(anew=True)
        silent = await self.discovery.silent()
        defined = {key.name for key in self._crds.cache.keys()}  # noqa: SIM118 - a cache is no dict
        surveyed = await survey_kinds(self._registry, served, defined=defined, removed=self._removed)
        found = {item.resource: item for item in surveyed}
        for resource in list(self.kinds):
            # The kinds of an aggregated API server that does not respond are unknown: they are kept.
            if resource not in found and f"{resource.version}.{resource.group}" not in silent:
                self._leave(resource)
        for resource, one in found.items():
            if resource not in self.kinds:
                self._follow(one, tasks)
        self._surveyed = True
        return unserved(defined, served)

    def _follow(self, found: ExternalKind, tasks: asyncio.TaskGroup) -> None:
        resource = found.resource
        informer = Informer(
            self._shared.client,
            tracked_objects.external_view(resource),
            indexes={"namespace": lambda seen: (seen.metadata.namespace,)},
            clock=self._shared.clock,
            troubled=partial(self._troubled, resource),
        )
        reports = Reports(self._shared.client, resource, self._shared.recorder, clock=self._shared.clock)
        self.kinds[resource] = ExternalKindInformer(found, informer, reports, tasks.create_task(informer.run()))
        informer.subscribe(partial(self._changed, resource))
        self._shared.metrics.informer(informer)
        if isinstance(found.end, Failed):
            log.error("kind blocked", kind=resource.kind, api=resource.api_version, why=found.end.message)
        else:
            log.info("kind watch started", kind=resource.kind, api=resource.api_version, end=found.end.name)

    def _leave(self, resource: Resource) -> None:
        self.kinds.pop(resource).task.cancel()
        self._troubles.pop(resource, None)
        self._left(resource)
        log.info("kind watch stopped", kind=resource.kind, api=resource.api_version)

    def _crd_changed(self, change: Change[Metadata]) -> None:
        name = change.key.name
        if change.new is None:
            self._removed.add(name)
        else:
            self._removed.discard(name)
            for kind in self.kinds.values():
                if crd_name(kind.resource) == name:
                    kind.reports.learn_anew()
        self._wake.set()

    def _troubled(self, resource: Resource, error: Exception) -> None:
        if self._troubles.get(resource) != str(error):
            log.warning("watch failed, will retry", kind=resource.kind, api=resource.api_version, why=str(error))
        self._troubles[resource] = str(error)
