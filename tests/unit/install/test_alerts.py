"""Alerts and the dashboard use metrics that exist, and each alert has a section in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from unwind.install.alerts import ALERTS, prometheus_rule
from unwind.install.grafana_dashboard import PANELS, dashboard

DOCS = Path(__file__).parents[3] / "docs"


def test_every_alert_has_a_section_and_every_section_is_an_alert() -> None:
    sections = re.findall(r"^## (.+)$", (DOCS / "alerts.md").read_text(), re.MULTILINE)
    assert sections == [alert.name for alert in ALERTS]


def test_every_metric_that_is_queried_is_in_the_reference() -> None:
    known = set(re.findall(r"^\| `(unwind_\w+)`", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE))
    queried = [alert.expr for alert in ALERTS] + [query for panel in PANELS for query, _ in panel.queries]
    used = {name for text in queried for name in re.findall(r"unwind_\w+", text)}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in used} - known == set()


def test_a_runbook_is_linked_where_its_page_has_an_address() -> None:
    [group] = prometheus_rule("unwind-system", runbooks="https://docs.example/alerts")["spec"]["groups"]
    assert group["rules"][0]["annotations"]["runbook_url"] == "https://docs.example/alerts#unwindteardownheld"
    [group] = prometheus_rule("unwind-system")["spec"]["groups"]
    assert "runbook_url" not in group["rules"][0]["annotations"]


def test_panels_do_not_overlap() -> None:
    taken = [
        (x, y)
        for panel in dashboard()["panels"]
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
