"""What the manager may do, and what else each part of Unwind needs in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    namespace_selector: dict[str, str] = {}
    """The labels of the namespaces whose clusters Cluster API asks about; of all if there are none."""
    hook_settings: dict[str, str] = {}
    """What rules at hooks are told with every question."""
    inject_ca: bool = False
    """Whether Cluster API takes the authority to trust from our Secret; if not, the manager writes it where it is
    read."""
    path_key: bytes = b""
    """The key of the secret segments in our paths; a placeholder stands for them where there is none."""
    authorized_groups: tuple[str, ...] | None = None
    """The API groups whose objects the manager may read to count what there is of a CRD; all if None."""


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
    optional: Mapping[Resource, str] = {}
    """Kinds of its manifests that may not be served, and what is then said of it."""
    manifests: Callable[[Setting], list[dict[str, Any]]] = nothing_else
    """Objects beside the rights: a Service, webhooks, an ExtensionConfig."""
    later: Callable[[Setting], list[dict[str, Any]]] = nothing_else
    """Objects that a manager makes by itself when it runs. Install does not write them; uninstall takes them away."""
