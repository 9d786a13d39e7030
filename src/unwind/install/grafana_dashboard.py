"""The Grafana dashboard of Unwind, as the JSON model that Grafana imports."""

from __future__ import annotations

from typing import Any

import msgspec

_WIDTH = 24
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One panel."""

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    """PromQL expressions, each with its legend."""
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8


PANELS = (
    Panel(
        title="Teardowns in progress",
        description="Deletions that have not finished, by phase.",
        queries=(('max by (phase) (unwind_teardowns{phase=~"Pending|Removing|Held"})', "{{phase}}"),),
        kind="stat",
    ),
    Panel(
        title="Longest held",
        description="How long the longest blocked teardown has been blocked.",
        queries=(("max(unwind_teardown_held_seconds)", "held"),),
        kind="stat",
        unit="s",
    ),
    Panel(
        title="Clusters without a gate",
        description="Clusters that Cluster API would delete without waiting for add-ons that must be removed.",
        queries=(("max(unwind_gate_unarmed_clusters)", "clusters"),),
        kind="stat",
    ),
    Panel(
        title="Held teardowns",
        description="What blocks each of them, and who must act.",
        queries=(("max without (instance, pod, job) (unwind_teardown_held_seconds)", ""),),
        kind="table",
        unit="s",
        width=24,
    ),
    Panel(
        title="Teardowns",
        description="All Teardowns that exist, by cause and phase.",
        queries=(("max by (cause, phase) (unwind_teardowns)", "{{cause}} {{phase}}"),),
    ),
    Panel(
        title="Objects removed",
        description="Objects that were removed and verified absent, per second.",
        queries=(("sum by (cause) (rate(unwind_objects_removed_total[5m]))", "{{cause}}"),),
        unit="ops",
    ),
    Panel(
        title="Duration of teardowns",
        description="From the request to the end, median and 95th percentile.",
        queries=tuple(
            (
                f"histogram_quantile({quantile}, sum by (le) (rate(unwind_teardown_duration_seconds_bucket[1h])))",
                legend,
            )
            for quantile, legend in ((0.5, "median"), (0.95, "95 %"))
        ),
        unit="s",
    ),
    Panel(
        title="Blockers",
        description="Teardowns in progress that are blocked, by reason.",
        queries=(("max by (reason) (unwind_teardown_blockers)", "{{reason}}"),),
    ),
    Panel(
        title="Left behind",
        description="Objects in the ledgers of all Teardowns that exist.",
        queries=(("max by (cause) (unwind_ledger_entries)", "{{cause}}"),),
    ),
    Panel(
        title="Answers to hooks",
        description="Answers to lifecycle hooks of Cluster API, per second.",
        queries=(("sum by (hook, answer) (rate(unwind_gate_answers_total[5m]))", "{{hook}} {{answer}}"),),
        unit="ops",
    ),
    Panel(
        title="Shards",
        description="Shards that each manager owns. The sum is 16.",
        queries=(("unwind_shards_owned", "{{instance}}"),),
    ),
    Panel(
        title="Queues",
        description="Keys that wait for a worker.",
        queries=(("sum by (controller) (unwind_queue_depth)", "{{controller}}"),),
    ),
    Panel(
        title="API requests",
        description="Requests to API servers per second, by status.",
        queries=(("sum by (status) (rate(unwind_api_call_seconds_count[5m]))", "{{status}}"),),
        unit="reqps",
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    panels = []
    x = y = 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > _WIDTH:
            x, y = 0, y + _HEIGHT
        panels.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": _HEIGHT}))
        x += panel.width
    return {
        "uid": "unwind",
        "title": "Unwind",
        "description": "Deletions of clusters, add-ons and objects.",
        "tags": ["kubernetes", "unwind"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def _panel(panel: Panel, number: int, position: dict[str, int]) -> dict[str, Any]:
    table = panel.kind == "table"
    return {
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "type": panel.kind,
        "datasource": _SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
                "instant": table,
                "format": "table" if table else "time_series",
            }
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }
