"""Names of the manager's Service, ServiceAccount and Secret, and how the API server calls its webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import features, names
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CONFIG_MAPS, SERVICE_ACCOUNTS
from unwind.kube.errors import NotFoundError
from unwind.server import path_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.features import Features
    from unwind.api.rights import Setting
    from unwind.kube.client import Client

SERVICE = "unwind"
"""The Service of a manager that runs in the cluster: unwind.NAMESPACE.svc."""
MANAGER = "unwind"
"""The name of the manager's ServiceAccount, roles and bindings."""
CERTIFICATE = "unwind-serving-cert"
"""The Secret with the serving certificate of the replicas, and its CA bundle in `ca.crt`."""
PORT = 443
"""The port of the Service."""
SERVICE_PORT = f"https:{SERVICE}:{PORT}"
"""The name by which the API server's proxy calls the Service."""
HTTPS_PORT, METRICS_PORT = 9443, 8080
"""The ports of the Pods."""
REGISTRATION = "unwind-registration"
"""The ConfigMap with the installed features, and the ExtensionConfig, from which the manager restores it."""
REGISTRATION_KEY = "extensionconfig.json"
FEATURES_KEY = "features"
"""The installed features in the same ConfigMap, separated by commas."""
MARK = {names.MANAGED_BY_LABEL: names.MANAGED_BY_UNWIND, names.PART_OF_LABEL: names.MANAGED_BY_UNWIND}
"""The labels of every object of ours."""


def manager_object(what: str) -> Callable[[str], str]:
    """The name of an object that there is one of for each manager, by the manager's namespace."""
    return lambda namespace: f"{MANAGER}-{what}.{namespace}"


def webhook(setting: Setting, path: str) -> dict[str, Any]:
    """The clientConfig by which the API server calls the manager at a path."""
    path = path_segments.prefix(setting.path_key, path) + path
    if setting.url:
        return {"url": setting.url.rstrip("/") + path}
    return {"service": {"namespace": setting.namespace, "name": SERVICE, "path": path, "port": PORT}}


def granted_role(setting: Setting, name: str, **role: Any) -> list[dict[str, Any]]:
    """A ClusterRole for the manager, with its binding."""
    return [
        {
            "apiVersion": CLUSTER_ROLES.api_version,
            "kind": CLUSTER_ROLES.kind,
            "metadata": {"name": name},
            **role,
        },
        {
            "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
            "kind": CLUSTER_ROLE_BINDINGS.kind,
            "metadata": {"name": name},
            "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": name},
            "subjects": [{"kind": SERVICE_ACCOUNTS.kind, "name": MANAGER, "namespace": setting.namespace}],
        },
    ]


def with_install_labels(manifest: dict[str, Any]) -> dict[str, Any]:
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **MARK}}}


def is_ours(obj: dict[str, Any]) -> bool:
    """Whether `unwind install`, the chart or the manager created the object."""
    labels: dict[str, str] = obj["metadata"].get("labels") or {}
    manager = labels.get(names.MANAGED_BY_LABEL)
    return manager == names.MANAGED_BY_UNWIND or (
        manager == names.MANAGED_BY_HELM and labels.get(names.PART_OF_LABEL) == names.MANAGED_BY_UNWIND
    )


async def recorded_features(client: Client, namespace: str) -> Features | None:
    """The features that were installed; None if Unwind is not installed in this namespace."""
    try:
        found = await client.get(CONFIG_MAPS, REGISTRATION, namespace=namespace)
    except NotFoundError:
        return None
    written = (found.get("data") or {}).get(FEATURES_KEY)
    if written is None:
        return features.UNRECORDED
    return features.parse(written, source=f"ConfigMap {namespace}/{REGISTRATION}")


def recorded_extension(config_map: dict[str, Any], version: str) -> dict[str, Any] | None:
    """The ExtensionConfig recorded in our ConfigMap, in the given version; None if there is none."""
    try:
        document = msgspec.json.decode(config_map["data"][REGISTRATION_KEY])
    except (KeyError, TypeError, msgspec.DecodeError):
        return None
    return document | {"apiVersion": version} if isinstance(document, dict) else None
