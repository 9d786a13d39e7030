"""The base of controllers that register this manager with what calls it: webhooks, policies, the ExtensionConfig."""

from __future__ import annotations

import msgspec

from unwind import logs
from unwind.kube.controller import ControllerDeps, fenced_queue
from unwind.kube.workqueue import Backoff, Queue
from unwind.server.path_segments import Segments, redacted
from unwind.server.reachability import Answering

_RETRY = Backoff(first=0.5, limit=30.0)


class RegistrationDeps(msgspec.Struct, frozen=True, kw_only=True):
    """What these controllers need."""

    shared: ControllerDeps
    namespace: str
    """Unwind's own."""
    segments: Segments = msgspec.field(default_factory=Segments)
    """The secret segments of our paths."""
    answering: Answering | None = None
    """Nothing is registered before the manager answers. None: it answers."""


class RegistrationController:
    """Reconciles what registers this manager. All keys are enqueued when the shards of this replica or the secret
    segments change, and when the manager answers."""

    name: str

    def __init__(self, deps: RegistrationDeps) -> None:
        shared = deps.shared
        self._client = shared.client
        self._home = deps.namespace
        self._owner = shared.owner
        self._segments = deps.segments
        self._answering = deps.answering
        self._clock = shared.clock
        self._queue: Queue[str] = fenced_queue(
            self.name,
            self._reconcile,
            lambda key: key,
            shared,
            failed=self._failed,
            backoff=_RETRY,
        )
        shared.owner.subscribe(self._enqueue_all)
        deps.segments.subscribe(self._enqueue_all)
        if deps.answering:
            deps.answering.subscribe(self._enqueue_all)

    @property
    def ready(self) -> bool:
        """Always true: a manager answers even if it cannot register itself, and Cluster API may be installed never."""
        return True

    @property
    def _answered(self) -> bool:
        return self._answering is None or self._answering.answered

    @property
    def _through_service(self) -> bool:
        """Whether the manager is called through its Service."""
        return self._answering is not None and self._answering.through_service

    def _enqueue_all(self) -> None:
        """Enqueue all keys."""
        raise NotImplementedError

    async def _reconcile(self, key: str) -> float | None:
        """Reconcile a key. Returns after how many seconds to requeue it, or None."""
        raise NotImplementedError

    def _failed(self, key: str, error: Exception) -> None:
        log = logs.get(type(self).__module__)
        log.warning("reconcile failed, will retry", object=key, why=redacted(str(error)))
