"""All manifests of `unwind install`, in the order in which they are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from unwind.api import features, karmada, sveltos
from unwind.api.capi import EXTENSION_CONFIGS
from unwind.api.crds import DEFINITIONS
from unwind.api.features import Feature
from unwind.api.policies import TEARDOWN_POLICIES
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from unwind.api.rights import Right
from unwind.api.workload import ManagerWorkload
from unwind.errors import UsageError
from unwind.install import workload
from unwind.install.contributions import REGISTER
from unwind.server.manager_names import MANAGER, granted_role, with_install_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.api.crds import KindDefinition
    from unwind.api.rights import Contribution, Setting

Object = dict[str, Any]

_KINDS = (
    NAMESPACES,
    CUSTOM_RESOURCE_DEFINITIONS,
    SERVICE_ACCOUNTS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    ROLES,
    ROLE_BINDINGS,
    *workload.KINDS,
)
_REGISTERED = (
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    EXTENSION_CONFIGS,
)
"""Kinds that refuse requests, or call the manager. A manager in the cluster writes them itself when it is ready: before
that, a webhook would refuse deletions, and Cluster API does not start while a registered extension does not answer."""
_KINDS_OF = {
    sveltos.CONFIG_GROUP: frozenset({Feature.ADDONS}),
    sveltos.LIB_GROUP: frozenset({Feature.ADDONS}),
    karmada.CLUSTERS.group: frozenset({Feature.KARMADA}),
    karmada.WORKS.group: frozenset({Feature.KARMADA}),
    TEARDOWN_POLICIES.kind: features.POLICIES,
}
"""The features that bring kinds, by API group or by kind: any of them does."""


def manifests(setting: Setting, register: Sequence[Contribution] = REGISTER) -> list[Object]:
    """All manifests in order: each may depend on those before it."""
    if setting.workload is None:
        return _manifests(setting, register)
    found = [manifest for manifest in _manifests(setting, register) if resource_of(manifest) not in _REGISTERED]
    return [*found, *map(with_install_labels, workload.workload_objects(setting.namespace, setting.workload))]


def everything(setting: Setting, register: Sequence[Contribution] = REGISTER) -> list[Object]:
    """All manifests of every way to install, and the objects that a running manager creates itself."""
    later = [manifest for contribution in _of(setting, register) for manifest in contribution.later(setting)]
    running = workload.workload_objects(setting.namespace, setting.workload or ManagerWorkload(image=""))
    return [*_manifests(setting, register), *map(with_install_labels, (*later, *running))]


def _manifests(setting: Setting, register: Sequence[Contribution]) -> list[Object]:
    _check(setting)
    kinds = [item.custom_resource_definition() for item in definitions(setting)]
    return [*map(with_install_labels, (namespace(setting), *kinds)), *without_crds(setting, register)]


def without_crds(setting: Setting, register: Sequence[Contribution] = REGISTER) -> list[Object]:
    """All manifests after the namespace and the CRDs, which take much longer to render."""
    others = [manifest for contribution in _of(setting, register) for manifest in contribution.manifests(setting)]
    return [with_install_labels(manifest) for manifest in (*_rights(setting, register), *others)]


def _of(setting: Setting, register: Sequence[Contribution]) -> list[Contribution]:
    return [contribution for contribution in register if contribution.belongs(setting)]


def namespace(setting: Setting) -> Object:
    return _object(NAMESPACES, setting.namespace)


def crds(group: str | None = None) -> list[Object]:
    """The CRDs of one API group, or all."""
    return [
        definition.custom_resource_definition()
        for definition in DEFINITIONS
        if group is None or definition.resource.group == group
    ]


def definitions(setting: Setting) -> list[KindDefinition]:
    """The kinds of an installation: those of Unwind, and those of its features."""
    return [
        definition
        for definition in DEFINITIONS
        if (by := _KINDS_OF.get(definition.resource.kind) or _KINDS_OF.get(definition.resource.group)) is None
        or by & setting.features
    ]


def resource_of(manifest: Object) -> Resource:
    """The resource of a manifest."""
    known = [*_KINDS, *(kind for contribution in REGISTER for kind in contribution.kinds)]
    return next(kind for kind in known if (kind.api_version, kind.kind) == (manifest["apiVersion"], manifest["kind"]))


def called(obj: Object) -> str:
    """NAMESPACE/NAME of an object, or NAME."""
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else metadata["name"]


def policies(setting: Setting, register: Sequence[Contribution] = REGISTER) -> tuple[list[Object], list[Object]]:
    """The admission policies that install writes, and their bindings. The manager restores deleted ones."""
    found = [
        with_install_labels(manifest)
        for contribution in _of(setting, register)
        for manifest in contribution.manifests(setting)
    ]
    kinds = (VALIDATING_ADMISSION_POLICIES.kind, VALIDATING_ADMISSION_POLICY_BINDINGS.kind)
    made, bindings = ([item for item in found if item["kind"] == kind] for kind in kinds)
    return made, bindings


def webhooks(setting: Setting, register: Sequence[Contribution] = REGISTER) -> list[Object]:
    """The webhook configurations that install writes. The manager restores deleted ones."""
    found = [
        with_install_labels(manifest)
        for contribution in _of(setting, register)
        for manifest in contribution.manifests(setting)
    ]
    kinds = (VALIDATING_WEBHOOK_CONFIGURATIONS.kind, MUTATING_WEBHOOK_CONFIGURATIONS.kind)
    return [item for item in found if item["kind"] in kinds]


def _restoring(setting: Setting, register: Sequence[Contribution]) -> list[Right]:
    """The rights to restore our policies, by name only: a right to any policy controls every write in a cluster.

    Restoring uses server-side apply, so that `resourceNames` also restricts creation.
    """
    kinds = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)
    return [
        Right.on(
            kind,
            ("get", "create", "patch"),
            names=tuple(item["metadata"]["name"] for item in found),
            why="Restores its admission policies, which no policy can protect.",
        )
        for kind, found in zip(kinds, policies(setting, register), strict=True)
        if found
    ]


CORE = "core"
"""What is always installed, or with any of several features."""


def feature_rights(setting: Setting, register: Sequence[Contribution] = REGISTER) -> dict[str, list[Right]]:
    """The cluster-wide rules by feature."""
    found: dict[str, list[Right]] = {CORE: []}
    for contribution in _of(setting, register):
        feature = next(iter(contribution.features)) if len(contribution.features) == 1 else CORE
        found.setdefault(feature, []).extend((*contribution.everywhere, *contribution.everywhere_by_name(setting)))
    found[CORE] += _restoring(setting, register)
    return found


def rights_at_home(setting: Setting, register: Sequence[Contribution] = REGISTER) -> list[Right]:
    """The rules in the manager's namespace."""
    return [right for contribution in _of(setting, register) for right in contribution.at_home]


def _rights(setting: Setting, register: Sequence[Contribution]) -> list[Object]:
    home = setting.namespace
    at_home = [right.rule() for right in rights_at_home(setting, register)]
    return [
        _object(SERVICE_ACCOUNTS, MANAGER, namespace=home),
        *(
            manifest
            for feature, rights in feature_rights(setting, register).items()
            if rights
            # There is one manager per namespace, so its name identifies cluster-scoped objects.
            for manifest in granted_role(
                setting,
                f"{MANAGER}:{home}" if feature == CORE else f"{MANAGER}-{feature}:{home}",
                rules=[right.rule() for right in rights],
            )
        ),
        {**_object(ROLES, MANAGER, namespace=home), "rules": at_home},
        {
            **_object(ROLE_BINDINGS, MANAGER, namespace=home),
            "roleRef": {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": MANAGER},
            "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": MANAGER, "namespace": home}],
        },
    ]


def _object(resource: Resource, name: str, *, namespace: str | None = None) -> Object:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def _check(setting: Setting) -> None:
    if setting.url is not None and not _is_address(setting.url):
        raise UsageError(f"invalid --url {setting.url}", remedy="use https://HOST:PORT")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or parts.username)
    return parts.scheme == "https" and bool(host) and port != 0 and plain
