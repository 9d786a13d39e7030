"""Signatures of notifications."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest

from unwind.errors import UnwindError
from unwind.notifications.signature import parse_key, signed_headers

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_is_that_of_the_example_of_standard_webhooks() -> None:
    headers = signed_headers(
        parse_key(KEY.encode()),
        id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        now=datetime.fromtimestamp(1614265330, UTC),
        body=b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_key_is_bytes_or_base64_and_long_enough() -> None:
    raw = bytes(range(32))
    assert parse_key(raw) == raw
    assert parse_key(b"whsec_" + base64.b64encode(raw) + b"\n") == raw
    for value in (b"", b"short", b"whsec_" + base64.b64encode(raw[:23]), b"whsec_!!!"):
        with pytest.raises(UnwindError, match="signing key") as found:
            parse_key(value)
        assert "short" not in str(found.value)
