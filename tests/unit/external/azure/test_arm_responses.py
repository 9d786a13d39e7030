"""Interpretation of Azure Resource Manager's responses."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from tests.unit.external.azure.scenes import CACHE, GROUP
from unwind.deleters.outcomes import Pace, Severity
from unwind.external.azure.arm_responses import (
    ArmFault,
    ArmReply,
    classify,
    displayed_text,
    error_in,
    not_there,
    retry_after,
    sighting,
)
from unwind.external.azure.resource_deletion import OperationState, state, where
from unwind.external.azure.resource_ids import ArmId
from unwind.kube.absence import Presence

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SIGNED = {"x-ms-request-id": "1"}


def error(status: int, code: str, **headers: str) -> ArmReply:
    return ArmReply(
        status, {**SIGNED, **headers}, msgspec.json.encode({"error": {"code": code, "message": "so it is"}})
    )


@pytest.mark.parametrize(
    ("status", "code", "pace"),
    [
        (429, "TooManyRequests", Pace.FAST),
        (429, "SomethingNew", Pace.FAST),
        (429, "", Pace.FAST),
        (503, "ServiceUnavailable", Pace.FAST),
        (409, "AnotherOperationInProgress", Pace.FAST),
        (409, "Conflict", Pace.FAST),
        (403, "AuthorizationFailed", Pace.FAST),
        (500, "", Pace.FAST),
        (500, "InternalServerError", Pace.SLOW),
        (409, "SomethingNew", Pace.SLOW),
        (404, "SomethingNew", Pace.SLOW),
        (0, "", Pace.SLOW),
        (0, "SomethingNew", Pace.SLOW),
        (409, "ScopeLocked", Pace.VERY_SLOW),
        (0, "ScopeLocked", Pace.VERY_SLOW),
        (400, "SomethingNew", Pace.VERY_SLOW),
        (400, "", Pace.VERY_SLOW),
        (404, "SubscriptionNotFound", Pace.VERY_SLOW),
        (405, "MethodNotAllowed", Pace.VERY_SLOW),
    ],
)
def test_how_soon_it_is_tried_again_goes_by_status_and_code(status: int, code: str, pace: Pace) -> None:
    assert classify(status, code).pace is pace


def test_an_error_of_azure_is_a_warning_with_its_code_and_its_patience() -> None:
    made = error(429, "TooManyRequests", **{"retry-after": "17"}).error("the deletion of it", NOW)
    assert (made.severity, made.reason, made.retry_after) == (Severity.WARNING, "TooManyRequests", 17.0)
    assert str(made) == "the deletion of it: Azure answered 429 TooManyRequests: so it is; will retry"


def test_a_lock_comes_with_what_to_do_about_it() -> None:
    assert "remove the lock" in str(error(409, "ScopeLocked").error("the deletion of it", NOW))


def test_a_code_that_is_no_word_does_not_get_into_a_condition() -> None:
    assert classify(500, "No good: reason!").reason == "Failed"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 0.0),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, 60.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 -0000"}, 60.0),
        ({"retry-after": "Wed, 31 Dec 2025 00:01:00 GMT"}, 0.0),
        ({"retry-after": "999999999"}, 3600.0),
        ({"retry-after": "soon"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "nan"}, 0.0),
    ],
)
def test_azure_is_given_the_patience_that_it_asks_for(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    ("reply", "absent"),
    [
        (error(404, "ResourceNotFound"), True),
        (error(404, "ResourceGroupNotFound"), True),
        (error(404, "ParentResourceNotFound"), True),
        (error(404, "NotFound"), True),
        (error(404, "RedisNotFound"), True),
        (error(404, "SubscriptionNotFound"), False),
        (error(404, "InvalidResourceType"), False),
        (error(404, "InvalidResourceNamespace"), False),
        (error(404, "TenantNotFound"), False),
        (error(404, ""), False),
        (error(403, "ResourceNotFound"), False),
        (error(410, "ResourceNotFound"), False),
        (ArmReply(404, SIGNED, b"<html>Not Found</html>"), False),
        (ArmReply(404, {}, b'{"error": {"code": "ResourceNotFound"}}'), False),
        (ArmReply(200, SIGNED, b"{}"), False),
    ],
)
def test_only_azures_own_word_about_the_resource_makes_it_absent(reply: ArmReply, *, absent: bool) -> None:
    assert not_there(reply, ArmId.parse(CACHE)) is absent
    assert sighting(reply, ArmId.parse(CACHE)).absent is absent


def test_the_plural_of_a_type_is_known_by_its_singular() -> None:
    vault = ArmId.parse(f"{GROUP}/providers/Microsoft.KeyVault/vaults/v")
    assert not_there(error(404, "VaultNotFound"), vault)
    assert not not_there(error(404, "VaultNotFound"), ArmId.parse(CACHE))
    assert not_there(error(404, "AliasNotFound"), ArmId.parse("/providers/Microsoft.Subscription/aliases/a"))


@pytest.mark.parametrize(
    ("reply", "presence"),
    [
        (ArmReply(200, SIGNED, b'{"id": "x"}'), Presence.PRESENT),
        (ArmReply(200, SIGNED, b"<html>"), Presence.UNKNOWN),
        (ArmReply(200, {}, b'{"welcome": "to the hotel"}'), Presence.UNKNOWN),
        (error(500, "InternalServerError"), Presence.UNKNOWN),
    ],
)
def test_only_azures_own_answer_shows_the_resource(reply: ArmReply, presence: Presence) -> None:
    assert sighting(reply, ArmId.parse(CACHE)).presence is presence


def test_of_an_envelope_the_first_detail_counts() -> None:
    body = {"error": {"code": "ResourceGroupDeletionBlocked", "details": [{"code": "ScopeLocked", "message": "it is"}]}}
    assert error_in(body) == ArmFault("ScopeLocked", "it is")


@pytest.mark.parametrize("body", [None, {}, {"error": "text"}, {"error": {"code": 7}}, {"code": None}])
def test_a_body_of_any_shape_can_be_read(body: dict[str, object] | None) -> None:
    assert error_in(body) == ArmFault()


@pytest.mark.parametrize(
    "text",
    [
        "token eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJ4In0.abcSECRET is bad",
        "header 'Bearer abcSECRET' is bad",
        "see https://user:SECRET@host/path",
        "see https://host/path?t=1&s=SECRET",
        "client_secret=abcSECRET is bad",
    ],
)
def test_what_looks_like_a_secret_is_not_shown(text: str) -> None:
    assert "SECRET" not in displayed_text(text)


def test_a_long_text_is_cut() -> None:
    assert len(displayed_text("word " * 500)) == 300


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (ArmReply(202, SIGNED, b""), OperationState.RUNNING),
        (ArmReply(200, SIGNED, b'{"status": "InProgress"}'), OperationState.RUNNING),
        (ArmReply(200, SIGNED, b'{"status": "SomethingNew"}'), OperationState.RUNNING),
        (ArmReply(200, SIGNED, b'{"status": "Succeeded"}'), OperationState.OVER),
        (ArmReply(200, SIGNED, b"{}"), OperationState.OVER),
        (ArmReply(204, SIGNED, b""), OperationState.OVER),
        (ArmReply(200, SIGNED, b'{"status": "Failed"}'), OperationState.BROKEN),
        (ArmReply(200, SIGNED, b'{"status": "Canceled"}'), OperationState.BROKEN),
        (error(404, "OperationNotFound"), OperationState.LOST),
        (error(403, "AuthorizationFailed"), OperationState.LOST),
        (error(410, "Gone"), OperationState.LOST),
        (error(400, "BadRequest"), OperationState.LOST),
        (error(401, "ExpiredAuthenticationToken"), OperationState.UNKNOWN),
        (error(429, "TooManyRequests"), OperationState.UNKNOWN),
        (error(500, "InternalServerError"), OperationState.UNKNOWN),
        (ArmReply(302, SIGNED, b""), OperationState.UNKNOWN),
    ],
)
def test_how_an_operation_stands_is_read_from_one_answer(reply: ArmReply, expected: OperationState) -> None:
    assert state(reply) is expected


def test_of_two_places_to_ask_the_one_with_a_status_is_taken() -> None:
    both = {"location": "https://a/1", "azure-asyncoperation": "https://a/2"}
    assert where(ArmReply(202, both, b"")) == "https://a/2"
    assert where(ArmReply(202, {"location": "https://a/1"}, b"")) == "https://a/1"
    assert where(ArmReply(202, {}, b"")) == ""
