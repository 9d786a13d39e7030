"""What has dropped out of a profile."""

from __future__ import annotations

from typing import Any

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Entry, EntryState, LedgerNote
from unwind.deploy.prune import dropped, dropped_charts


def entry(name: str, *, kind: str = "ConfigMap", source: str = "ConfigMap fleet/s", **more: Any) -> Entry:
    ref = ObjectRef(kind=kind, namespace="web", name=name, uid=f"u-{name}")
    return Entry(object=ref, state=EntryState.CONFIRMED.value, source=source, **more)


def test_what_is_no_longer_wanted_goes() -> None:
    entries = {"a": entry("a"), "b": entry("b", source="Secret fleet/s")}
    assert list(dropped(entries, {"a"})) == ["b"]


def test_what_a_chart_has_put_there_is_none_of_it() -> None:
    assert dropped({"a": entry("a", source="Helm web/release")}, set()) == {}


def test_what_was_kept_before_is_looked_at_again() -> None:
    kept = entry("a", ledger=LedgerNote(reason="KeptByPolicy", by="unwind"))
    assert list(dropped({"a": kept}, set())) == ["a"]


def test_the_claims_of_a_set_go_when_the_set_did_and_not_before() -> None:
    claim = entry("data-db-0", kind="PersistentVolumeClaim", source="StatefulSet db")
    db = entry("db", kind="StatefulSet")
    assert list(dropped({"set": db, "pvc": claim}, {"set"})) == []
    assert list(dropped({"set": db, "pvc": claim}, set())) == ["set", "pvc"]
    assert list(dropped({"pvc": claim}, set())) == ["pvc"]
    # One that is kept stays in the ledger.
    kept = msgspec.structs.replace(claim, kept=True)
    assert list(dropped({"set": db, "pvc": kept}, set())) == ["set"]
    assert list(dropped({"pvc": kept}, set())) == []


def test_what_a_user_or_a_deadline_released_is_not_pruned_again() -> None:
    for reason in ("Forced", "Deadline"):
        assert dropped({"a": entry("a", ledger=LedgerNote(reason=reason, by="ann"))}, set()) == {}


def test_claims_of_a_set_that_another_source_or_chart_has_stay() -> None:
    claim = entry("data-db-0", kind="PersistentVolumeClaim", source="StatefulSet db")
    of_chart = entry("db", kind="StatefulSet", source="Helm web/release")
    assert dropped({"set": of_chart, "pvc": claim}, set()) == {}
    assert dropped_charts({"set": of_chart, "pvc": claim}, {"Helm web/release"}) == {}
    elsewhere = msgspec.structs.replace(of_chart, object=ObjectRef(kind="StatefulSet", namespace="other", name="db"))
    assert list(dropped({"set": elsewhere, "pvc": claim}, set())) == ["pvc"]
    gone = msgspec.structs.replace(of_chart, state=EntryState.REMOVED.value)
    assert list(dropped({"set": gone, "pvc": claim}, set())) == ["pvc"]


def test_a_chart_that_is_no_longer_wanted_goes_with_its_hooks_and_claims() -> None:
    entries = {
        "manifest": entry("a"),
        "wanted": entry("b", source="Helm web/wanted"),
        "hook": entry("c", source="Helm web/release hook"),
        "set": entry("db", kind="StatefulSet", source="Helm web/release"),
        "pvc": entry("data-db-0", kind="PersistentVolumeClaim", source="StatefulSet db"),
    }
    assert list(dropped_charts(entries, {"Helm web/wanted"})) == ["hook", "set", "pvc"]


def test_what_a_prune_of_a_chart_left_is_decided_again_unless_the_decision_is_final() -> None:
    def left(reason: str, **more: Any) -> dict[str, Entry]:
        return {"a": entry("a", source="Helm web/release", ledger=LedgerNote(reason=reason, by="unwind"), **more)}

    assert list(dropped_charts(left("ForeignContent"), set())) == ["a"]
    assert dropped_charts(left("KeptByPolicy", kept=True), set()) == {}, "the chart has Helm keep it"
    for final in ("NotOurs", "Forced", "Deadline"):
        assert dropped_charts(left(final), set()) == {}
