"""Manifests of deletion protection: RBAC rules, and the policies and webhooks that the manager creates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind.api import names
from unwind.api.features import Feature
from unwind.api.resources import (
    PODS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import Contribution, Right, Setting
from unwind.protection import admission_policies
from unwind.protection.protected_kinds import KINDS
from unwind.protection.webhook_configuration import webhook_manifest
from unwind.server import path_segments
from unwind.server.manager_names import MANAGER, webhook

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource

Object = dict[str, Any]

PREFIX = f"{MANAGER}-protection-"
"""The name prefix of all these objects, for every manager."""
CONFIGURATION = "webhooks"
RETIRED = ("active-pods",)
"""Policies of earlier builds that this one does not have.

The manager deletes their bindings once its own policies exist, so that nothing is unprotected in between. A policy
without a binding does nothing; `unwind uninstall` deletes it. A role can only grant names, so a renamed policy must be
added here.
"""


def policy_name(policy: str, namespace: str) -> str:
    """The name of a policy and its binding; one per manager."""
    return f"{PREFIX}{policy}.{namespace}"


def protection_rules(namespace: str) -> str:
    """The name of the webhook configuration for deletions; one per manager."""
    return policy_name(CONFIGURATION, namespace)


def policy_objects(namespace: str) -> tuple[list[Object], list[Object]]:
    """The policies and their bindings."""
    found: tuple[list[Object], list[Object]] = ([], [])
    for policy in admission_policies.protection_policies():
        name = policy_name(policy.name, namespace)
        found[0].append(_object(VALIDATING_ADMISSION_POLICIES, name, spec=policy.spec))
        spec = {"policyName": name, **policy.binding}
        found[1].append(_object(VALIDATING_ADMISSION_POLICY_BINDINGS, name, spec=spec))
    return found


def retired_policies(namespace: str) -> set[str]:
    """The names of the policies of earlier builds, and of their bindings."""
    return {policy_name(policy, namespace) for policy in RETIRED}


def configuration(namespace: str, calling: Callable[[str], Object], *, everything: bool) -> Object:
    """The webhook configuration: for all kinds, or only for what policies cannot decide."""
    asking = webhook_manifest(calling, everything=everything)
    return _object(VALIDATING_WEBHOOK_CONFIGURATIONS, protection_rules(namespace), webhooks=asking)


def called_at(extension: Object, key: bytes = b"") -> Callable[[str], Object] | None:
    """How the API server calls the manager at a path, taken from the recorded ExtensionConfig; None if unknown.

    `key`: of the secret path segments; empty for paths without them.
    """
    config = (extension.get("spec") or {}).get("clientConfig") or {}

    def guarded(path: str) -> str:
        return path_segments.prefix(key, path) + path if key else path

    if url := config.get("url"):
        return lambda path: {"url": url + guarded(path)}
    if service := config.get("service"):
        return lambda path: {"service": service | {"path": guarded(path)}}
    return None


def _object(resource: Resource, name: str, **content: Any) -> Object:
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY_UNWIND}
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **content}


def _later(setting: Setting) -> list[Object]:
    made, bindings = policy_objects(setting.namespace)
    asking = configuration(setting.namespace, lambda path: webhook(setting, path), everything=True)
    kinds = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)
    earlier = [_object(kind, name) for kind in kinds for name in sorted(retired_policies(setting.namespace))]
    return [*made, *bindings, *earlier, asking]


def _own_objects(setting: Setting) -> list[Right]:
    home = setting.namespace
    ours = tuple(policy_name(policy.name, home) for policy in admission_policies.protection_policies())
    made, bindings, asking = (
        VALIDATING_ADMISSION_POLICIES,
        VALIDATING_ADMISSION_POLICY_BINDINGS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
    )
    return [
        # The right to write these objects controls every write in the cluster, so it is for our names only. That covers
        # creation as well, because server-side apply names the object.
        Right.on(made, ("create", "patch"), names=ours, why="Creates and restores its policies."),
        Right.on(
            bindings,
            ("create", "patch", "delete"),
            names=ours,
            why="Binds its policies, and removes the bindings when the feature gate is off.",
        ),
        Right.on(
            bindings,
            ("delete",),
            names=tuple(sorted(retired_policies(home))),
            why="Removes the bindings of policies of earlier versions.",
        ),
        Right.on(
            asking,
            ("create", "patch", "delete"),
            names=(protection_rules(home),),
            why="Creates and restores its webhook configuration, and removes it when the feature gate is off.",
        ),
        *_reading(setting),
    ]


def _reading(setting: Setting) -> list[Right]:
    """The read rules for custom resources: counting those of a CRD requires the right to list them."""
    needed: dict[str, list[str]] = {PODS.group: [PODS.plural]}
    for kind in (kind for kind in KINDS if kind.namespaced or kind.rest):
        needed.setdefault(kind.group, []).append(kind.plural)
    why = "Counts what depends on a protected object."
    # Not `get`: on all resources it would include access to every container (pods/exec, nodes/proxy).
    verbs = ("list", "watch")
    rights = [Right(group, tuple(resources), verbs, why=why) for group, resources in needed.items()]
    all_or_some = ("*",) if setting.authorized_groups is None else setting.authorized_groups
    why = (
        "Counts the objects in a protected Namespace and the custom resources of a protected CRD: their kinds are not"
        " known in advance. `--authorized-groups` restricts it to API groups."
    )
    return [*rights, *(Right(group, ("*",), verbs, why=why) for group in all_or_some)]


PROTECTING = Contribution(
    name="protection",
    features=frozenset({Feature.PROTECTION}),
    everywhere_by_name=_own_objects,
    kinds=(
        VALIDATING_ADMISSION_POLICIES,
        VALIDATING_ADMISSION_POLICY_BINDINGS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
    ),
    later=_later,
)
