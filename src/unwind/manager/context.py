"""What the manager is told when it starts, and what its components can use."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import DeletePolicy
from unwind.api.features import ALL, Features
from unwind.api.rights import HOME
from unwind.clock import ServerClock
from unwind.components import Protection, Role
from unwind.kube.controller import ControllerDeps
from unwind.kube.informers import InformerFactory
from unwind.server.listener import Address
from unwind.server.path_segments import Segments
from unwind.server.reachability import Answering
from unwind.teardown.records import KEEP
from unwind.teardown.step_removers import BEST_EFFORT

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from unwind.kube.client import Client
    from unwind.kube.events import Recorder
    from unwind.kube.metrics import Metrics
    from unwind.kube.shards import Shards


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the manager process."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = HOME
    """The namespace that Unwind is installed in."""
    listen: Address = Address("0.0.0.0", 9443)  # noqa: S104 - webhooks are called from elsewhere
    metrics_listen: Address = Address("0.0.0.0", 8080)  # noqa: S104 - and so are probes
    secure_metrics: bool = False
    """Whether the listener of metrics and probes uses TLS, and metrics need a token."""
    roles: tuple[Role, ...] = tuple(Role)
    features: Features | None = None
    """None: those that were installed."""
    feature_gates: dict[str, bool] = {}
    tls_cert: Path | None = None
    tls_key: Path | None = None
    hosts: tuple[str, ...] = ()
    client_ca: Path | None = None
    check_service: bool = False
    shutdown_grace: float = 20.0
    delete_policy: DeletePolicy = DeletePolicy.MANAGE
    """The delete policy of external resources if neither the object nor its namespace sets one."""
    best_effort: float = BEST_EFFORT
    """The timeout of a best-effort removal in seconds."""
    keep_teardowns: timedelta = KEEP
    """How long finished Teardowns are kept."""
    archive: Path | None = None
    """The directory that finished Teardowns are written to; None: they are not."""
    protection: Protection = Protection()
    """How deletion protection is enforced, and what may be read for it. The feature gate enables it."""
    notification_hosts: frozenset[str] = frozenset()
    """Hosts of sinks that may be in a private network."""
    notification_ca: Path | None = None


class ManagerContext:
    """What a component of this process can use."""

    def __init__(
        self,
        options: ManagerOptions,
        *,
        client: Client,
        features: Features = ALL,
        registry: CollectorRegistry,
        metrics: Metrics,
        shards: Shards,
        recorder: Recorder,
        notification_ca: bytes = b"",
        segments: Segments | None = None,
        answering: Answering | None = None,
    ) -> None:
        self.options = options
        self.client = client
        """The client of the management cluster."""
        self.clock = ServerClock(client.time)
        """For what counts from times that the API server wrote."""
        self.controllers = ControllerDeps(client=client, owner=shards, metrics=metrics, recorder=recorder)
        self.server_time = msgspec.structs.replace(self.controllers, clock=self.clock)
        """The same, with the clock of the API server."""
        self.informers = InformerFactory(client)
        """Watches of the management cluster that several components need."""
        self.features = features
        """The features that run."""
        self.registry = registry
        self.metrics = metrics
        self.shards = shards
        """The shards of this replica; a controller checks them before every write."""
        self.recorder = recorder
        self.notification_ca = notification_ca
        """CAs of sinks besides those of the system, as PEM."""
        self.segments = segments or Segments()
        """The secret segments of webhook and hook paths."""
        self.answering = answering or Answering(client, lambda: True, self.segments)
        """Whether the manager answers: what calls it is registered only then."""
