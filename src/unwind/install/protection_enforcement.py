"""How deletion protection is enforced in a cluster: admission policy, webhook, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import DeleteProtection
from unwind.api.names import DELETE_PROTECTION_LABEL, MANAGED_BY_LABEL, MANAGED_BY_UNWIND
from unwind.api.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.unwind import TEARDOWNS
from unwind.components import PROTECTION_GATE
from unwind.install.running_managers import running_managers
from unwind.kube.errors import ApiError, NotFoundError
from unwind.protection import admission_policies, manifests

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Client
    from unwind.protection.protected_kinds import ProtectedKind

Object = dict[str, Any]

POLICY, WEBHOOK, REMOVALS, NOBODY, NOT_KNOWN = "policy", "webhook", "removals", "nobody", "not known"
_SWITCH = f"unwind run --feature-gates {PROTECTION_GATE}=true"


class Enforced(msgspec.Struct, frozen=True, kw_only=True):
    """How the protection of an object is enforced."""

    way: str
    """policy, webhook, removals (on a member: only by Unwind's own removals), nobody or not known."""
    by: str = ""
    """The object in the cluster that enforces it."""
    note: str = ""
    """What the enforcement depends on, or what is missing."""


async def enforced(client: Client, kind: ProtectedKind, word: DeleteProtection) -> Enforced:
    """How protection is enforced for objects of a kind with this label value."""
    try:
        alone = kind.rest is None or word is DeleteProtection.ALWAYS
        if alone and (policy := await _policy(client, admission_policies.of(kind).name)):
            return Enforced(
                way=POLICY,
                by=f"{VALIDATING_ADMISSION_POLICIES.kind} {policy}",
                note="enforced by the API server, even while no manager is running",
            )
        if configuration := await _webhook(client, kind):
            return await _by_manager(client, configuration)
        return Enforced(way=NOBODY, note=await _missing(client))
    except ApiError as error:
        return Enforced(way=NOT_KNOWN, note=f"cannot read admission configuration: {error}")


async def _policy(client: Client, policy: str) -> str:
    """The name of a policy that is bound; empty if there is none."""
    start = f"{manifests.PREFIX}{policy}."
    try:
        bound = await _ours(client, VALIDATING_ADMISSION_POLICY_BINDINGS, start)
        there = await _ours(client, VALIDATING_ADMISSION_POLICIES, start)
    except NotFoundError:
        raise
    except ApiError as error:
        if error.code == 404:
            return ""  # this API server does not serve admission policies
        raise
    return next(iter(sorted(bound.keys() & there.keys())), "")


async def _webhook(client: Client, kind: ProtectedKind) -> str:
    """The name of the webhook configuration that matches labelled objects of a kind; empty if there is none."""
    found = await _ours(client, VALIDATING_WEBHOOK_CONFIGURATIONS, f"{manifests.PREFIX}{manifests.CONFIGURATION}.")
    return next((name for name, one in sorted(found.items()) if any(_asks(it, kind) for it in one["webhooks"])), "")


def _asks(webhook: Object, kind: ProtectedKind) -> bool:
    labelled = {"key": DELETE_PROTECTION_LABEL, "operator": "Exists"} in (
        webhook.get("objectSelector", {}).get("matchExpressions") or []
    )
    return labelled and any(
        _among(kind.group, rule["apiGroups"])
        and _among(kind.plural, rule["resources"])
        and "DELETE" in rule["operations"]
        for rule in webhook.get("rules") or ()
    )


def _among(name: str, listed: list[str]) -> bool:
    return name in listed or admission_policies.EVERYTHING in listed


async def _by_manager(client: Client, configuration: str) -> Enforced:
    home = configuration.partition(f"{manifests.CONFIGURATION}.")[2]
    try:
        running = bool(await running_managers(client, home))
    except ApiError:
        note = "enforced by the manager; cannot read whether one is running"
    else:
        note = (
            "enforced by the manager; while none is running, all deletions are refused"
            if running
            else "enforced by the manager, and none is running: all deletions are refused until one runs"
        )
    return Enforced(way=WEBHOOK, by=f"{VALIDATING_WEBHOOK_CONFIGURATIONS.kind} {configuration}", note=note)


async def _missing(client: Client) -> str:
    try:
        await client.get(CUSTOM_RESOURCE_DEFINITIONS, f"{TEARDOWNS.plural}.{TEARDOWNS.group}")
    except NotFoundError:
        return f"Unwind is not installed: run `unwind install`, then start a manager with `{_SWITCH}`"
    return f"the feature gate {PROTECTION_GATE} is off: start the manager with `{_SWITCH}`"


async def _ours(client: Client, resource: Resource, start: str) -> dict[str, Object]:
    found = await client.list(resource, labels=f"{MANAGED_BY_LABEL}={MANAGED_BY_UNWIND}")
    return {item["metadata"]["name"]: item for item in found if item["metadata"]["name"].startswith(start)}
