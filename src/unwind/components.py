"""Components of the manager process: what runs, and in which role.

`unwind.manager.wiring` says which components there are.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Protocol

import msgspec

from unwind.server.routes import CABundleTarget, Route

# Which of the two ways decides about deletions, and what may be read for it (values only).

PROTECTION_GATE = "ResourcesDeletionProtection"
"""The feature gate that all of it is behind."""


class Mode(StrEnum):
    """Who decides what the object alone can decide; the rest is always decided by the webhook."""

    AUTO = "auto"
    """Policies where the API server has them, otherwise the webhook."""
    WEBHOOK = "webhook"
    POLICY = "policy"
    """Policies; a manager does not start where the API server has none."""


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told of it when it starts."""

    mode: Mode = Mode.AUTO
    groups: tuple[str, ...] | None = None
    """The API groups whose objects may be read, besides those of the kinds that can be protected; None for all."""


class Component(Protocol):
    """A component that runs as long as the process: a controller, certificate renewal.

    It starts when `run` is called and stops when that is cancelled. It retries transient errors itself. If
    `run` raises, the process ends: its supervisor restarts it, and all state is in the API server
    (docs/architecture.md, State in the API server).
    """

    @property
    def name(self) -> str:
        """The name that `/readyz` reports while it is not ready."""

    @property
    def ready(self) -> bool:
        """Whether it is ready, for example: its caches are synced."""

    async def run(self) -> None:
        """Run until cancelled."""


class Role(StrEnum):
    """A role of the process; by default it has both."""

    CONTROLLERS = "controllers"
    SERVING = "serving"


class Components(msgspec.Struct, frozen=True, kw_only=True):
    """What a package contributes to the process: components and routes, each for a role."""

    controllers: tuple[Component, ...] = ()
    """Components for the role `controllers`."""
    serving: tuple[Component, ...] = ()
    """Components for the role `serving`: what the routes need, such as caches."""
    routes: tuple[Route, ...] = ()
    ca_bundle_targets: tuple[CABundleTarget, ...] = ()
    shared: tuple[AbstractAsyncContextManager[object], ...] = ()
    """What components use together, such as connections. Entered before any component starts, and exited after all of
    them have ended."""
