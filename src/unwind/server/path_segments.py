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
"""Placeholder for a segment if the key is unknown, as in `unwind install --dry-run`. The manager replaces it."""
HOOKS = "hooks"
"""The path from which the common segment of all hooks is derived: a prefix in the ExtensionConfig."""
_KEY_BYTES = 32
_SEGMENT = re.compile(r"[0-9a-f]{64}")
_CALLED = re.compile(rf"(?P<base>.*?)(?:/(?:{_SEGMENT.pattern}|{PLACEHOLDER}))?(?P<route>/admit/[a-z]+)?/?")


def new_key() -> bytes:
    """A new random key."""
    return secrets.token_hex(_KEY_BYTES).encode()


def segment(key: bytes, path: str) -> str:
    """The segment of the registration that a path belongs to."""
    purpose = path if path.startswith("/admit/") else HOOKS
    return hmac.new(key, purpose.encode(), "sha256").hexdigest()


def prefix(key: bytes, path: str) -> str:
    """The prefix of a path; a placeholder if there is no key."""
    return f"/{segment(key, path) if key else PLACEHOLDER}"


def corrected(config: dict[str, Any], key: bytes) -> dict[str, Any]:
    """The patch that puts the segment of this key into the path of a clientConfig; empty if it is current.

    A path that is not one of our routes is that of an ExtensionConfig.
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
    """A text with all secret segments redacted."""
    return _SEGMENT.sub("…", text)


class Segments:
    """The accepted keys; the first is used for registrations."""

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
        """Accept these keys from now on, and use the first for registrations."""
        if keys != self._keys:
            self._keys = keys
            for told in self._told:
                told()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` when the keys change."""
        self._told.append(changed)
