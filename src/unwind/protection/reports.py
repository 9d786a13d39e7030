"""Reports of deletion protection: metrics, an audit log entry, and Events for denials and restored policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter

from unwind import logs
from unwind.api.names import EventReason
from unwind.kube.events import Regarding
from unwind.kube.metrics import OTHER
from unwind.protection.kinds import KINDS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from unwind.api.admission import Asked
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.kube.events import Recorder
    from unwind.protection.kinds import ProtectedKind
    from unwind.protection.rules import Denied
    from unwind.protection.subjects import LabelledObject
    from unwind.server.routes import Request

log = logs.get(__name__)

_KNOWN = frozenset(KINDS)


class RestoreReporter:
    """Reports restored policies: a metric, and an Event on the policy."""

    def __init__(self, *, registry: CollectorRegistry, recorder: Recorder) -> None:
        self._recorder = recorder
        self._restored = Counter(
            "unwind_policies_restored", "Admission policies that were restored.", ["kind"], registry=registry
        )

    def report(self, resource: Resource, obj: Object, note: str) -> None:
        """Report that this object was restored. `note`: what was wrong with it."""
        self._restored.labels(resource.kind).inc()
        it = Regarding(resource.api_version, resource.kind, obj["metadata"]["name"], obj["metadata"]["uid"])
        self._recorder.report(it, EventReason.POLICY_RESTORED, note, action="Restore", type="Warning")


class DenialReporter:
    """Reports denials; none for a dry run."""

    def __init__(self, *, registry: CollectorRegistry, recorder: Recorder) -> None:
        self._recorder = recorder
        # Not by user: the number of users is unbounded.
        self._denials = Counter(
            "unwind_protection_denials",
            "Requests denied by deletion protection.",
            ["kind", "reason"],
            registry=registry,
        )

    def denied(self, asked: Asked, found: LabelledObject, denied: Denied, request: Request) -> None:
        """Report a denial."""
        if asked.dry_run:
            return
        self._denials.labels(_name(found.subject.kind), denied.why.value).inc()
        ref, user = found.ref, asked.user_info
        where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
        # A review has neither the address nor the program of the user; of a service account it names the Pod and the
        # node.
        log.warning(
            "request denied",
            object=f"{ref.kind}/{where}",
            uid=ref.uid,
            group=ref.group,
            operation=asked.operation,
            user=user.username,
            groups=list(user.groups),
            extra=dict(user.extra),
            asked_by=request.peer,
            review=asked.uid,
            reason=denied.why.value,
            why=denied.message,
        )
        if asked.operation != "DELETE":
            return  # a denied object may not exist
        self._recorder.report(
            Regarding(_api_version(asked), ref.kind, ref.name, ref.uid, ref.namespace),
            EventReason.REFUSED,
            denied.message,
            action="Delete",
            type="Warning",
        )


def _name(kind: ProtectedKind) -> str:
    if kind not in _KNOWN:
        return OTHER
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def _api_version(asked: Asked) -> str:
    return f"{asked.kind.group}/{asked.kind.version}" if asked.kind.group else asked.kind.version
