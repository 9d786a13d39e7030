"""Which of the rights that `unwind install` grants the managers of a test run have used, by the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unwind.api.admission import MANAGE
from unwind.api.capi import CONTROL_PLANE_GROUP, CONTROL_PLANES
from unwind.api.rights import Setting
from unwind.install.manifests import feature_rights, rights_at_home

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from unwind.api.features import Features
    from unwind.local.audit_log import AuditEvent

_EVERY = "*"


class UsedRight(NamedTuple):
    """One verb on one resource."""

    verb: str
    resource: str
    """As RBAC names it, with its group: `clusters/status.cluster.karmada.io`; `*` for all resources."""
    at_home: bool = False
    """Whether it is for Unwind's namespace only."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{' in its namespace' if self.at_home else ''}"


_CONFLICT = "Reads the object again if another client has changed it before the finalizer is set or removed."
RARELY_USED: Mapping[UsedRight, str] = {
    UsedRight("get", "clusterprofiles.config.projectsveltos.io"): _CONFLICT,
    UsedRight("get", "profiles.config.projectsveltos.io"): _CONFLICT,
    UsedRight("get", "works.work.karmada.io"): _CONFLICT,
    UsedRight(
        "get", "leases.coordination.k8s.io", at_home=True
    ): "The hook of `helm uninstall`, which has the roles of the manager, deletes the Leases.",
    **{
        UsedRight("get", f"{plural}.{CONTROL_PLANE_GROUP}"): "The control planes in the tests are of another kind."
        for plural in CONTROL_PLANES
    },
}
"""Rights that only failures or races need, which not every run of the tests meets: each with the reason."""


def granted_rights(features: Features) -> dict[UsedRight, str]:
    """Every verb on every resource, and the feature that it is for."""
    found: dict[UsedRight, str] = {}
    setting = Setting(features=features)
    for feature, rights in (*feature_rights(setting).items(), (_HOME, rights_at_home(setting))):
        for right in rights:
            if right == MANAGE:
                continue  # the API server asks RBAC for the verb `manage`; no request has it
            for resource in right.resources:
                for verb in right.verbs:
                    name = _EVERY if resource == _EVERY else f"{resource}.{right.group}".rstrip(".")
                    found.setdefault(UsedRight(verb, name, feature == _HOME), feature)
    return found


_HOME = "namespace"


def rights_used(entries: Iterable[AuditEvent]) -> set[UsedRight]:
    """What requests of ServiceAccounts have used that RBAC allowed."""
    found: set[UsedRight] = set()
    for entry in entries:
        if entry.unauthorized:
            continue
        ref = entry.object_ref
        resource = f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource
        name = f"{resource}.{ref.group}".rstrip(".")
        home = entry.username.removeprefix("system:serviceaccount:").partition(":")[0]
        at_home = bool(home) and ref.namespace == home
        found.add(UsedRight(entry.verb, name, at_home))
        if entry.verb == "patch" and entry.code == 201:
            found.add(UsedRight("create", name, at_home))  # a server-side apply that creates needs both
    return found


def unused(features: Features, seen: Collection[UsedRight]) -> list[str]:
    """The rights that were granted and never used: FEATURE: VERB RESOURCE. Without those that only failures need."""
    rights = granted_rights(features)
    # A request in Unwind's namespace proves the need for a cluster-wide rule only if no other rule allows it.
    needed = {right if right in rights else right._replace(at_home=False) for right in seen}
    needed |= {UsedRight(right.verb, _EVERY) for right in needed if right not in rights}
    return sorted(
        f"{feature}: {right}" for right, feature in rights.items() if right not in needed and right not in RARELY_USED
    )
