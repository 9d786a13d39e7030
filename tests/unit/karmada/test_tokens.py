"""Claims and renewal of service account tokens."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from unwind.karmada import tokens

BEGAN = datetime(2026, 5, 1, tzinfo=UTC)


def token(**claims: Any) -> str:
    payload = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
    return f"head.{payload}.signature"


def test_a_token_says_whose_it_is_and_how_long_it_lasts() -> None:
    bound = {"namespace": "karmada-cluster", "serviceaccount": {"name": "karmada-edge", "uid": "u"}}
    it = tokens.read_claims(
        token(iat=BEGAN.timestamp(), exp=(BEGAN + timedelta(hours=3)).timestamp(), **{"kubernetes.io": bound})
    )
    assert it == tokens.TokenClaims(
        namespace="karmada-cluster", account="karmada-edge", issued=BEGAN, expires=BEGAN + timedelta(hours=3)
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "opaque",
        "a.b",
        "a.!.c",
        "head.bm8ganNvbg.tail",
        token(iat=1.0),
        token(exp=1.0),
        token(iat="soon", exp="late"),
        token(iat=1.0, exp=1e30),
    ],
)
def test_a_token_that_does_not_end_or_cannot_be_read_is_never_due(text: str) -> None:
    assert tokens.read_claims(text) is None


@pytest.mark.parametrize(("minutes", "due"), [(-5, False), (0, False), (59, False), (60, True), (200, True)])
def test_it_is_time_for_another_when_a_third_is_over(minutes: int, due: bool) -> None:
    it = tokens.TokenClaims(issued=BEGAN, expires=BEGAN + timedelta(hours=3))
    assert it.due(BEGAN + timedelta(minutes=minutes)) is due
