"""The table of threats is whole: each kind that the manager watches has a row."""

from __future__ import annotations

from pathlib import Path

from tests.plane.support.threats import THREATS
from unwind.api.rights import Setting
from unwind.install.manifests import manifests

PAGE = Path(__file__).parents[2] / "docs" / "threat-model.md"


def watched() -> set[str]:
    """The resources that the installed roles let the manager watch, as RBAC names them."""
    rules = [
        rule
        for manifest in manifests(Setting())
        if manifest["kind"] in ("ClusterRole", "Role")
        for rule in manifest.get("rules", ())
    ]
    return {
        f"{resource}.{group}".rstrip(".")
        for rule in rules
        if {"watch", "*"} & set(rule["verbs"])
        for group in rule.get("apiGroups", ())
        for resource in rule["resources"]
    }


def test_every_resource_that_the_manager_may_watch_has_a_row() -> None:
    assert watched() - {threat.resource for threat in THREATS} == set()


def test_the_page_explains_every_resource_of_the_table() -> None:
    text = PAGE.read_text()
    assert [threat.resource for threat in THREATS if f"`{threat.resource}`" not in text] == []


def test_every_row_tries_something_or_says_why_not() -> None:
    for threat in THREATS:
        assert bool(threat.attempt) != bool(threat.reason), threat
        assert bool(threat.attempt) == bool(threat.must_not), threat
