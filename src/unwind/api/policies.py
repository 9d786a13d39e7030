"""The words that people write into labels and annotations."""

from __future__ import annotations

from unwind.api.fields import Word


class OnDeadline(Word):
    """What happens when a teardown has taken longer than it may."""

    HOLD = "Hold"
    """It says so, and goes on."""
    RELEASE = "Release"
    """The target is let go, and what is left goes into the ledger."""


class DeleteProtection(Word):
    """The value of OpenKruise's label."""

    ALWAYS = "Always"
    CASCADING = "Cascading"
    """Protected as long as something depends on it: replicas, Pods, volumes, custom resources."""


class DeletePolicy(Word):
    """The value of Azure Service Operator's annotation, and of our own."""

    MANAGE = "manage"
    SKIP = "skip"
    """Neither changed nor deleted."""
    DETACH_ON_DELETE = "detach-on-delete"
    """Changed, but not deleted."""
