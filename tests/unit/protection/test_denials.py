"""Every denial is counted, written down and shown on the object; a dry run is not."""

from __future__ import annotations

from typing import Any

import structlog

from tests.unit.protection.asking import QUESTION, Known, Webhook, labelled, review
from unwind.api.names import EventReason


async def test_a_denial_is_counted_written_down_and_shown() -> None:
    webhook = Webhook()
    body = review("Deployment", labelled("Always", "web", namespace="shop"), group="apps")
    with structlog.testing.capture_logs() as logged:
        await webhook.ask(body)
    assert webhook.counted("deployments.apps", "Always") == 1
    [line] = logged
    assert line["object"] == "Deployment/shop/web"
    assert line["uid"] == "uid-web"
    assert (line["user"], line["groups"], line["extra"]) == ("alice", ["admins"], {"scopes": ["all"]})
    assert (line["asked_by"], line["review"], line["operation"]) == ("10.0.0.1", QUESTION, "DELETE")
    assert (line["reason"], line["log_level"]) == ("Always", "warning")
    assert line["why"] == "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Always"

    [what] = webhook.recorder._pending
    regarding = what.regarding
    assert (regarding.api_version, regarding.kind, regarding.namespace) == ("apps/v1", "Deployment", "shop")
    assert (regarding.name, regarding.uid) == ("web", "uid-web")
    assert (what.reason, what.type, what.action) == (EventReason.REFUSED, "Warning", "Delete")
    assert what.note == line["why"]


async def test_a_dry_run_has_the_same_answer_and_leaves_no_trace() -> None:
    webhook = Webhook(known=Known(pods=3))
    said = []
    for dry in (False, True):
        with structlog.testing.capture_logs() as logged:
            said.append(await webhook.ask(review("Namespace", labelled("Cascading"), dryRun=dry)))
        assert bool(logged) is not dry
    assert said[0] == said[1] != ""
    assert webhook.counted("namespaces", "Cascading") == 1
    assert len(webhook.recorder._pending) == 1


async def test_an_allowance_and_a_bad_request_are_no_denials() -> None:
    webhook = Webhook()
    old: list[Any] = [labelled(None), labelled("Always", metadata={"deletionTimestamp": "now"}), "x"]
    with structlog.testing.capture_logs() as logged:
        for item in old:
            await webhook.ask(review("Namespace", item))
    assert logged == []
    assert not webhook.recorder._pending


async def test_kinds_that_nobody_knows_share_one_counter() -> None:
    webhook = Webhook()
    for kind in ("Widget", "Gadget"):
        await webhook.ask(review(kind, labelled("Always"), group="example.dev"))
    assert webhook.counted("other", "Always") == 2


async def test_a_label_that_is_refused_is_counted_and_has_no_event() -> None:
    webhook = Webhook()
    body = review("Service", None, new=labelled("always"), operation="CREATE")
    with structlog.testing.capture_logs() as logged:
        assert await webhook.label(body)
    assert [line["operation"] for line in logged] == ["CREATE"]
    assert webhook.counted("services", "UnknownValue") == 1
    assert not webhook.recorder._pending
