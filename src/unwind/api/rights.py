"""RBAC rules of the manager, and the objects that each component of Unwind installs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from unwind.api import features
from unwind.api.features import Features
from unwind.api.meta import LabelSelector
from unwind.api.resources import Resource
from unwind.api.workload import ManagerWorkload

READ = ("get", "list", "watch")
HOME = "unwind-system"
"""Default namespace of Unwind."""


class Right(msgspec.Struct, frozen=True):
    """Verbs on resources, as in an RBAC rule."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Restricts the rule to objects with these names; empty allows all."""
    why: str = ""
    """What the manager needs the rule for, in one sentence, for docs/reference/rights.md."""

    @classmethod
    def on(
        cls, resource: Resource, verbs: tuple[str, ...], *, sub: str = "", names: tuple[str, ...] = (), why: str = ""
    ) -> Right:
        """Verbs on one resource. `sub`: on this subresource of it."""
        return cls(resource.group, (f"{resource.plural}/{sub}" if sub else resource.plural,), verbs, names, why)

    def rule(self) -> dict[str, Any]:
        rule: dict[str, Any] = {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        }
        return {**rule, "resourceNames": list(self.names)} if self.names else rule


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an installation."""

    namespace: str = HOME
    features: Features = features.ALL
    """What is installed besides the kinds of Unwind."""
    url: str | None = None
    """URL of the manager if it runs outside the cluster. Webhooks and extensions are registered with it."""
    namespace_selector: LabelSelector = LabelSelector()
    """The namespaces whose clusters Cluster API calls the hooks for; empty selects all."""
    hook_settings: dict[str, str] = {}
    """Settings that Cluster API passes to the hooks with every request."""
    inject_ca: bool = False
    """Whether Cluster API injects the CA bundle from Unwind's Secret. Otherwise the manager writes it."""
    path_key: bytes = b""
    """Key of the secret path segments; None renders a placeholder."""
    authorized_groups: tuple[str, ...] | None = None
    """API groups whose objects the manager may read to count the instances of a CRD; None allows all."""
    workload: ManagerWorkload | None = None
    """The manager's Deployment. With it, the manager registers its webhooks and hooks itself when it is ready."""


def nothing_else(_: Setting) -> list[dict[str, Any]]:
    return []


def no_rights(_: Setting) -> list[Right]:
    return []


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What one component of Unwind needs: RBAC rules for the manager, and objects."""

    name: str
    features: Features = frozenset()
    """It is installed with any of these features; always if there are none."""
    everywhere: tuple[Right, ...] = ()
    """Cluster-wide rules."""
    everywhere_by_name: Callable[[Setting], list[Right]] = no_rights
    """Cluster-wide rules for objects whose names depend on the installation."""
    at_home: tuple[Right, ...] = ()
    """Rules in Unwind's namespace only."""
    kinds: tuple[Resource, ...] = ()
    """The kinds of its manifests."""
    optional: Mapping[Resource, str] = {}
    """Kinds of its manifests that may not be served, each with the message in that case."""
    manifests: Callable[[Setting], list[dict[str, Any]]] = nothing_else
    """Objects besides RBAC: a Service, webhooks, an ExtensionConfig."""
    later: Callable[[Setting], list[dict[str, Any]]] = nothing_else
    """Objects that the manager creates at run time. Install does not write them; uninstall deletes them."""

    def belongs(self, setting: Setting) -> bool:
        """Whether it is part of an installation."""
        return not self.features or bool(self.features & setting.features)
