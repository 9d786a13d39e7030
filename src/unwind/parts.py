"""What a running process is made of, and how later parts of Unwind get into it.

A room that has something to run or to answer has a function `contribute(surroundings) -> Share`, and is entered in
`unwind.serving.running.CONTRIBUTORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from unwind.api.resources import Resource
from unwind.kube.fencing import Owner as Owner  # noqa: PLC0414 - for who imports it from here
from unwind.protecting.modes import Protection
from unwind.routes import Route
from unwind.segments import Segments

if TYPE_CHECKING:
    from datetime import timedelta

    from prometheus_client import CollectorRegistry

    from unwind.api.policies import DeletePolicy
    from unwind.kube.client import Client
    from unwind.kube.events import Recorder
    from unwind.kube.metrics import Metrics
    from unwind.kube.shards import Shards


class Part(Protocol):
    """Something that runs as long as the process does: a controller, a certificate that is kept fresh.

    It starts when `run` is called and stops when that is cancelled. What can be waited out, it waits out itself. If
    `run` raises, the process ends: its supervisor restarts it, and all state is in the API server
    (docs/architecture.md, State in the API server).
    """

    @property
    def name(self) -> str:
        """What `/readyz` calls it while it is not ready."""

    @property
    def ready(self) -> bool:
        """Whether it can do its work, such as: its caches are synced."""

    async def run(self) -> None:
        """Do the work, until cancelled."""


class Role(StrEnum):
    """What a process does; by default, both."""

    CONTROLLERS = "controllers"
    SERVING = "serving"


class Trusting(msgspec.Struct, frozen=True):
    """An object through which the API server, or Cluster API, calls us: its caBundle is kept current.

    Webhook configurations, CRDs with a conversion webhook, APIServices and ExtensionConfigs are known.
    """

    resource: Resource
    name: str


class Surroundings:
    """What a part of this process can use."""

    def __init__(
        self,
        *,
        client: Client,
        namespace: str,
        roles: Sequence[Role],
        features: Mapping[str, bool],
        registry: CollectorRegistry,
        metrics: Metrics,
        shards: Shards,
        recorder: Recorder,
        policy: DeletePolicy,
        best_effort: float,
        keep_teardowns: timedelta,
        protection: Protection = Protection(),  # noqa: B008 - frozen
        segments: Segments | None = None,
    ) -> None:
        self.client = client
        """The management cluster."""
        self.namespace = namespace
        """Unwind's own."""
        self.roles = roles
        self.features = features
        self.registry = registry
        self.metrics = metrics
        self.shards = shards
        """What this replica may act for; a controller asks before every act."""
        self.recorder = recorder
        self.policy = policy
        """Whether things are deleted where neither they nor their namespace says anything."""
        self.best_effort = best_effort
        """How many seconds a removal may take that its cluster does not wait for."""
        self.keep_teardowns = keep_teardowns
        """How long the record of a teardown stays after its end."""
        self.protection = protection
        """Who decides about deletions, and what may be read for it. Whether it is on stands among the features."""
        self.segments = segments or Segments()
        """The secret segments of the paths by which this process is called."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one room adds to the process. Parts run, and routes answer, where the process has the role for it."""

    controllers: tuple[Part, ...] = ()
    """Run with the role `controllers`."""
    servants: tuple[Part, ...] = ()
    """Run with the role `serving`: what the routes need, such as caches."""
    routes: tuple[Route, ...] = ()
    trusting: tuple[Trusting, ...] = ()


Contributor = Callable[[Surroundings], Share]
