"""Interprets responses of Azure Resource Manager (pure)."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import Reason
from unwind.deleters.outcomes import Pace, TransientError
from unwind.kube.absence import Presence, Sighting

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from unwind.external.azure.resource_ids import ArmId

# A longer Retry-After than this cannot be meant.
_LONGEST = 3600.0
_SHOWN = 300

# Usually temporary: another operation, or a permission or registration that has still to propagate.
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
# Usually a user must act; yet Azure sometimes returns these without a lasting cause.
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
# Wrapper codes: the first of their details has the actual error.
_ENVELOPES = frozenset(
    ["DeploymentFailed", "MultipleErrorsOccurred", "ResourceGroupDeletionBlocked", "ResourceDeploymentFailure"]
)
# Throttled, or temporarily unavailable, whatever the code.
_PASSING = frozenset([408, 429, 503])
_REMEDIES = {
    "ScopeLocked": "remove the lock from the resource or its parent",
    "AuthorizationFailed": "allow Unwind's identity to read and delete it",
    "MethodNotAllowed": "if Azure cannot delete it at all, set the delete policy to detach-on-delete",
    "SubscriptionNotFound": "check that Unwind's identity can see the subscription",
}
# The codes with which Azure reports that a resource does not exist, for any type.
_ABSENT = frozenset(["notfound", "resourcenotfound", "resourcegroupnotfound", "parentresourcenotfound"])
# Only Azure Resource Manager sets these headers, on every response; a proxy's page has none.
_SIGNS = ("x-ms-request-id", "x-ms-correlation-request-id", "x-ms-routing-request-id")
_WORD = re.compile(r"[A-Za-z]([A-Za-z0-9_]{0,62}[A-Za-z0-9])?")
_SECRET = re.compile(
    r"eyJ[\w-]{8,}[\w.-]*|(?i:bearer)\s+[^\s\"',;]+|(?<=://)[^\s/@]+@|(?<=[?&])[^\s\"'<>]+|(?i:secret|password|sig)\W{1,3}\S+"
)


class ArmFault(msgspec.Struct, frozen=True):
    """An error that Azure reports."""

    code: str = ""
    message: str = ""


class ArmRefusal(msgspec.Struct, frozen=True):
    """When to retry a request that Azure refused: later, but never not at all."""

    pace: Pace
    reason: str
    retry_after: float = 0.0
    remedy: str = ""

    def error(self, what: str) -> TransientError:
        return TransientError(
            what, reason=self.reason, pace=self.pace, retry_after=self.retry_after, remedy=self.remedy
        )


class ArmReply(msgspec.Struct, frozen=True):
    """One response, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def genuine(self) -> bool:
        """Whether Azure Resource Manager answered, and not a proxy."""
        return any(sign in self.headers for sign in _SIGNS)

    @property
    def content(self) -> dict[str, Any] | None:
        """The JSON object in the body; None if it is something else."""
        try:
            found = msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None
        return found if isinstance(found, dict) else None

    @property
    def fault(self) -> ArmFault:
        return error_in(self.content)

    def retry_after(self, now: datetime) -> float:
        return retry_after(self.headers, now)

    def error(self, what: str, now: datetime) -> TransientError:
        """The error for this response. `what`: the attempted action, without secrets."""
        told = self.fault
        refusal = classify(self.status, told.code, self.retry_after(now))
        said = ": ".join(part for part in (f"{self.status} {told.code}".strip(), told.message) if part)
        return refusal.error(f"{what}: Azure answered {said}")


def error_in(content: Mapping[str, Any] | None) -> ArmFault:
    """The error in a body: of a refused request, or of a failed operation."""
    found: Any = (content or {}).get("error", content)
    if not isinstance(found, dict):
        return ArmFault()
    details = found.get("details")
    if found.get("code") in _ENVELOPES and isinstance(details, list) and details and isinstance(details[0], dict):
        found = details[0]
    code, message = found.get("code"), found.get("message")
    return ArmFault(code if isinstance(code, str) else "", displayed_text(message) if isinstance(message, str) else "")


def displayed_text(text: str) -> str:
    """Text from another system for display: short, on one line, and with apparent secrets removed."""
    text = _SECRET.sub("…", " ".join(text.split()))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def classify(status: int, code: str, retry_after: float = 0.0) -> ArmRefusal:
    """When to retry. `status` is 0 if there is none: for a failed operation."""
    if code in _VERY_SLOW or (status == 400 and code not in _FAST):
        pace = Pace.VERY_SLOW
    elif code in _FAST or status in _PASSING or (status and not code):
        pace = Pace.FAST
    else:
        pace = Pace.SLOW
    return ArmRefusal(
        pace=pace,
        reason=code if _WORD.fullmatch(code) else Reason.FAILED,
        retry_after=retry_after,
        remedy=_REMEDIES.get(code, ""),
    )


def retry_after(headers: Mapping[str, str], now: datetime) -> float:
    """Seconds that Azure asks to wait; 0 if it does not."""
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


def not_there(reply: ArmReply, id_: ArmId) -> bool:
    """Whether Azure reports that this very resource does not exist.

    A 404 from a proxy does not count, nor one about the subscription, the API version or the type.
    """
    if reply.status != 404 or not reply.genuine:
        return False
    last = id_.type.rpartition("/")[2].lower()
    own = {f"{item}notfound" for item in (last, last.removesuffix("s"), last.removesuffix("es"))}
    return reply.fault.code.lower() in _ABSENT | own


def sighting(reply: ArmReply, id_: ArmId) -> Sighting:
    """Interpret the response to a GET of the resource."""
    if reply.status == 200 and reply.content is not None and reply.genuine:
        return Sighting(Presence.PRESENT, "Azure returned it")
    if not_there(reply, id_):
        return Sighting(Presence.ABSENT, f"Azure reports that it does not exist ({reply.fault.code})")
    told = reply.fault
    return Sighting(Presence.UNKNOWN, f"Azure answered {reply.status} {told.code} {told.message}".strip())
