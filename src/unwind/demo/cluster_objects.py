"""The objects of the demo on an existing cluster. All of them have the label of one run, or are in its namespaces."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import DeleteProtection
from unwind.api.names import DELETE_PROTECTION_LABEL, DEMO_LABEL
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    SERVICES,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    Resource,
)
from unwind.api.rights import Setting
from unwind.demo import scenario
from unwind.external.manifests import GRANTED
from unwind.install.contributions import REGISTER
from unwind.install.manifests import manifests, resource_of
from unwind.install.user_roles import USERS
from unwind.protection import admission_policies, protected_kinds
from unwind.server.manager_names import granted_role

if TYPE_CHECKING:
    from collections.abc import Iterable

Object = dict[str, Any]

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LENGTH = 5
# On every node of kind and k3d, and small elsewhere. The demo does not wait until its Pods run.
_IMAGE = "registry.k8s.io/pause:3.10"
# Roles for users would become part of the roles `view` and others, and GRANTED would collect roles of the cluster.
_LEFT_OUT = (USERS, GRANTED)

KINDS = (
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_ADMISSION_POLICIES,
    NAMESPACES,
    CUSTOM_RESOURCE_DEFINITIONS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
)
"""The cluster-scoped kinds, in the order of their deletion: the policies guard the others."""


class DemoRun(msgspec.Struct, frozen=True):
    """One run of the demo on an existing cluster."""

    name: str
    """The value of its label, which is part of all of its names."""

    @classmethod
    def new(cls) -> DemoRun:
        return cls("".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH)))

    @property
    def home(self) -> str:
        """The namespace of the manager."""
        return f"unwind-demo-{self.name}"

    @property
    def shop(self) -> str:
        """The namespace that the demo deletes."""
        return f"{self.home}-shop"

    @property
    def protected(self) -> str:
        """The namespace that cannot be deleted."""
        return f"{self.home}-payments"

    @property
    def databases(self) -> Resource:
        """The kind of the custom resources in the shop."""
        return Resource(f"{self.name}.{scenario.DATABASES.group}", "v1", "databases", "Database")

    @property
    def setting(self) -> Setting:
        """No feature: no webhook, and no policy for objects of others. The URL only says that there is no Service."""
        return Setting(namespace=self.home, features=frozenset(), url="https://127.0.0.1:9443")

    @property
    def selector(self) -> str:
        return f"{DEMO_LABEL}={self.name}"


def installed(run: DemoRun) -> list[tuple[Resource, Object]]:
    """What the manager needs, as `unwind install` creates it."""
    register = [contribution for contribution in REGISTER if contribution not in _LEFT_OUT]
    return [(resource_of(manifest), _labelled(run, manifest)) for manifest in manifests(run.setting, register)]


def furniture(run: DemoRun) -> list[tuple[Resource, Object]]:
    """The namespaces of the shop, a CRD, and a policy that applies to the protected namespace only."""
    protection = {DELETE_PROTECTION_LABEL: DeleteProtection.ALWAYS.value}
    return [
        (CUSTOM_RESOURCE_DEFINITIONS, _labelled(run, _definition(run))),
        (NAMESPACES, _labelled(run, _object(NAMESPACES, run.shop))),
        (NAMESPACES, _labelled(run, _object(NAMESPACES, run.protected, labels=protection))),
        *_policy(run),
    ]


def shop(run: DemoRun) -> list[tuple[Resource, Object]]:
    """The content of the namespace that is deleted: databases with their operator, and a web shop."""
    cleanup, held = [scenario.CLEANUP], [scenario.CLEANUP, scenario.BACKUP]
    databases = {"customers": cleanup, "stock": cleanup, scenario.HELD: held}
    web = {"spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}
    return [
        (DEPLOYMENTS, _deployment(run, scenario.OPERATOR)),
        *(
            (run.databases, _object(run.databases, name, namespace=run.shop, finalizers=finalizers))
            for name, finalizers in databases.items()
        ),
        (DEPLOYMENTS, _deployment(run, "web")),
        (SERVICES, _object(SERVICES, "web", namespace=run.shop) | web),
        (CONFIG_MAPS, _object(CONFIG_MAPS, "prices", namespace=run.shop) | {"data": {"tea": "3"}}),
    ]


def rights(run: DemoRun, resources: Iterable[Resource]) -> list[tuple[Resource, Object]]:
    """The manager's rights to look into namespaces, and to delete objects of these kinds."""
    groups: dict[str, list[str]] = {}
    for resource in resources:
        groups.setdefault(resource.group, []).append(resource.plural)
    rules = [
        # Not `get`: on all resources, it would include access to every container.
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]},
        *(
            {"apiGroups": [group], "resources": sorted(plurals), "verbs": ["get", "list", "watch", "delete"]}
            for group, plurals in sorted(groups.items())
        ),
    ]
    made = granted_role(run.setting, run.home, rules=rules)
    return [(resource_of(manifest), _labelled(run, manifest)) for manifest in made]


def _policy(run: DemoRun) -> list[tuple[Resource, Object]]:
    """The admission policy of deletion protection for Namespaces, restricted to the objects of this run."""
    kind = next(
        kind for kind in protected_kinds.KINDS if (kind.group, kind.plural) == (NAMESPACES.group, NAMESPACES.plural)
    )
    policy, name = admission_policies.of(kind), f"{run.home}-protection"
    matches = policy.spec["matchConstraints"]
    narrowed = {"objectSelector": {**matches["objectSelector"], "matchLabels": {DEMO_LABEL: run.name}}}
    spec = {**policy.spec, "matchConstraints": {**matches, **narrowed}}
    binding = {"policyName": name, **policy.binding}
    return [
        (resource, _labelled(run, _object(resource, name) | {"spec": content}))
        for resource, content in (
            (VALIDATING_ADMISSION_POLICIES, spec),
            (VALIDATING_ADMISSION_POLICY_BINDINGS, binding),
        )
    ]


def _definition(run: DemoRun) -> Object:
    kind = run.databases
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return _object(CUSTOM_RESOURCE_DEFINITIONS, f"{kind.plural}.{kind.group}") | {
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
            },
            "versions": [version],
        }
    }


def _deployment(run: DemoRun, name: str) -> Object:
    # As the Pod security level `restricted` requires.
    container = {
        "name": name,
        "image": _IMAGE,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 65535,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"cpu": "10m", "memory": "16Mi"}},
    }
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "containers": [container],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
        },
    }
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return _object(DEPLOYMENTS, name, namespace=run.shop) | {"spec": spec}


def _object(resource: Resource, name: str, **metadata: Any) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **metadata}}


def _labelled(run: DemoRun, manifest: Object) -> Object:
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), DEMO_LABEL: run.name}}}
