"""Errors of the Kubernetes API client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from unwind.api.resources import Resource


CHECK_SERVER = "check the address of the API server, and the proxies between Unwind and it"


class Details(msgspec.Struct, frozen=True):
    """The object that a Status is about; `kind` is the resource's plural name."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""


class APIStatus(msgspec.Struct, frozen=True):
    """The API server's description of a failure."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


class ApiError(UnwindError):
    """The API server returned an error."""

    def __init__(self, status: APIStatus, *, request: str) -> None:
        self.status = status
        super().__init__(f"{request}: {status.message or 'no message'} ({status.code} {status.reason}".rstrip() + ")")

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def reason(self) -> str:
        return self.status.reason


class NotFoundError(ApiError):
    """The object does not exist (404, reason NotFound)."""

    def names(self, resource: Resource, name: str) -> bool:
        """Whether this very object was not found: not its namespace, and not one of another kind."""
        return names(self.status.details, resource, name)


class ForbiddenError(ApiError):
    """The client has no right to it (403)."""


class ConflictError(ApiError):
    """A precondition failed: the object is not as the request expected (409, reason Conflict)."""


class AlreadyExistsError(ApiError):
    """An object with that name already exists (409, reason AlreadyExists)."""


class ExpiredError(ApiError):
    """The requested resourceVersion is too old (410)."""


class UnreachableError(UnwindError):
    """No response was received, so the outcome of the request is unknown."""


class AnotherClusterError(UnreachableError):
    """Another cluster answers at the address: nothing that it returns counts."""

    def __init__(self, where: object, *, found: str, expected: str) -> None:
        super().__init__(
            f"another cluster answers at {where} ({found}, not {expected})",
            remedy="correct its address or credentials; if the cluster was rebuilt, register it again",
        )


class UnwatchedError(UnreachableError):
    """The API server answers, but one kind cannot be watched: what is known about objects of this kind may be old."""


class TooLargeAnswerError(UnreachableError):
    """The response exceeds the client's limit; a smaller part can be requested."""


class UnreadableError(UnreachableError):
    """The response is not one of an API server: nothing is known about any object."""

    def __init__(self, what: str, *, remedy: str = CHECK_SERVER) -> None:
        super().__init__(what, remedy=remedy)


_BY_REASON: dict[str, type[ApiError]] = {
    "NotFound": NotFoundError,
    "Conflict": ConflictError,
    "AlreadyExists": AlreadyExistsError,
    "Expired": ExpiredError,
    "Gone": ExpiredError,
}


def names(details: Details | None, resource: Resource, name: str) -> bool:
    """Whether a Status is about this object."""
    return details is not None and (details.name, details.kind, details.group) == (
        name,
        resource.plural,
        resource.group,
    )


def status_of(body: bytes) -> APIStatus | None:
    """The Status in a body; None if it is something else, which says nothing about any object."""
    try:
        status = msgspec.json.decode(body, type=APIStatus)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return status if status.kind == "Status" else None


def error_of(code: int | None, body: bytes, *, request: str) -> ApiError:
    """The error for a response; within a watch, the code is in the Status.

    A body that is not a Status (a proxy's page, the text for an unserved version) never becomes NotFoundError.
    """
    status = status_of(body)
    if status is None:
        text = " ".join(body[:200].decode(errors="replace").split())
        status = APIStatus(code=code or 0, message=text)
        return (ForbiddenError if status.code == 403 else ApiError)(status, request=request)
    status = msgspec.structs.replace(status, code=code or status.code)
    usual = ForbiddenError if status.code == 403 else ApiError
    return _BY_REASON.get(status.reason, usual)(status, request=request)
