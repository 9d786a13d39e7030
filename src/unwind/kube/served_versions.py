"""Which version of a kind is served, and an informer in that version: kinds of other systems come later, go, or change
their versions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from unwind import logs
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.concurrency import unless
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.kube.informers import Informer
from unwind.kube.workqueue import JITTER, Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from unwind.api.resources import Resource
    from unwind.clock import Clock
    from unwind.kube.cache import Change
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata, View
    from unwind.kube.informers import InformerFactory

log = logs.get(__name__)

T = TypeVar("T")

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


class ServedInformer(Generic[T]):
    """An informer of a kind in the version that is served. The kind may not exist."""

    def __init__(
        self,
        client: Client,
        known: Sequence[Resource],
        view: Callable[[Resource], View[T]],
        *,
        informers: InformerFactory,
        clock: Clock,
        changed: Callable[[Change[T]], None],
        listed: Callable[[], None],
        indexes: Mapping[str, Callable[[T], Iterable[Hashable]]] | None = None,
    ) -> None:
        """`known`: the kind in its versions, the best first. `listed`: called when all objects were listed, and when
        the served version may have changed."""
        self._client = client
        self._view = view
        self._clock = clock
        self._changed = changed
        self._listed = listed
        self._indexes = indexes
        self._kind = known[0].kind
        self._versions = ServedVersions(
            client,
            known,
            clock=clock,
            troubled=self._troubled,
            found=self._found,
            crds=informers.metadata(CUSTOM_RESOURCE_DEFINITIONS, troubled=self._troubled),
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._following: asyncio.Task[None] | None = None
        self._looked = False
        self.informer: Informer[T] | None = None
        """None if the kind does not exist."""
        self.trouble = ""
        """The last failure of a watch."""

    @property
    def known(self) -> bool:
        """Whether the objects were listed, or the kind is known not to exist."""
        return self._looked and (self.informer is None or self.informer.synced)

    @property
    def resource(self) -> Resource | None:
        """The served version; None if the kind does not exist."""
        return self.informer.view.resource if self.informer else None

    async def run(self) -> None:
        """Watch until cancelled; restart if another version is served, or none."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._versions.run())

    def _found(self, served: Resource | None) -> None:
        if served != self.resource and self._tasks:
            if self._following:
                self._following.cancel()
            self.informer = self._follow(served) if served else None
            self._following = self._tasks.create_task(self.informer.run()) if self.informer else None
        self._looked = True
        self._listed()

    def _follow(self, resource: Resource) -> Informer[T]:
        informer = Informer(
            self._client,
            self._view(resource),
            indexes=self._indexes,
            clock=self._clock,
            troubled=self._troubled,
            listed=self._listed,
        )
        informer.subscribe(self._changed)
        return informer

    def _troubled(self, error: Exception) -> None:
        if str(error) != self.trouble:
            log.warning("watch failed, will retry", kind=self._kind, why=str(error))
        self.trouble = str(error)


def first_served(definition: Object, known: Sequence[Resource]) -> Resource | None:
    """The first of the known versions that a CRD serves."""
    names = {item["name"] for item in definition["spec"]["versions"] if item["served"]}
    return next((resource for resource in known if resource.version in names), None)
