"""Which version of a kind is served: kinds of other systems come later, go, or change their versions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.concurrency import unless
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.kube.informers import Informer

_RETRY = Backoff(first=0.2, limit=30.0)


class ServedVersions:
    """Follows which of the versions of a kind that are known here is served."""

    def __init__(
        self,
        client: Client,
        known: Sequence[Resource],
        *,
        clock: Clock,
        troubled: Callable[[Exception], None],
        found: Callable[[Resource | None], None],
        crds: Informer[Metadata],
    ) -> None:
        """`known`: the same kind in its versions, the best first. `found` is told the one that is served, or None where
        there is none, whenever it may have changed. `crds`: a shared informer of
        the CRDs."""
        self._client = client
        self._known = tuple(known)
        self._crd = f"{known[0].plural}.{known[0].group}"
        self._clock = clock
        self._troubled = troubled
        self._found = found
        self._crds = crds
        self._crds.subscribe(self._crd_changed)
        self._wake = asyncio.Event()
        self._chance = JITTER

    async def run(self) -> None:
        """Follow it, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._crds.run())
            await self._crds.until_synced()
            failures = 0
            while True:
                self._wake.clear()
                try:
                    self._found(await self._served())
                    failures = 0
                except (ApiError, UnreachableError) as error:
                    self._troubled(error)
                    failures += 1
                if failures:
                    await unless(self._wake, self._clock.sleep(_RETRY.after(failures, self._chance)))
                else:
                    await self._wake.wait()

    async def _served(self) -> Resource | None:
        if Key("", self._crd) not in self._crds.cache:
            return None
        try:
            definition = await self._client.get(CUSTOM_RESOURCE_DEFINITIONS, self._crd)
        except NotFoundError:
            return None
        return first_served(definition, self._known)

    def _crd_changed(self, change: Change[Metadata]) -> None:
        if change.key.name == self._crd:
            self._wake.set()


def first_served(definition: Object, known: Sequence[Resource]) -> Resource | None:
    """The first of the known versions that a CRD serves."""
    names = {item["name"] for item in definition["spec"]["versions"] if item["served"]}
    return next((resource for resource in known if resource.version in names), None)
