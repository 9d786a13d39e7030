"""What an API server answers when it does not do what it was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from unwind.api.resources import Resource


class Details(msgspec.Struct, frozen=True):
    """The object that a Status is about; `kind` is the resource's plural name."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""


class Status(msgspec.Struct, frozen=True):
    """The API server's own account of a failure."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


class ApiError(UnwindError):
    """The API server answered with something other than success."""

    def __init__(self, status: Status, *, request: str) -> None:
        self.status = status
        super().__init__(f"{request}: {status.message or 'no message'} ({status.code} {status.reason}".rstrip() + ")")

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def reason(self) -> str:
        return self.status.reason


class NotFoundError(ApiError):
    """There is no such object, in the words of the API server (404, reason NotFound)."""

    def names(self, resource: Resource, name: str) -> bool:
        """Whether it is this object that was not found: not its namespace, and not one of another kind."""
        return names(self.status.details, resource, name)


class ConflictError(ApiError):
    """The object is not as the request supposed (409, reason Conflict)."""


class AlreadyExistsError(ApiError):
    """An object of that name is there already (409, reason AlreadyExists)."""


class ExpiredError(ApiError):
    """The version asked for is too old to go on from (410)."""


class UnreachableError(UnwindError):
    """No answer came: nothing is known about what the server did."""


class AnotherClusterError(UnreachableError):
    """Another cluster answers at the address: nothing that it says counts."""


class TooLargeAnswerError(UnreachableError):
    """The answer is larger than a client takes; part of it may be asked for."""


class UnreadableError(UnreachableError):
    """What came is no answer of an API server: nothing is known about any object."""


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


def status_of(body: bytes) -> Status | None:
    """The Status that a body is; None if it is something else, which then says nothing about any object."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return status if status.kind == "Status" else None


def error_of(code: int | None, body: bytes, *, request: str) -> ApiError:
    """Make the error that an answer stands for; within a watch there is no code but the one in the Status.

    A body that is not a Status (a proxy's page, the text for an unserved version) never becomes NotFoundError.
    """
    status = status_of(body)
    if status is None:
        text = " ".join(body[:200].decode(errors="replace").split())
        return ApiError(Status(code=code or 0, message=text), request=request)
    status = msgspec.structs.replace(status, code=code or status.code)
    return _BY_REASON.get(status.reason, ApiError)(status, request=request)
