"""What Cluster API's hooks need in a cluster: the ExtensionConfig, what guards it, and who is asked about Clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind import segments
from unwind.api import capi, karmada, names
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
)
from unwind.api.rights import READ, Contribution, Right
from unwind.installing import path_keys
from unwind.installing.addressing import CERTIFICATE, MANAGER, PORT, SERVICE, granted, webhook
from unwind.installing.gatekeeping import annotation, extension_name, gate_policies, guard

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.api.rights import Setting

CLUSTERS_PATH = "/admit/clusters"
"""Where the API server tells who lets a cluster go, or deletes it."""
REGISTRATION = "unwind-registration"
"""The ConfigMap with the ExtensionConfig as it was installed: the manager makes it from this where it is not there."""
_DOCUMENT = "extensionconfig.json"

VERSIONS = (capi.EXTENSION_CONFIGS, capi.EXTENSION_CONFIGS_V1ALPHA1)
"""The versions of ExtensionConfig that are known, the newest first. What we write is the same in both."""


def cluster_rules(namespace: str) -> str:
    """What the configuration is called that has the API server ask about Clusters: one for each manager."""
    return f"{MANAGER}-clusters.{namespace}"


def remembered(config_map: dict[str, Any], version: str) -> dict[str, Any] | None:
    """The ExtensionConfig that a ConfigMap of ours keeps, in a version; None if there is none in it."""
    try:
        document = msgspec.json.decode(config_map["data"][_DOCUMENT])
    except (KeyError, TypeError, msgspec.DecodeError):
        return None
    return document | {"apiVersion": version} if isinstance(document, dict) else None


def _extension(setting: Setting) -> dict[str, Any]:
    """The ExtensionConfig without the secret segment in its path: so it is remembered."""
    service = {"namespace": setting.namespace, "name": SERVICE, "port": PORT}
    # Without a selector it is for no namespace, unless Cluster API's own webhook makes it one for all: so it is said.
    selector = {"matchLabels": setting.namespace_selector} if setting.namespace_selector else {}
    annotations = {names.INJECT_CA_ANNOTATION: f"{setting.namespace}/{CERTIFICATE}"} if setting.inject_ca else {}
    return _object(
        capi.EXTENSION_CONFIGS,
        extension_name(setting.namespace),
        annotations=annotations,
        # Also where it is the manager that makes it.
        labels={names.MANAGED_BY_LABEL: names.MANAGED_BY_UNWIND},
    ) | {
        "spec": {
            "clientConfig": {"url": setting.url.rstrip("/")} if setting.url else {"service": service},
            "namespaceSelector": selector,
        }
        # Not written where there are none: then those that somebody has set by hand stay.
        | ({"settings": setting.hook_settings} if setting.hook_settings else {})
    }


def _remembering(setting: Setting, extension: dict[str, Any]) -> dict[str, Any]:
    document = msgspec.json.format(msgspec.json.encode(extension), indent=2).decode()
    return _object(CONFIG_MAPS, REGISTRATION, namespace=setting.namespace) | {"data": {_DOCUMENT: document}}


def _changes(name: str) -> str:
    return f"{annotation('object', name)} != {annotation('oldObject', name)}"


_RELEASES = " || ".join(
    (
        *map(
            _changes,
            (
                names.FORCE_RELEASE_ANNOTATION,
                names.FORCE_RELEASE_BY_ANNOTATION,
                names.REMOVE_STRATEGY_ANNOTATION,
                names.REMOVE_STRATEGY_BY_ANNOTATION,
            ),
        ),
        # Of a member's Cluster; no other has such a field.
        "object.?spec.?removeStrategy != oldObject.?spec.?removeStrategy",
    )
)
# The annotation that is written meanwhile has the API server look, and ask, once more: that ends here. And whoever
# insists on the version that they have read must find it unchanged.
_DELETES = " && ".join(
    (
        "!has(oldObject.metadata.deletionTimestamp)",
        "request.dryRun != true",
        "!request.options.?preconditions.?resourceVersion.hasValue()",
        f"{annotation('oldObject', names.DELETION_REQUESTED_BY_ANNOTATION)}.orValue('') != request.userInfo.username",
    )
)


def _asking(setting: Setting) -> list[dict[str, Any]]:
    """The API server tells who lets a cluster go, and who deletes it."""
    kind, name = MUTATING_WEBHOOK_CONFIGURATIONS, cluster_rules(setting.namespace)
    rule = {
        "apiGroups": [capi.CLUSTERS.group],
        "apiVersions": ["*"],
        "resources": [capi.CLUSTERS.plural],
        "operations": ["UPDATE", "DELETE"],
        "scope": "Namespaced",
    }
    members = rule | {
        "apiGroups": [karmada.CLUSTERS.group],
        "resources": [karmada.CLUSTERS.plural],
        "scope": "Cluster",
    }
    asking = {
        "name": "clusters.gate.unwind.dev",
        "clientConfig": webhook(setting, CLUSTERS_PATH),
        "rules": [rule, members],
        "matchPolicy": "Equivalent",
        "matchConditions": [
            {
                "name": "somebody-decides",
                "expression": f"request.operation == 'DELETE' ? ({_DELETES}) : ({_RELEASES})",
            }
        ],
        # Who it was is worth knowing, and not worth holding anybody up.
        "failurePolicy": "Ignore",
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 3,
    }
    return [_object(kind, name) | {"webhooks": [asking]}]


def _manifests(setting: Setting) -> list[dict[str, Any]]:
    extension = _extension(setting)
    name, kind = extension["metadata"]["name"], MUTATING_WEBHOOK_CONFIGURATIONS
    rules = [
        # Whoever may write any of these decides about clusters, or about every write: the rights are for ours alone.
        Right(capi.EXTENSION_CONFIGS.group, (capi.EXTENSION_CONFIGS.plural,), ("patch",), (name,)),
        Right(kind.group, (kind.plural,), (*READ, "patch"), (cluster_rules(setting.namespace),)),
    ]
    # Uninstalled in the reverse order: the ExtensionConfig goes while what guards it is still there.
    # In front of the path of every hook.
    segment = segments.prefix(setting.path_key, segments.HOOKS)
    return [
        *granted(setting, f"{MANAGER}-gate", rules=[right.rule() for right in rules]),
        _remembering(setting, extension),
        *_asking(setting),
        *gate_policies(setting.namespace),
        *guard(setting.namespace),
        with_prefix(extension, segment),
    ]


def with_prefix(extension: dict[str, Any], prefix: str) -> dict[str, Any]:
    """An ExtensionConfig that is called with this before each path."""
    spec = extension["spec"]
    config = spec["clientConfig"]
    if url := config.get("url"):
        config = config | {"url": url + prefix}
    else:
        config = config | {"service": config["service"] | {"path": prefix}}
    return extension | {"spec": spec | {"clientConfig": config}}


def _object(resource: Resource, name: str, *, namespace: str = "", **metadata: dict[str, str]) -> dict[str, Any]:
    where = {"name": name} | ({"namespace": namespace} if namespace else {})
    more = {key: value for key, value in metadata.items() if value}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": where | more}


GATING = Contribution(
    name="gating",
    everywhere=(
        # Ours is made again where it vanished; a right to create knows no names.
        Right(capi.EXTENSION_CONFIGS.group, (capi.EXTENSION_CONFIGS.plural,), (*READ, "create")),
        # Cluster API asks about the clusters of some namespaces, by their labels.
        Right("", ("namespaces",), READ),
        # Who asked for the deletion of a cluster is noted on it.
        Right(capi.CLUSTERS.group, (capi.CLUSTERS.plural,), ("patch",)),
    ),
    at_home=(Right("", ("configmaps",), ("get",), (REGISTRATION,)),),
    kinds=(
        CLUSTER_ROLES,
        CLUSTER_ROLE_BINDINGS,
        CONFIG_MAPS,
        SECRETS,
        MUTATING_WEBHOOK_CONFIGURATIONS,
        VALIDATING_ADMISSION_POLICIES,
        VALIDATING_ADMISSION_POLICY_BINDINGS,
        *VERSIONS,
    ),
    optional={
        capi.EXTENSION_CONFIGS: "Cluster API is not here: the manager registers itself as soon as it is",
        VALIDATING_ADMISSION_POLICIES: "this API server is too old for it: nothing keeps the ExtensionConfig",
        VALIDATING_ADMISSION_POLICY_BINDINGS: "this API server is too old for it",
    },
    manifests=_manifests,
    later=lambda setting: [path_keys.manifest(setting.namespace)],
)
