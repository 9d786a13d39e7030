"""What is protected inside of namespaces, followed for the kinds that can be counted: a denial that needs no look."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from unwind.controllers.protecting import subjects
from unwind.controllers.protecting.counting import follows
from unwind.controllers.versions import Versions
from unwind.kube import views
from unwind.kube.informers import Informer
from unwind.kube.views import Key, Stamp, View
from unwind.protecting.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.controllers.protecting.subjects import Found
    from unwind.kube.client import Client
    from unwind.kube.views import Metadata
    from unwind.protecting.kinds import Kind

FEW = 5
"""How many protected objects a denial names."""
LABELLED = DELETE_PROTECTION_LABEL
"""As a selector: whatever the label says."""

# The groups of Kubernetes itself, which are always served.
_BUILT_IN = frozenset({"", "apps", "batch", "networking.k8s.io"})


def resources(kind: Kind) -> list[Resource]:
    """A kind in its versions, the newest first."""
    return [
        Resource(kind.group, version, kind.plural, kind.kind, namespaced=kind.namespaced)
        for version in reversed(kind.versions)
    ]


def view(kind: Kind, resource: Resource) -> View[Found]:
    """How labelled objects of a kind are read. Where their content says nothing, the server leaves it out: nobody has
    to see what is in a Secret."""

    def decode(body: msgspec.Raw) -> Found:
        try:
            return subjects.read(body, kind, version=resource.version)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error

    def stamp(found: Found) -> Stamp:
        return Stamp(Key(sys.intern(found.ref.namespace), found.ref.name), found.ref.uid, found.version)

    if kind.count:
        return View(resource, decode, stamp)
    partial = views.metadata(resource)
    return View(resource, decode, stamp, partial.accept_list, partial.accept_watch)


class Guards:
    """The labelled objects of every namespaced kind that can be protected."""

    def __init__(
        self, client: Client, *, clock: Clock, troubled: Callable[[Resource], Callable[[Exception], None]]
    ) -> None:
        self._client = client
        self._clock = clock
        self._troubled = troubled
        self._informers: dict[Kind, Informer[Found]] = {}
        self._crds: Informer[Metadata] = Informer(
            client,
            views.metadata(CUSTOM_RESOURCE_DEFINITIONS),
            clock=clock,
            troubled=troubled(CUSTOM_RESOURCE_DEFINITIONS),
        )
        self._versions: list[Versions] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._following: dict[Kind, asyncio.Task[None]] = {}
        for kind in KINDS:
            if not kind.namespaced:
                continue
            if kind.group in _BUILT_IN:
                self._follow(kind, resources(kind)[0])
            else:
                self._versions.append(self._versions_of(kind))

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return (self._crds, *self._informers.values())

    def inside(self, namespace: str) -> tuple[ObjectRef, ...]:
        """Some of the objects there that could not be deleted by themselves, as far as is known."""
        found: list[ObjectRef] = []
        for informer in self._informers.values():
            if informer.cache.count("guarded", namespace) and follows(informer):
                found += [one.ref for one in informer.cache.by("guarded", namespace, limit=FEW - len(found))]
                if len(found) == FEW:
                    break
        return tuple(found)

    async def run(self) -> None:
        """Follow them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._crds.run())
            for kind, informer in self._informers.items():
                self._following[kind] = tasks.create_task(informer.run())
            for versions in self._versions:
                tasks.create_task(versions.run())

    def _follow(self, kind: Kind, resource: Resource) -> Informer[Found]:
        informer = self._informers[kind] = Informer(
            self._client,
            view(kind, resource),
            labels=LABELLED,
            indexes={"guarded": _guarded},
            clock=self._clock,
            troubled=self._troubled(resource),
        )
        return informer

    def _versions_of(self, kind: Kind) -> Versions:
        known = resources(kind)
        return Versions(
            self._client,
            known,
            clock=self._clock,
            troubled=self._troubled(known[0]),
            found=lambda served: self._found(kind, served),
            crds=self._crds,
        )

    def _found(self, kind: Kind, served: Resource | None) -> None:
        held = self._informers.get(kind)
        if (held.view.resource if held else None) != served:
            if following := self._following.pop(kind, None):
                following.cancel()
            # What there was of a kind that is served no longer went with it.
            self._informers.pop(kind, None)
            if served:
                informer = self._follow(kind, served)
                assert self._tasks  # noqa: S101 - told by one of its tasks
                self._following[kind] = self._tasks.create_task(informer.run())


def _guarded(found: Found) -> Iterator[str]:
    if found.guarded:
        yield found.ref.namespace
