"""The secret segment in the paths by which the API server and Cluster API call Unwind (pure).

API servers of managed clusters cannot be given client certificates. So each registration (a webhook, the
ExtensionConfig) has a path that cannot be guessed: `/SEGMENT/admit/clusters`. All segments are derived from one key in
a Secret. They differ, because some may be seen: an API server or Cluster API that cannot reach Unwind puts the whole
URL into its error message.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Callable

PLACEHOLDER = "generated-segment"
"""Stands for a segment where the key is not known: in `unwind install --dry-run`. The manager replaces it."""
HOOKS = "hooks"
"""What all of Cluster API's hooks share a segment by: it is a prefix in the ExtensionConfig."""
_KEY_BYTES = 32
_SEGMENT = re.compile(r"[0-9a-f]{64}")
_CALLED = re.compile(rf"(?P<base>.*?)(?:/(?:{_SEGMENT.pattern}|{PLACEHOLDER}))?(?P<route>/admit/[a-z]+)?/?")


def new_key() -> bytes:
    """A key that cannot be guessed."""
    return secrets.token_hex(_KEY_BYTES).encode()


def segment(key: bytes, path: str) -> str:
    """The segment of the registration that a path belongs to."""
    purpose = path if path.startswith("/admit/") else HOOKS
    return hmac.new(key, purpose.encode(), "sha256").hexdigest()


def prefix(key: bytes, path: str) -> str:
    """What comes before a path; with a placeholder where there is no key."""
    return f"/{segment(key, path) if key else PLACEHOLDER}"


def corrected(config: dict[str, Any], key: bytes) -> dict[str, Any]:
    """What has to be merged into a clientConfig so that its path has the segment of this key; empty if it has.

    A path without a route of ours is that of an ExtensionConfig.
    """
    if url := config.get("url"):
        parts = urlsplit(url)
        wanted = _corrected(parts.path, key)
        return {} if wanted == parts.path else {"url": urlunsplit(parts._replace(path=wanted))}
    service = config.get("service") or {}
    path = service.get("path") or ""
    wanted = _corrected(path, key)
    return {} if wanted == path else {"service": {"path": wanted}}


def _corrected(path: str, key: bytes) -> str:
    found = _CALLED.fullmatch(path)
    if found is None:
        return path
    route = found["route"] or ""
    return f"{found['base']}{prefix(key, route)}{route}"


def redacted(text: str) -> str:
    """A text from elsewhere without the segments that are in it."""
    return _SEGMENT.sub("…", text)


class Segments:
    """The keys that are accepted now; the first of them is the one to register by."""

    def __init__(self, *keys: bytes) -> None:
        self._keys = keys
        self._told: list[Callable[[], None]] = []

    @property
    def key(self) -> bytes:
        return self._keys[0] if self._keys else b""

    @property
    def keys(self) -> tuple[bytes, ...]:
        return self._keys

    def use(self, *keys: bytes) -> None:
        """From now on these are accepted, and the first is the one to register by."""
        if keys != self._keys:
            self._keys = keys
            for told in self._told:
                told()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Have it called when the keys change."""
        self._told.append(changed)
