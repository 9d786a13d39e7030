"""What is told of a denial: it is counted, written down for whoever audits, and an Event on the object says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter

from unwind import logs
from unwind.api.names import EventReason
from unwind.kube.events import Regarding
from unwind.kube.metrics import OTHER
from unwind.protecting.kinds import KINDS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from unwind.api.admission import Asked
    from unwind.api.resources import Resource
    from unwind.controllers.protecting.subjects import Found
    from unwind.kube.client import Object
    from unwind.kube.events import Recorder
    from unwind.protecting.kinds import Kind
    from unwind.protecting.rules import Denied
    from unwind.routes import Request

log = logs.get(__name__)

_KNOWN = frozenset(KINDS)


class Restored:
    """Reports policies that the manager restored: they are counted, and an Event on the policy says so."""

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


class Telling:
    """Tells of denials; of a dry run, nothing."""

    def __init__(self, *, registry: CollectorRegistry, recorder: Recorder) -> None:
        self._recorder = recorder
        # Not by user: there is no end of them.
        self._denials = Counter(
            "unwind_protection_denials", "What protection has refused.", ["kind", "reason"], registry=registry
        )

    def denied(self, asked: Asked, found: Found, denied: Denied, request: Request) -> None:
        """Somebody was refused something."""
        if asked.dry_run:
            return
        self._denials.labels(_name(found.subject.kind), denied.why.value).inc()
        ref, user = found.ref, asked.user_info
        where = f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name
        # A review does not say from which address somebody came, nor with which program: of a service account, it
        # says the Pod and the node.
        log.warning(
            "refused by protection",
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
            return  # an object that may not be written need not be there
        self._recorder.report(
            Regarding(_api_version(asked), ref.kind, ref.name, ref.uid, ref.namespace),
            EventReason.REFUSED,
            denied.message,
            action="Delete",
            type="Warning",
        )


def _name(kind: Kind) -> str:
    if kind not in _KNOWN:
        return OTHER
    return f"{kind.plural}.{kind.group}" if kind.group else kind.plural


def _api_version(asked: Asked) -> str:
    return f"{asked.kind.group}/{asked.kind.version}" if asked.kind.group else asked.kind.version
