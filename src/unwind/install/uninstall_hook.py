"""The hook of the chart that runs before `helm uninstall`: a Job that runs `unwind uninstall --in-cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, names
from unwind.api.features import ALL
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.api.rights import Right
from unwind.install import workload
from unwind.install.manifests import everything, manifests, resource_of
from unwind.server import path_keys
from unwind.server.manager_names import CERTIFICATE, MANAGER, REGISTRATION, with_install_labels

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.api.rights import Setting
    from unwind.api.workload import ManagerWorkload

Object = dict[str, Any]

NAME = "unwind-uninstall"
"""The name of the Job, its ServiceAccount and its roles."""
_WEIGHT = f"{names.HELM_HOOK_ANNOTATION}-weight"
_POLICY = f"{names.HELM_HOOK_ANNOTATION}-delete-policy"
# Less than Helm's default timeout of 300 s: Helm then deletes the rights of the Job, which would stop halfway. The
# Leases of replicas that were killed expire after 30 s.
_DEADLINE = 280
_LABELS = {names.NAME_LABEL: NAME}
_DELETED = (
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    capi.EXTENSION_CONFIGS,
)


def hook_objects(setting: Setting, running: ManagerWorkload) -> list[Object]:
    """The Job and its rights, in the order of their creation. Helm deletes them when the Job has succeeded."""
    return [*_rights(setting), _hook(_job(setting.namespace, running), weight=0)]


def _rights(setting: Setting) -> list[Object]:
    home = setting.namespace
    wide = f"{NAME}:{home}"
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": NAME, "namespace": home}
    everywhere = [
        # Any object may have one of our finalizers. The manager's role has the right to remove it where it puts it.
        Right("*", ("*",), ("list",)),
        *_deleting(setting),
    ]
    at_home = [
        Right.on(DEPLOYMENTS, ("get", "patch"), names=(MANAGER,)),
        Right("", (CONFIG_MAPS.plural,), ("get", "delete"), (REGISTRATION,)),
        # The registration is created again if the uninstallation is refused after it was deleted.
        Right("", (CONFIG_MAPS.plural,), ("create",)),
        Right("", (SECRETS.plural,), ("get", "delete"), (CERTIFICATE, names.RECORD_KEY_SECRET, path_keys.NAME)),
    ]
    roles = [
        _object(SERVICE_ACCOUNTS, NAME, home),
        _object(CLUSTER_ROLES, wide) | {"rules": [right.rule() for right in everywhere]},
        _object(CLUSTER_ROLE_BINDINGS, wide) | {"roleRef": _role(CLUSTER_ROLES, wide), "subjects": [subject]},
        _object(ROLES, NAME, home) | {"rules": [right.rule() for right in at_home]},
        _object(ROLE_BINDINGS, NAME, home) | {"roleRef": _role(ROLES, NAME), "subjects": [subject]},
        # Finalizers are removed, and guarded objects deleted, with the rights of the manager.
        *(
            _bound(item, f"{NAME}-as-{item['metadata']['name']}", subject)
            for item in manifests(setting)
            if resource_of(item) in (CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS)
        ),
    ]
    return [_hook(item, weight=-10) for item in roles]


def _bound(binding: Object, name: str, subject: Object) -> Object:
    """The same role, bound to the hook."""
    resource = resource_of(binding)
    place = _object(resource, name, binding["metadata"].get("namespace"))
    return place | {"roleRef": binding["roleRef"], "subjects": [subject]}


def _deleting(setting: Setting) -> list[Right]:
    """What a manager registers is deleted, by name only, also that of features which were installed before."""
    rights, whole = [], everything(msgspec.structs.replace(setting, features=ALL))
    for resource in _DELETED:
        found = {item["metadata"]["name"] for item in whole if resource_of(item) == resource}
        rights.append(Right.on(resource, ("get", "delete"), names=tuple(sorted(found))))
    return rights


def _job(namespace: str, running: ManagerWorkload) -> Object:
    container = {
        "name": "uninstall",
        "image": running.image,
        "imagePullPolicy": running.pull_policy,
        "args": ["uninstall", "--in-cluster", *running.uninstall_args],
        "env": workload.environment(running),
        "resources": running.resources,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": workload.CONTAINER_SECURITY,
        "volumeMounts": workload.VOLUME_MOUNTS,
    }
    spec = {
        "serviceAccountName": NAME,
        "restartPolicy": "Never",
        "imagePullSecrets": running.pull_secrets,
        "priorityClassName": running.priority_class,
        "nodeSelector": running.node_selector,
        "tolerations": running.tolerations,
        "securityContext": workload.POD_SECURITY,
        "containers": [container],
        "volumes": workload.volumes(running),
    }
    return _object(JOBS, NAME, namespace) | {
        "spec": {
            # A refusal is final until a user acts. A Pod that lost its node did not refuse.
            "backoffLimit": 0,
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "activeDeadlineSeconds": _DEADLINE,
            "template": {"metadata": {"labels": _LABELS, "annotations": running.pod_annotations}, "spec": spec},
        }
    }


def _hook(manifest: Object, *, weight: int) -> Object:
    annotations = {
        names.HELM_HOOK_ANNOTATION: "pre-delete",
        _WEIGHT: str(weight),
        # Also the rights of a Job that failed: Helm deletes hooks that came before it as succeeded.
        _POLICY: "before-hook-creation,hook-succeeded",
    }
    written = with_install_labels(manifest)
    return written | {"metadata": written["metadata"] | {"annotations": annotations}}


def _role(resource: Resource, name: str) -> Object:
    return {"apiGroup": resource.group, "kind": resource.kind, "name": name}


def _object(resource: Resource, name: str, namespace: str | None = None) -> Object:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
