"""Signatures of notifications, as Standard Webhooks (standardwebhooks.com) describes them (pure).

HMAC-SHA256 over the id, the time and the body. A receiver compares the signature, and refuses an old time: what was
recorded on the way cannot be sent again later.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from datetime import datetime

PREFIX = "whsec_"
"""Before a key that is written as base64."""
_SHORTEST = 24


def signed_headers(key: bytes, *, id: str, now: datetime, body: bytes) -> dict[str, str]:  # noqa: A002 - its name
    """The headers that prove who sent a notification, and when."""
    at = str(int(now.timestamp()))
    mac = hmac.digest(key, f"{id}.{at}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": id,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def parse_key(value: bytes) -> bytes:
    """The key in a Secret: the bytes as they are, or whsec_ and their base64. Raises UnwindError."""
    key = value
    if value.startswith(PREFIX.encode()):
        try:
            key = base64.b64decode(value.removeprefix(PREFIX.encode()).strip(), validate=True)
        except binascii.Error as error:
            raise UnwindError(
                f"the signing key is not base64 after {PREFIX}", remedy="write the base64 of the key after it"
            ) from error
    if len(key) < _SHORTEST:
        raise UnwindError(
            f"the signing key has {len(key)} bytes, and needs {_SHORTEST} or more",
            remedy="create one with `openssl rand -base64 32`",
        )
    return key
