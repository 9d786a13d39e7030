"""What has to be written so that an object is as it should be."""

from __future__ import annotations

from typing import Any

from unwind.server.webhook_controller import mended, with_authorities

WANTED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Thing",
    "metadata": {"name": "one", "labels": {"ours": "yes"}},
    "spec": {"a": 1, "inner": {"b": 2}, "items": [{"c": 3}]},
}


def found(**spec: Any) -> dict[str, Any]:
    metadata = {"name": "one", "labels": {"ours": "yes", "more": "too"}, "resourceVersion": "5"}
    return {"metadata": metadata, "spec": WANTED["spec"] | spec, "status": {"whatever": True}}


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert mended(found(), WANTED) == {}


def test_what_differs_is_written_and_what_nobody_wants_there_is_taken_out() -> None:
    assert mended(found(a=2), WANTED) == {"spec": {"a": 1}}
    assert mended(found(inner={"b": 2, "x": 1}), WANTED) == {"spec": {"inner": {"x": None}}}
    assert mended(found(more="x"), WANTED) == {"spec": {"more": None}}
    assert mended(found(items=[{"c": 3}, {"d": 4}]), WANTED) == {"spec": {"items": [{"c": 3}]}}
    assert mended({"metadata": found()["metadata"]}, WANTED) == {"spec": WANTED["spec"]}
    assert mended(found(inner="text"), WANTED) == {"spec": {"inner": {"b": 2}}}


def test_authorities_that_others_have_written_stay_with_their_webhook() -> None:
    wanted = {"webhooks": [{"name": "a", "clientConfig": {"url": "x"}}, {"name": "b", "clientConfig": {"url": "y"}}]}
    there = {"webhooks": [{"name": "b", "clientConfig": {"url": "old", "caBundle": "B"}}, {"name": "c"}]}
    assert with_authorities(wanted, there)["webhooks"] == [
        {"name": "a", "clientConfig": {"url": "x"}},
        {"name": "b", "clientConfig": {"url": "y", "caBundle": "B"}},
    ]
    assert with_authorities({"spec": {}}, there) == {"spec": {}}
