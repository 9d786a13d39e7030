"""What the API server is answered when something is to be deleted, or labelled.

A no is known at once, from the object or from caches. What would be a yes by these is looked up first, if anything but
the object has a say in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from unwind.api import admission
from unwind.controllers.protecting import subjects
from unwind.protecting import kinds, rules
from unwind.protecting.kinds import Rest
from unwind.protecting.rules import Contents, Denied, Why
from unwind.protecting.webhooks import LABELS_PATH, PROTECTION_PATH
from unwind.routes import Response, Route, refusal

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from unwind.api.admission import Asked
    from unwind.api.meta import ObjectRef
    from unwind.controllers.protecting.looking import Looking
    from unwind.controllers.protecting.subjects import Found
    from unwind.controllers.protecting.telling import Telling
    from unwind.protecting.kinds import Kind
    from unwind.routes import Request

# Who makes what templates say, such as the claims of a StatefulSet, which nobody owns.
_CONTROLLER_MANAGER = "system:kube-controller-manager"
_SYSTEM_ACCOUNTS = "system:serviceaccounts:kube-system"
# Of the time that is left: the answer has to get there, too.
_SHARE = 0.8


class Counts(Protocol):
    """How much keeps a namespace, as far as is known."""

    def pods(self, namespace: str) -> int: ...

    def claims(self, namespace: str) -> int: ...


class Guards(Protocol):
    """What is protected, as far as is known."""

    def inside(self, namespace: str) -> tuple[ObjectRef, ...]: ...


class Answering:
    """Answers reviews."""

    def __init__(self, *, counts: Counts, guards: Guards, looking: Looking, telling: Telling) -> None:
        self._counts = counts
        self._guards = guards
        self._looking = looking
        self._telling = telling

    def routes(self) -> tuple[Route, ...]:
        """Where the API server asks. They answer at once, also while caches are not whole: then everything is looked
        up, and nothing that is labelled has to wait for a manager that has just started."""
        return (
            Route(path=PROTECTION_PATH, name="deletions", handler=self.deletion),
            Route(path=LABELS_PATH, name="labels", handler=self.labelling),
        )

    def deletion(self, body: bytes, request: Request) -> Response | Coroutine[Any, Any, Response]:
        """Whether something may be deleted."""
        try:
            asked = admission.asked(body)
        except ValueError as error:
            return _unread(body, error)
        if asked.operation != "DELETE" or asked.sub_resource or asked.old_object == subjects.NULL:
            return Response(admission.allowed(asked))
        try:
            found = subjects.read(
                asked.old_object, _kind(asked), version=asked.kind.version, by_controller=_is_controller(asked)
            )
        except ValueError as error:
            return Response(admission.unreadable(asked, f"The object cannot be read: {error}."))
        verdict = rules.by_itself(found.subject)
        if verdict is False:
            verdict = rules.with_contents(found.subject, self._known(found))
            if verdict is True:
                return self._look(asked, found, request)
        return self._answer(asked, found, verdict, request)

    def labelling(self, body: bytes, request: Request) -> Response:
        """Whether something may be written: not with a new value of the label that nobody understands."""
        try:
            asked = admission.asked(body)
        except ValueError as error:
            return _unread(body, error)
        if asked.operation not in ("CREATE", "UPDATE") or asked.sub_resource or asked.object == subjects.NULL:
            return Response(admission.allowed(asked))
        kind, version = _kind(asked), asked.kind.version
        try:
            new = subjects.read(asked.object, kind, version=version)
            old = None if asked.old_object == subjects.NULL else subjects.read(asked.old_object, kind, version=version)
        except ValueError as error:
            return Response(admission.unreadable(asked, f"The object cannot be read: {error}."))
        refused = rules.refused_label(
            kind,
            new.subject.label,
            before=old.subject.label if old else None,
            by_controller=_by_controller(asked, new),
        )
        return self._answer(asked, new, Denied(Why.UNKNOWN_VALUE, refused) if refused else True, request)

    def _known(self, found: Found) -> Contents:
        """What the caches know of a namespace. Of a CRD they know nothing: not every custom resource is watched."""
        if found.subject.kind.rest is not Rest.CONTENTS:
            return Contents()
        name = found.ref.name
        return Contents(
            pods=self._counts.pods(name), claims=self._counts.claims(name), protected=self._guards.inside(name)
        )

    async def _look(self, asked: Asked, found: Found, request: Request) -> Response:
        subject, within = found.subject, request.remaining * _SHARE
        counting = subject.label is not None
        if subject.kind.rest is Rest.CONTENTS:
            contents = await self._looking.in_namespace(found.ref.name, counting=counting, within=within)
        else:
            try:
                defined = subjects.definition(asked.old_object)
            except ValueError as error:
                return Response(admission.unreadable(asked, f"The CRD cannot be read: {error}."))
            contents = await self._looking.of_definition(defined, counting=counting, within=within)
        return self._answer(asked, found, rules.with_contents(subject, contents), request, warning=contents.skipped)

    def _answer(
        self, asked: Asked, found: Found, verdict: Denied | bool, request: Request, *, warning: str = ""
    ) -> Response:
        if isinstance(verdict, Denied):
            self._telling.denied(asked, found, verdict, request)
            return Response(admission.denied(asked, verdict.message + _way_out(asked, found, verdict)))
        return Response(admission.allowed(asked, warning=warning))


def _by_controller(asked: Asked, new: Found) -> bool:
    """Whether what is written has the labels of a template: then nobody who reads the refusal has chosen them."""
    return new.controlled or _is_controller(asked)


def _is_controller(asked: Asked) -> bool:
    """Whether one of Kubernetes' own controllers sent the request."""
    user = asked.user_info
    return user.username == _CONTROLLER_MANAGER or _SYSTEM_ACCOUNTS in user.groups


def _way_out(asked: Asked, found: Found, denied: Denied) -> str:
    """What else is told to whoever wants to delete something: not where it is not its own label that holds it."""
    kind, ref = found.subject.kind, found.ref
    unlisted = denied.why is Why.NOT_KNOWN and kind.rest is not None
    if asked.operation != "DELETE" or denied.why is Why.HOLDS_PROTECTED or unlisted:
        return ""
    plural = kind.plural or kind.kind.lower()
    return rules.way_out(f"{plural}.{kind.group}" if kind.group else plural, ref.namespace, ref.name)


def _kind(asked: Asked) -> Kind:
    """What the rules know of it."""
    it = asked.kind
    return kinds.of_any(it.group, it.kind, plural=asked.resource.resource, version=it.version)


def _unread(body: bytes, error: ValueError) -> Response:
    """What cannot be read does not pass, as long as it can be said of which question that is the answer."""
    if asked := admission.barely(body):
        return Response(admission.unreadable(asked, str(error)))
    return refusal(400, str(error))
