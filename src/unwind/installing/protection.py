"""What deletion protection needs in a cluster: rights, and the policies and webhooks that a manager makes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unwind import segments
from unwind.api import names
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    PODS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import READ, Contribution, Right, Setting
from unwind.installing.addressing import MANAGER, granted, webhook
from unwind.protecting import policies, webhooks
from unwind.protecting.kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource

Object = dict[str, Any]

PREFIX = f"{MANAGER}-protection-"
"""What the names of all these objects begin with, whoever's manager made them."""
CONFIGURATION = "webhooks"


def policy_name(policy: str, namespace: str) -> str:
    """What one policy of a manager is called, and its binding: one for each manager."""
    return f"{PREFIX}{policy}.{namespace}"


def protection_rules(namespace: str) -> str:
    """What the configuration is called that has the API server ask about deletions: one for each manager."""
    return policy_name(CONFIGURATION, namespace)


def policy_objects(namespace: str) -> tuple[list[Object], list[Object]]:
    """The policies, and what puts each into force."""
    found: tuple[list[Object], list[Object]] = ([], [])
    for policy in policies.policies():
        name = policy_name(policy.name, namespace)
        found[0].append(_object(VALIDATING_ADMISSION_POLICIES, name, spec=policy.spec))
        spec = {"policyName": name, **policy.binding}
        found[1].append(_object(VALIDATING_ADMISSION_POLICY_BINDINGS, name, spec=spec))
    return found


def configuration(namespace: str, calling: Callable[[str], Object], *, everything: bool) -> Object:
    """What has the API server ask: about all kinds, or only about what policies cannot decide."""
    asking = webhooks.asking(calling, everything=everything)
    return _object(VALIDATING_WEBHOOK_CONFIGURATIONS, protection_rules(namespace), webhooks=asking)


def called_at(extension: Object, key: bytes = b"") -> Callable[[str], Object] | None:
    """How the manager is called at a path, by what was installed (the ExtensionConfig that install remembers).

    `key`: of the secret segments in our paths; empty for paths without any.
    """
    config = (extension.get("spec") or {}).get("clientConfig") or {}

    def guarded(path: str) -> str:
        return segments.prefix(key, path) + path if key else path

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
    return [*made, *bindings, asking]


def _manifests(setting: Setting) -> list[Object]:
    home = setting.namespace
    ours = tuple(policy_name(policy.name, home) for policy in policies.policies())
    made, bindings, asking = (
        VALIDATING_ADMISSION_POLICIES,
        VALIDATING_ADMISSION_POLICY_BINDINGS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
    )
    rights = [
        # Whoever may write these has the say over every write in the cluster: the rights are for ours alone. That
        # holds for making them, too, because they are made by server-side apply, which names what it makes.
        Right(made.group, (made.plural,), ("create", "patch"), ours),
        Right(bindings.group, (bindings.plural,), ("create", "patch", "delete"), ours),
        Right(asking.group, (asking.plural,), ("create", "patch", "delete"), (protection_rules(home),)),
        *_reading(setting),
    ]
    return granted(setting, f"{MANAGER}-protection", rules=[right.rule() for right in rights])


def _reading(setting: Setting) -> list[Right]:
    """What may be read: what there is of a CRD can be counted only by whoever may list it."""
    kinds = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS, VALIDATING_WEBHOOK_CONFIGURATIONS)
    needed: dict[str, list[str]] = {kinds[0].group: [kind.plural for kind in kinds], PODS.group: [PODS.plural]}
    for kind in KINDS:
        needed.setdefault(kind.group, []).append(kind.plural)
    rights = [Right(group, tuple(resources), READ) for group, resources in needed.items()]
    # Not `get`, which of all resources would include the way into every container (pods/exec, nodes/proxy).
    if setting.authorized_groups is None:
        return [*rights, Right("*", ("*",), ("list", "watch"))]
    return [*rights, *(Right(group, ("*",), ("list", "watch")) for group in setting.authorized_groups)]


PROTECTING = Contribution(
    name="protection",
    kinds=(
        CLUSTER_ROLES,
        CLUSTER_ROLE_BINDINGS,
        VALIDATING_ADMISSION_POLICIES,
        VALIDATING_ADMISSION_POLICY_BINDINGS,
        VALIDATING_WEBHOOK_CONFIGURATIONS,
    ),
    manifests=_manifests,
    later=_later,
)
