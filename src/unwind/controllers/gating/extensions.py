"""ExtensionConfigs, in whichever version Cluster API serves them; there may be no such kind at all."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.capi import EXTENSION_CONFIGS, ExtensionConfig
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.deleting.deletion import pause
from unwind.installing.registration import VERSIONS
from unwind.kube import views
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.kube.informers import Informer
from unwind.kube.queue import Backoff
from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client
    from unwind.kube.views import Metadata

log = logs.get(__name__)

_RETRY = Backoff(first=0.2, limit=30.0)
_CRD = Key("", f"{EXTENSION_CONFIGS.plural}.{EXTENSION_CONFIGS.group}")


class Extensions:
    """Follows one ExtensionConfig."""

    def __init__(self, client: Client, name: str, *, clock: Clock, changed: Callable[[], None]) -> None:
        """`changed` is told whenever it, or what is known of it, is no longer what it was."""
        self._client = client
        self._key = Key("", name)
        self._clock = clock
        self._changed = changed
        self._crds: Informer[Metadata] = Informer(
            client, views.metadata(CUSTOM_RESOURCE_DEFINITIONS), clock=clock, troubled=self._troubled
        )
        self._crds.subscribe(self._crd_changed)
        self._informer: Informer[ExtensionConfig] | None = None
        self._looked = False
        self._trouble = ""
        self._wake = asyncio.Event()
        self._chance = random.Random()  # noqa: S311 - no secret in it

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
            tasks.create_task(self._crds.run())
            await self._crds.until_synced()
            following: asyncio.Task[None] | None = None
            failures = 0
            while True:
                self._wake.clear()
                try:
                    served, failures = await self._served(), 0
                except (ApiError, UnreachableError) as error:
                    self._troubled(error)
                    failures += 1
                else:
                    if served != self.resource:
                        if following:
                            following.cancel()
                        self._informer = self._follow(served) if served else None
                        following = tasks.create_task(self._informer.run()) if self._informer else None
                    self._looked = True
                    self._changed()
                await pause(self._clock, _RETRY.after(failures, self._chance) if failures else None, self._wake)

    async def _served(self) -> Resource | None:
        if _CRD not in self._crds.cache:
            return None
        try:
            definition = await self._client.get(CUSTOM_RESOURCE_DEFINITIONS, _CRD.name)
        except NotFoundError:
            return None
        served = {one["name"] for one in definition["spec"]["versions"] if one["served"]}
        return next((one for one in VERSIONS if one.version in served), None)

    def _follow(self, resource: Resource) -> Informer[ExtensionConfig]:
        informer = Informer(
            self._client,
            views.typed(resource, ExtensionConfig),
            clock=self._clock,
            troubled=self._troubled,
            listed=self._changed,
        )
        informer.subscribe(self._config_changed)
        return informer

    def _config_changed(self, change: Change[ExtensionConfig]) -> None:
        if change.key == self._key:
            self._changed()

    def _crd_changed(self, change: Change[Metadata]) -> None:
        if change.key == _CRD:
            self._wake.set()

    def _troubled(self, error: Exception) -> None:
        if str(error) != self._trouble:
            log.warning("ExtensionConfigs cannot be followed for now", why=str(error))
        self._trouble = str(error)
