"""Which of the two ways decides about deletions, and what may be read for it (values only)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

FEATURE = "ResourcesDeletionProtection"
"""The feature gate that all of it is behind."""


class Mode(StrEnum):
    """Who decides what the object alone can decide; the rest is always decided by the webhook."""

    AUTO = "auto"
    """Policies where the API server has them, otherwise the webhook."""
    WEBHOOK = "webhook"
    POLICY = "policy"
    """Policies; a manager does not start where the API server has none."""


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told of it when it starts."""

    mode: Mode = Mode.AUTO
    groups: tuple[str, ...] | None = None
    """The API groups whose objects may be read, besides those of the kinds that can be protected; None for all."""
