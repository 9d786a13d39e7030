"""The objects that monitor the manager: ServiceMonitor, PrometheusRule and the dashboard, for the chart."""

from __future__ import annotations

from typing import Any

import msgspec

from unwind.api.names import NAME_LABEL
from unwind.api.resources import CONFIG_MAPS, Resource
from unwind.install import alerts
from unwind.install.grafana_dashboard import dashboard
from unwind.server.manager_names import CERTIFICATE, MANAGER, SERVICE, with_install_labels

Object = dict[str, Any]

SERVICE_MONITORS = Resource("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor")
DASHBOARD = "unwind-dashboard"
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - the path of Prometheus' own token


def monitoring_objects(namespace: str, *, labels: dict[str, str]) -> list[Object]:
    """All of them. `labels`: by which the Prometheus operator selects its objects."""
    found = [_service_monitor(namespace), alerts.prometheus_rule(namespace)]
    for item in found:
        item["metadata"]["labels"] = labels
    return [with_install_labels(item) for item in (*found, _dashboard(namespace))]


def _service_monitor(namespace: str) -> Object:
    endpoint = {
        "port": "metrics",
        "path": "/metrics",
        "scheme": "https",
        "bearerTokenFile": _TOKEN,
        "tlsConfig": {
            "serverName": f"{SERVICE}.{namespace}.svc",
            "ca": {"secret": {"name": CERTIFICATE, "key": "ca.crt"}},
        },
    }
    return {
        "apiVersion": SERVICE_MONITORS.api_version,
        "kind": SERVICE_MONITORS.kind,
        "metadata": {"name": MANAGER, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {NAME_LABEL: MANAGER}}, "endpoints": [endpoint]},
    }


def _dashboard(namespace: str) -> Object:
    """A ConfigMap that Grafana's sidecar finds by its label."""
    return {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {"name": DASHBOARD, "namespace": namespace, "labels": {"grafana_dashboard": "1"}},
        "data": {"unwind.json": msgspec.json.format(msgspec.json.encode(dashboard()), indent=2).decode()},
    }
