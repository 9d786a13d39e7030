"""What an answer of Azure Resource Manager means (pure)."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import Reason
from unwind.deleting.outcomes import Pace, TransientError
from unwind.kube.absence import Presence, Sighting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from unwind.azure.identity import ArmId

# A server that asks for more patience than this means something else.
_LONGEST = 3600.0
_SHOWN = 300

# It may well be over in a moment: another operation, a right or a registration that has still to spread.
_FAST = frozenset(
    [
        "AnotherOperationInProgress",
        "AuthorizationFailed",
        "AllocationFailed",
        "Conflict",
        "FailedIdentityOperation",
        "InvalidResourceReference",
        "InvalidSubscriptionRegistrationState",
        "LinkedAuthorizationFailed",
        "MissingRegistrationForLocation",
        "MissingSubscriptionRegistration",
        "NoRegisteredProviderFound",
        "NotFound",
        "OperationNotAllowed",
        "ParentResourceNotFound",
        "PrincipalNotFound",
        "RequestDisallowedByPolicy",
        "ResourceGroupNotFound",
        "ResourceNotFound",
        "ResourceQuotaExceeded",
        "ServerTimeout",
        "SubscriptionNotRegistered",
        "TooManyRequests",
    ]
)
# Most likely somebody has to act; and yet Azure is known to answer these now and then without a lasting cause.
_VERY_SLOW = frozenset(
    [
        "BadRequest",
        "BadRequestFormat",
        "InvalidParameter",
        "InvalidParameterValue",
        "InvalidRequestContent",
        "InvalidResourceType",
        "InvalidResourceGroupLocation",
        "LocationRequired",
        "MethodNotAllowed",
        "MissingRequiredParameter",
        "PropertyChangeNotAllowed",
        "ReservedResourceName",
        "RegionIsOfferRestricted",
        "ScopeLocked",
        "SkuNotAvailable",
        "SubscriptionNotFound",
    ]
)
# Envelopes: what really happened stands in the first of their details.
_ENVELOPES = frozenset(
    ["DeploymentFailed", "MultipleErrorsOccurred", "ResourceGroupDeletionBlocked", "ResourceDeploymentFailure"]
)
# Throttled, or out of order for a moment, whatever the code.
_PASSING = frozenset([408, 429, 503])
_REMEDIES = {
    "ScopeLocked": "remove the lock from the resource, or from what it is in",
    "AuthorizationFailed": "give Unwind's identity the right to read and delete it",
    "MethodNotAllowed": "if it cannot be deleted at Azure at all, set the delete policy to detach-on-delete",
    "SubscriptionNotFound": "see whether Unwind's identity may see the subscription",
}
# The words with which Azure says that a resource is not there, whatever its type.
_ABSENT = frozenset(["notfound", "resourcenotfound", "resourcegroupnotfound", "parentresourcenotfound"])
# Only Azure Resource Manager sets these, and on every answer; a proxy's page has none.
_SIGNS = ("x-ms-request-id", "x-ms-correlation-request-id", "x-ms-routing-request-id")
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_]{0,62}[A-Za-z0-9])?")
_SECRET = re.compile(
    r"eyJ[\w-]{8,}[\w.-]*|(?i:bearer)\s+[^\s\"',;]+|(?<=://)[^\s/@]+@|(?<=[?&])[^\s\"'<>]+|(?i:secret|password|sig)\W{1,3}\S+"
)


class Fault(msgspec.Struct, frozen=True):
    """What Azure says went wrong."""

    code: str = ""
    message: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """How to go on after something that Azure did not do: later, and never not at all."""

    pace: Pace
    reason: str
    retry_after: float = 0.0
    remedy: str = ""

    def error(self, what: str) -> TransientError:
        return TransientError(
            what, reason=self.reason, pace=self.pace, retry_after=self.retry_after, remedy=self.remedy
        )


class Reply(msgspec.Struct, frozen=True):
    """One answer: its headers by their names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def genuine(self) -> bool:
        """Whether it was Azure Resource Manager that answered, and not something on the way."""
        return any(sign in self.headers for sign in _SIGNS)

    @property
    def content(self) -> dict[str, Any] | None:
        """The JSON object that the body is; None if it is something else."""
        try:
            found = msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None
        return found if isinstance(found, dict) else None

    @property
    def fault(self) -> Fault:
        return fault(self.content)

    def retry_after(self, now: datetime) -> float:
        return retry_after(self.headers, now)

    def error(self, what: str, now: datetime) -> TransientError:
        """The error that it stands for. `what` says what was tried, without any secret."""
        told = self.fault
        refusal = classify(self.status, told.code, self.retry_after(now))
        said = ": ".join(part for part in (f"{self.status} {told.code}".strip(), told.message) if part)
        return refusal.error(f"{what}: Azure answered {said}")


def fault(content: Mapping[str, Any] | None) -> Fault:
    """What a body says went wrong: of a refused request, or of an operation that failed."""
    found: Any = (content or {}).get("error", content)
    if not isinstance(found, dict):
        return Fault()
    details = found.get("details")
    if found.get("code") in _ENVELOPES and isinstance(details, list) and details and isinstance(details[0], dict):
        found = details[0]
    code, message = found.get("code"), found.get("message")
    return Fault(code if isinstance(code, str) else "", shown(message) if isinstance(message, str) else "")


def shown(text: str) -> str:
    """A text of somebody else's as people may see it: short, on one line, and without what looks like a secret."""
    text = _SECRET.sub("…", " ".join(text.split()))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def classify(status: int, code: str, retry_after: float = 0.0) -> Refusal:
    """How soon to try again. `status` is 0 where there is none: for an operation that failed."""
    if code in _VERY_SLOW or (status == 400 and code not in _FAST):
        pace = Pace.VERY_SLOW
    elif code in _FAST or status in _PASSING or (status and not code):
        pace = Pace.FAST
    else:
        pace = Pace.SLOW
    return Refusal(
        pace=pace,
        reason=code if _WORD.fullmatch(code) else Reason.FAILED,
        retry_after=retry_after,
        remedy=_REMEDIES.get(code, ""),
    )


def retry_after(headers: Mapping[str, str], now: datetime) -> float:
    """How many seconds Azure asks to wait; 0 if it does not."""
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", said):
            return min(float(said) * unit, _LONGEST)
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=now.tzinfo)
    return min(max((until - now).total_seconds(), 0.0), _LONGEST)


def not_there(reply: Reply, id_: ArmId) -> bool:
    """Whether Azure says, in so many words, that this resource is not there.

    A 404 of something on the way is no such word, nor is one about the subscription, the version or the type.
    """
    if reply.status != 404 or not reply.genuine:
        return False
    last = id_.type.rpartition("/")[2].lower()
    own = {f"{one}notfound" for one in (last, last.removesuffix("s"), last.removesuffix("es"))}
    return reply.fault.code.lower() in _ABSENT | own


def sighting(reply: Reply, id_: ArmId) -> Sighting:
    """Judge the answer to a GET of the resource."""
    if reply.status == 200 and reply.content is not None and reply.genuine:
        return Sighting(Presence.PRESENT, "Azure showed it")
    if not_there(reply, id_):
        return Sighting(Presence.ABSENT, f"Azure says that it is not there ({reply.fault.code})")
    told = reply.fault
    return Sighting(Presence.UNKNOWN, f"Azure answered {reply.status} {told.code} {told.message}".strip())
