"""The options of a manager that runs in the cluster: what the values of the chart and `unwind install --image` set."""

from __future__ import annotations

from typing import Any

import msgspec

Object = dict[str, Any]


def _resources() -> Object:
    return {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


class ManagerWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The Deployment of the manager. Values are written as they are, so that an empty list stays an empty list."""

    image: str
    replicas: int = 2
    pull_policy: str = "IfNotPresent"
    pull_secrets: list[Object] = []
    """References to Secrets with credentials of the registry: [{"name": …}]."""
    args: list[str] = []
    """Arguments of `unwind run`. Each option can also be set by its environment variable."""
    env: list[Object] = []
    """Environment variables, as in a container."""
    resources: Object = msgspec.field(default_factory=_resources)
    node_selector: dict[str, str] = {}
    tolerations: list[Object] = []
    priority_class: str = ""
    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}
    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    extra_ca: str = "unwind-extra-ca"
    """A ConfigMap with further CA certificates for chart repositories. It need not exist."""
    volumes: list[Object] = []
    """Further volumes of the Pod, such as the one of the archive."""
    volume_mounts: list[Object] = []
    """Where the container has them."""
    uninstall_args: list[str] = []
    """Arguments of `unwind uninstall` before `helm uninstall`, such as --leave-addons."""
