"""What the manager may do, and what else each part of Unwind needs in a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from unwind.api.resources import Resource

READ = ("get", "list", "watch")
HOME = "unwind-system"
"""The namespace of Unwind itself, if nobody says otherwise."""


class Right(msgspec.Struct, frozen=True):
    """Verbs on resources, as RBAC grants them."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Only on objects of these names; on all if there are none."""

    def rule(self) -> dict[str, Any]:
        rule: dict[str, Any] = {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        }
        return {**rule, "resourceNames": list(self.names)} if self.names else rule


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how Unwind is installed."""

    namespace: str = HOME
    url: str | None = None
    """Where the manager listens, if it runs outside the cluster; webhooks and extensions are registered by it."""


def nothing_else(_: Setting) -> list[dict[str, Any]]:
    return []


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of Unwind needs: rights for the manager, and objects of its own."""

    name: str
    everywhere: tuple[Right, ...] = ()
    """Rights in the whole cluster."""
    at_home: tuple[Right, ...] = ()
    """Rights in Unwind's own namespace only."""
    kinds: tuple[Resource, ...] = ()
    """The kinds of its manifests."""
    manifests: Callable[[Setting], list[dict[str, Any]]] = nothing_else
    """Objects beside the rights: a Service, webhooks, an ExtensionConfig."""
