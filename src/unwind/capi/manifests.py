"""Manifests of Cluster API's hooks: the ExtensionConfig, its guard, and the webhook for Clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, features, karmada, names
from unwind.api.features import Feature
from unwind.api.resources import (
    CONFIG_MAPS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
)
from unwind.api.rights import READ, Contribution, Right
from unwind.capi.admission_policies import (
    annotation,
    deletion_guard,
    extension_guard,
    extension_name,
    gate_policies,
    held_by_policies,
    machines_guard,
)
from unwind.server import path_keys, path_segments
from unwind.server.manager_names import (
    CERTIFICATE,
    FEATURES_KEY,
    MANAGER,
    MARK,
    PORT,
    REGISTRATION,
    REGISTRATION_KEY,
    SERVICE,
    webhook,
)

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.api.rights import Setting

CLUSTERS_PATH = "/admit/clusters"
"""The path of the webhook that records which user releases or deletes a cluster."""

VERSIONS = (capi.EXTENSION_CONFIGS, capi.EXTENSION_CONFIGS_V1ALPHA1)
"""The supported versions of ExtensionConfig, the newest first. What we write is the same in both."""


def cluster_rules(namespace: str) -> str:
    """The name of the webhook configuration for Clusters; one per manager."""
    return f"{MANAGER}-clusters.{namespace}"


def _extension(setting: Setting) -> dict[str, Any]:
    """The ExtensionConfig without the secret segment in its path, as it is recorded."""
    service = {"namespace": setting.namespace, "name": SERVICE, "port": PORT}
    # Without a selector it matches no namespace, unless Cluster API's webhook defaults it to all: so it is explicit.
    selector = msgspec.json.decode(msgspec.json.encode(setting.namespace_selector))  # with lists, not tuples
    annotations = {names.INJECT_CA_ANNOTATION: f"{setting.namespace}/{CERTIFICATE}"} if setting.inject_ca else {}
    return _object(
        capi.EXTENSION_CONFIGS,
        extension_name(setting.namespace),
        annotations=annotations,
        # Set here too, for an ExtensionConfig that the manager creates.
        labels=MARK,
    ) | {
        "spec": {
            "clientConfig": {"url": setting.url.rstrip("/")} if setting.url else {"service": service},
            "namespaceSelector": selector,
        }
        # Omitted if empty, so that settings made by hand are kept.
        | ({"settings": setting.hook_settings} if setting.hook_settings or setting.workload else {})
    }


def _remembering(setting: Setting) -> list[dict[str, Any]]:
    # Also without Cluster API: it has the address of the manager.
    document = msgspec.json.format(msgspec.json.encode(_extension(setting)), indent=2).decode()
    data = {REGISTRATION_KEY: document, FEATURES_KEY: features.written(setting.features)}
    return [_object(CONFIG_MAPS, REGISTRATION, namespace=setting.namespace) | {"data": data}]


def _changes(name: str) -> str:
    return f"{annotation('object', name)} != {annotation('oldObject', name)}"


_RELEASES = " || ".join(
    (
        *map(
            _changes,
            (
                names.FORCE_RELEASE_ANNOTATION,
                names.FORCE_RELEASE_BY_ANNOTATION,
                names.FORCE_RELEASE_GROUPS_ANNOTATION,
                names.REMOVE_STRATEGY_ANNOTATION,
                names.REMOVE_STRATEGY_BY_ANNOTATION,
            ),
        ),
        # Only Karmada Clusters have this field.
        "object.?spec.?removeStrategy != oldObject.?spec.?removeStrategy",
    )
)
# The annotation that the webhook writes makes the API server run admission once more; this condition ends that. And a
# DELETE with a resourceVersion precondition must find the object unchanged.
_DELETES = " && ".join(
    (
        "!has(oldObject.metadata.deletionTimestamp)",
        "!request.options.?preconditions.?resourceVersion.hasValue()",
        "({})",
    )
)
_NOT_RECORDED = (
    f"{annotation('oldObject', names.DELETION_REQUESTED_BY_ANNOTATION)}.orValue('') != request.userInfo.username"
)
# An earlier DELETE of this user may have been refused.
_NOT_PAUSED = f"!{annotation('oldObject', names.PAUSED_ANNOTATION)}.hasValue()"


def _asking(setting: Setting) -> list[dict[str, Any]]:
    """The webhook configuration that reports which user releases or deletes a cluster."""
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
    rules = {Feature.CAPI: rule, Feature.KARMADA: members}
    may_start = Feature.GATES in setting.features
    deletes = _DELETES.format(f"{_NOT_RECORDED} || {_NOT_PAUSED}" if may_start else _NOT_RECORDED)
    asking = {
        "name": "clusters.gate.unwind.dev",
        "clientConfig": webhook(setting, CLUSTERS_PATH),
        "rules": [it for feature, it in rules.items() if feature in setting.features],
        # The API server's defaults are explicit, because the manager compares existing webhooks with this.
        "matchPolicy": "Equivalent",
        "namespaceSelector": {},
        "objectSelector": {},
        "reinvocationPolicy": "Never",
        "matchConditions": [
            {
                "name": "somebody-decides",
                "expression": f"request.operation == 'DELETE' ? ({deletes}) : ({_RELEASES})",
            }
        ],
        # The user name is worth recording, but not worth blocking a request.
        "failurePolicy": "Ignore",
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 3,
    }
    return [_object(kind, name) | {"webhooks": [asking]}]


def _own_objects(setting: Setting) -> list[Right]:
    extensions = capi.EXTENSION_CONFIGS
    return [
        # The right to write these objects controls clusters, so it is for our name only.
        Right.on(
            extensions,
            ("patch",),
            names=(extension_name(setting.namespace),),
            why="Registers its hooks with Cluster API, and requests their discovery.",
        ),
    ]


def _own_webhook(setting: Setting) -> list[Right]:
    kind, names = MUTATING_WEBHOOK_CONFIGURATIONS, (cluster_rules(setting.namespace),)
    # The right to write any webhook configuration controls every write in the cluster, so it is for this name only.
    why = "With `capi` or `karmada`: registers the webhook that records which user deletes a cluster."
    return [Right.on(kind, ("list", "watch", "create", "patch"), names=names, why=why)]


def _manifests(setting: Setting) -> list[dict[str, Any]]:
    # Uninstall uses the reverse order: the ExtensionConfig is deleted while its guard still exists.
    # The prefix of every hook path.
    segment = path_segments.prefix(setting.path_key, path_segments.HOOKS)
    return [
        *gate_policies(setting.namespace, addons=Feature.ADDONS in setting.features),
        *extension_guard(setting.namespace),
        with_prefix(_extension(setting), segment),
    ]


def with_prefix(extension: dict[str, Any], prefix: str) -> dict[str, Any]:
    """A copy of the ExtensionConfig with this prefix before each path."""
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
    features=frozenset({Feature.CAPI}),
    everywhere=(
        Right.on(
            capi.EXTENSION_CONFIGS,
            (*READ, "create"),
            why="Watches its ExtensionConfig, and restores it if it is deleted; RBAC cannot restrict create by name.",
        ),
        Right.on(NAMESPACES, READ, why="Cluster API selects the namespaces of its hooks by their labels."),
        Right.on(
            capi.CLUSTERS, (*READ, "patch"), why="Watches Clusters, and records the user who requested the deletion."
        ),
    ),
    everywhere_by_name=_own_objects,
    kinds=(VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS, *VERSIONS),
    optional={
        capi.EXTENSION_CONFIGS: "Cluster API is not installed: the manager registers its hooks when it is",
        VALIDATING_ADMISSION_POLICIES: "admission policies are not served: the ExtensionConfig is not guarded",
        VALIDATING_ADMISSION_POLICY_BINDINGS: "admission policies are not served by this API server",
    },
    manifests=_manifests,
)

_POLICY_KINDS = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)
_NO_POLICIES = dict.fromkeys(_POLICY_KINDS, "admission policies are not served by this API server")

HELD = Contribution(
    name="held-clusters",
    features=features.POLICIES,
    kinds=_POLICY_KINDS,
    optional=_NO_POLICIES,
    manifests=lambda setting: held_by_policies(setting.namespace),
)
"""The admission policies for Clusters that a TeardownPolicy holds, by whichever gate."""

MACHINE_GATES = Contribution(
    name="machine-gates",
    features=frozenset({Feature.GATES}),
    everywhere=(
        Right.on(
            capi.MACHINES,
            ("list", "watch", "patch"),
            why="Holds the Machines of a Cluster with an annotation until its gate opens (`gate: Machines`).",
        ),
        Right.on(
            capi.MACHINE_POOLS,
            ("list", "watch"),
            why="Reports Clusters with MachinePools: their Machines cannot hold them.",
        ),
        Right.on(capi.MACHINE_SETS, ("get",), why="Lets go of a Machine whose MachineSet is not being deleted."),
        Right(
            capi.CONTROL_PLANE_GROUP,
            capi.CONTROL_PLANES,
            ("get",),
            why="Lets go of a Machine whose control plane is not being deleted.",
        ),
    ),
    kinds=_POLICY_KINDS,
    optional=_NO_POLICIES,
    manifests=lambda setting: [*machines_guard(setting.namespace), *deletion_guard(setting.namespace)],
)

ATTRIBUTION = Contribution(
    name="attribution",
    features=frozenset({Feature.CAPI, Feature.KARMADA}),
    everywhere_by_name=_own_webhook,
    kinds=(MUTATING_WEBHOOK_CONFIGURATIONS,),
    manifests=_asking,
)
"""The webhook that records which user releases or deletes a cluster."""

REGISTERING = Contribution(
    name="registration",
    at_home=(Right.on(CONFIG_MAPS, READ, why=f"Reads its registration from ConfigMap {REGISTRATION}."),),
    kinds=(CONFIG_MAPS, SECRETS),
    manifests=_remembering,
    later=lambda setting: [path_keys.keys_secret(setting.namespace)],
)
"""The ConfigMap with the features and the address of the manager, and the key of its paths."""
