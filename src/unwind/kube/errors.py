"""What an API server answers when it does not do what it was asked."""

from __future__ import annotations

import msgspec

from unwind.errors import UnwindError


class Status(msgspec.Struct, frozen=True):
    """The API server's own account of a failure."""

    code: int
    reason: str = ""
    message: str = ""


class ApiError(UnwindError):
    """The API server answered with something other than success."""

    def __init__(self, status: Status, *, request: str) -> None:
        self.status = status
        super().__init__(f"{request}: {status.message or 'no message'} ({status.code} {status.reason})".rstrip())

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def reason(self) -> str:
        return self.status.reason


class NotFoundError(ApiError):
    """There is no such object, in the words of the API server (404 with reason NotFound)."""


class ConflictError(ApiError):
    """The object is not as the request supposed (409, reason Conflict)."""


class AlreadyExistsError(ApiError):
    """An object of that name is there already (409, reason AlreadyExists)."""


class UnreachableError(UnwindError):
    """No answer came: nothing is known about what the server did."""


_BY_REASON: dict[str, type[ApiError]] = {
    "NotFound": NotFoundError,
    "Conflict": ConflictError,
    "AlreadyExists": AlreadyExistsError,
}


def error_of(code: int, body: bytes, *, request: str) -> ApiError:
    """Make the error that an answer stands for.

    A body that is not a Status (a proxy's page, the text for an unserved version) never becomes NotFoundError: it
    says nothing about the object.
    """
    try:
        status = msgspec.json.decode(body, type=_WireStatus)
    except (msgspec.DecodeError, msgspec.ValidationError):
        status = _WireStatus()
    if status.kind != "Status":
        text = body[:200].decode(errors="replace").strip()
        return ApiError(Status(code=code, message=text), request=request)
    return _BY_REASON.get(status.reason, ApiError)(
        Status(code=code, reason=status.reason, message=status.message), request=request
    )


class _WireStatus(msgspec.Struct):
    kind: str = ""
    reason: str = ""
    message: str = ""
