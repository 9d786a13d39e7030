"""Which of the rights that `unwind install` grants the managers of a test run have used, by the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unwind.api.admission import MANAGE
from unwind.api.rights import Setting
from unwind.install.manifests import feature_rights, rights_at_home

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from unwind.api.features import Features
    from unwind.local.audit_log import AuditEvent


class UsedRight(NamedTuple):
    """One verb on one resource."""

    verb: str
    resource: str
    """As RBAC names it, with its group: `clusters/status.cluster.karmada.io`."""


def granted(features: Features) -> dict[UsedRight, str]:
    """Every verb on every resource, and the feature that it is for. Rules for all resources are left out."""
    found: dict[UsedRight, str] = {}
    setting = Setting(features=features)
    for feature, rights in (*feature_rights(setting).items(), ("namespace", rights_at_home(setting))):
        for right in rights:
            if "*" in right.resources or right == MANAGE:
                continue  # the API server asks RBAC for the verb `manage`; no request has it
            for resource in right.resources:
                for verb in right.verbs:
                    found.setdefault(UsedRight(verb, f"{resource}.{right.group}".rstrip(".")), feature)
    return found


def used(entries: Iterable[AuditEvent]) -> set[UsedRight]:
    """What requests have used that RBAC allowed."""
    found: set[UsedRight] = set()
    for entry in entries:
        if entry.unauthorized:
            continue
        ref = entry.object_ref
        resource = f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource
        name = f"{resource}.{ref.group}".rstrip(".")
        found.add(UsedRight(entry.verb, name))
        if entry.verb == "patch" and entry.code == 201:
            found.add(UsedRight("create", name))  # a server-side apply that creates needs both
    return found


def unused(features: Features, seen: Collection[UsedRight]) -> list[str]:
    """The rights that were granted and never used: FEATURE: VERB RESOURCE."""
    return sorted(
        f"{feature}: {right.verb} {right.resource}" for right, feature in granted(features).items() if right not in seen
    )
