"""The admission webhook of deletion protection: its answers to DELETE requests, and its reports.

A denial may come from the object or from caches. An allowed request is confirmed by a fresh read if anything but the
object decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import Counter

from unwind import logs
from unwind.api import admission
from unwind.api.names import EventReason
from unwind.kube.events import Regarding
from unwind.kube.metrics import OTHER
from unwind.protection import object_fields, protected_kinds, rules
from unwind.protection.protected_kinds import KINDS, Rest
from unwind.protection.rules import Contents, Denied, Why
from unwind.protection.webhook_configuration import LABELS_PATH, PROTECTION_PATH
from unwind.server.routes import Response, Route, refusal

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from prometheus_client import CollectorRegistry

    from unwind.api.admission import Asked
    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.kube.events import Recorder
    from unwind.protection.contents_reader import ProtectionLookup
    from unwind.protection.object_fields import LabelledObject
    from unwind.protection.protected_kinds import ProtectedKind
    from unwind.server.routes import Request

# These users create objects from templates, such as the claims of a StatefulSet, which have no owner.
_CONTROLLER_MANAGER = "system:kube-controller-manager"
_SYSTEM_ACCOUNTS = "system:serviceaccounts:kube-system"
# The share of the remaining time that may be used: the response has to arrive as well.
_SHARE = 0.8
log = logs.get(__name__)

_KNOWN = frozenset(KINDS)


class NamespaceCounts(Protocol):
    """The cached number of objects that block a namespace."""

    def pods(self, namespace: str) -> int: ...

    def claims(self, namespace: str) -> int: ...


class ProtectedContents(Protocol):
    """The cached protected objects."""

    def inside(self, namespace: str) -> tuple[ObjectRef, ...]: ...


class ProtectionWebhook:
    """Answers admission reviews."""

    def __init__(
        self, *, counts: NamespaceCounts, guards: ProtectedContents, lookup: ProtectionLookup, reporter: DenialReporter
    ) -> None:
        self._counts = counts
        self._guards = guards
        self._lookup = lookup
        self._reporter = reporter

    def routes(self) -> tuple[Route, ...]:
        """The routes of the webhook. They respond also before the caches are synced: then everything is read fresh, and
        labelled objects need not wait for a manager that is starting."""
        return (
            Route(path=PROTECTION_PATH, name="deletions", handler=self.deletion),
            Route(path=LABELS_PATH, name="labels", handler=self.labelling),
        )

    def deletion(self, body: bytes, request: Request) -> Response | Coroutine[Any, Any, Response]:
        """Whether an object may be deleted."""
        try:
            asked = admission.admission_request(body)
        except ValueError as error:
            return _unread(body, error)
        if asked.operation != "DELETE" or asked.sub_resource or asked.old_object == object_fields.NULL:
            return Response(admission.allowed(asked))
        try:
            found = object_fields.read_subject(
                asked.old_object, _kind(asked), version=asked.kind.version, by_controller=_is_controller(asked)
            )
        except ValueError as error:
            return Response(admission.unreadable(asked, f"cannot decode the object: {error}; correct this field"))
        verdict = rules.by_itself(found.subject)
        if verdict is False:
            verdict = rules.with_contents(found.subject, self._known(found))
            if verdict is True:
                return self._look(asked, found, request)
        return self._answer(asked, found, verdict, request)

    def labelling(self, body: bytes, request: Request) -> Response:
        """Whether a label value may be written: no new unknown value."""
        try:
            asked = admission.admission_request(body)
        except ValueError as error:
            return _unread(body, error)
        if asked.operation not in ("CREATE", "UPDATE") or asked.sub_resource or asked.object == object_fields.NULL:
            return Response(admission.allowed(asked))
        kind, version = _kind(asked), asked.kind.version
        try:
            new = object_fields.read_subject(asked.object, kind, version=version)
            old = (
                None
                if asked.old_object == object_fields.NULL
                else object_fields.read_subject(asked.old_object, kind, version=version)
            )
        except ValueError as error:
            return Response(admission.unreadable(asked, f"cannot decode the object: {error}; correct this field"))
        refused = rules.refused_label(
            kind,
            new.subject.label,
            before=old.subject.label if old else None,
            by_controller=_by_controller(asked, new),
        )
        return self._answer(asked, new, Denied(Why.UNKNOWN_VALUE, refused) if refused else True, request)

    def _known(self, found: LabelledObject) -> Contents:
        """The cached contents of a namespace. Nothing for a CRD: not every custom resource is watched."""
        if found.subject.kind.rest is not Rest.CONTENTS:
            return Contents()
        name = found.ref.name
        return Contents(
            pods=self._counts.pods(name), claims=self._counts.claims(name), protected=self._guards.inside(name)
        )

    async def _look(self, asked: Asked, found: LabelledObject, request: Request) -> Response:
        subject, within = found.subject, request.remaining * _SHARE
        counting = subject.label is not None
        if subject.kind.rest is Rest.CONTENTS:
            contents = await self._lookup.in_namespace(found.ref.name, counting=counting, within=within)
        else:
            try:
                defined = object_fields.definition(asked.old_object)
            except ValueError as error:
                return Response(admission.unreadable(asked, f"cannot decode the CRD: {error}; correct this field"))
            contents = await self._lookup.of_definition(defined, counting=counting, within=within)
        return self._answer(asked, found, rules.with_contents(subject, contents), request, warning=contents.skipped)

    def _answer(
        self, asked: Asked, found: LabelledObject, verdict: Denied | bool, request: Request, *, warning: str = ""
    ) -> Response:
        if isinstance(verdict, Denied):
            self._reporter.denied(asked, found, verdict, request)
            return Response(admission.denied(asked, verdict.message + _way_out(asked, found, verdict)))
        return Response(admission.allowed(asked, warning=warning))


def _by_controller(asked: Asked, new: LabelledObject) -> bool:
    """Whether the labels come from a template: then the sender of the request did not choose them."""
    return new.controlled or _is_controller(asked)


def _is_controller(asked: Asked) -> bool:
    """Whether one of Kubernetes' own controllers sent the request."""
    user = asked.user_info
    return user.username == _CONTROLLER_MANAGER or _SYSTEM_ACCOUNTS in user.groups


def _way_out(asked: Asked, found: LabelledObject, denied: Denied) -> str:
    """The hint at the end of a denial; empty if the object's own label is not the cause."""
    kind, ref = found.subject.kind, found.ref
    unlisted = denied.why is Why.NOT_KNOWN and kind.rest is not None
    if asked.operation != "DELETE" or denied.why is Why.HOLDS_PROTECTED or unlisted:
        return ""
    plural = kind.plural or kind.kind.lower()
    return rules.way_out(f"{plural}.{kind.group}" if kind.group else plural, ref.namespace, ref.name)


def _kind(asked: Asked) -> ProtectedKind:
    """The protection kind of the request."""
    it = asked.kind
    return protected_kinds.of_any(it.group, it.kind, plural=asked.resource.resource, version=it.version)


def _unread(body: bytes, error: ValueError) -> Response:
    """A denial for an unreadable review, if its uid is readable."""
    if asked := admission.barely(body):
        return Response(admission.unreadable(asked, str(error)))
    return refusal(400, str(error))


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
