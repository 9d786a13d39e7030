"""Components of the manager process: what runs, in which role, and what it can use.

`unwind.manager.wiring` says which components there are.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.features import ALL
from unwind.clock import ServerClock
from unwind.kube.controller import ControllerDeps
from unwind.kube.informers import InformerFactory
from unwind.server.path_segments import Segments
from unwind.server.reachability import Answering
from unwind.server.routes import CABundleTarget, Route

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from unwind.api.annotation_values import DeletePolicy
    from unwind.api.features import Features
    from unwind.kube.client import Client
    from unwind.kube.events import Recorder
    from unwind.kube.metrics import Metrics
    from unwind.kube.shards import Shards


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


class ManagerContext:
    """What a component of this process can use."""

    def __init__(
        self,
        *,
        client: Client,
        namespace: str,
        roles: Sequence[Role],
        feature_gates: Mapping[str, bool],
        features: Features = ALL,
        registry: CollectorRegistry,
        metrics: Metrics,
        shards: Shards,
        recorder: Recorder,
        policy: DeletePolicy,
        best_effort: float,
        keep_teardowns: timedelta,
        archive: Path | None = None,
        protection: Protection = Protection(),  # noqa: B008 - frozen
        notification_hosts: frozenset[str] = frozenset(),
        notification_ca: bytes = b"",
        segments: Segments | None = None,
        answering: Answering | None = None,
    ) -> None:
        self.client = client
        """The client of the management cluster."""
        self.clock = ServerClock(client.time)
        """For what counts from times that the API server wrote."""
        self.controllers = ControllerDeps(client=client, owner=shards, metrics=metrics, recorder=recorder)
        self.server_time = msgspec.structs.replace(self.controllers, clock=self.clock)
        """The same, with the clock of the API server."""
        self.informers = InformerFactory(client)
        """Watches of the management cluster that several components need."""
        self.namespace = namespace
        """The namespace that Unwind is installed in."""
        self.roles = roles
        self.features = features
        """The features that run."""
        self.feature_gates = feature_gates
        self.registry = registry
        self.metrics = metrics
        self.shards = shards
        """The shards of this replica; a controller checks them before every write."""
        self.recorder = recorder
        self.policy = policy
        """The delete policy of external resources if neither the object nor its namespace sets one."""
        self.best_effort = best_effort
        """The timeout of a best-effort removal in seconds."""
        self.keep_teardowns = keep_teardowns
        """How long finished Teardowns are kept."""
        self.archive = archive
        """The directory that finished Teardowns are written to; None: they are not."""
        self.protection = protection
        """How deletion protection is enforced, and what may be read for it. The feature gate enables it."""
        self.notification_hosts = notification_hosts
        """Hosts of sinks that may be in a private network."""
        self.notification_ca = notification_ca
        """CAs of sinks besides those of the system, as PEM."""
        self.segments = segments or Segments()
        """The secret segments of webhook and hook paths."""
        self.answering = answering or Answering(client, lambda: True, self.segments)
        """Whether the manager answers: what calls it is registered only then."""


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
