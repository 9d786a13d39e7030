"""ExtensionConfigs, in whichever version Cluster API serves them; there may be no such kind at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.capi import ExtensionConfig
from unwind.controllers.versions import Versions
from unwind.installing.registration import VERSIONS
from unwind.kube import views
from unwind.kube.informers import Informer
from unwind.kube.views import Key

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client

log = logs.get(__name__)


class Extensions:
    """Follows one ExtensionConfig."""

    def __init__(self, client: Client, name: str, *, clock: Clock, changed: Callable[[], None]) -> None:
        """`changed` is told whenever it, or what is known of it, is no longer what it was."""
        self._client = client
        self._key = Key("", name)
        self._clock = clock
        self._changed = changed
        self._versions = Versions(client, VERSIONS, clock=clock, troubled=self._troubled, found=self._found)
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

    def _troubled(self, error: Exception) -> None:
        if str(error) != self._trouble:
            log.warning("ExtensionConfigs cannot be followed for now", why=str(error))
        self._trouble = str(error)
