"""Live pages: what is sent when something changes."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.unit.dashboard.test_pages import teardown
from unwind.api.capi import CLUSTERS
from unwind.dashboard import live as live_module
from unwind.dashboard import server
from unwind.dashboard.guard import Sessions
from unwind.dashboard.live import LiveTeardowns
from unwind.dashboard.server import Dashboard
from unwind.kube.client import Client
from unwind.kube.decoding import Metadata
from unwind.kube.kubeconfig import ClusterConnection
from unwind.members import contents
from unwind.members.contents import Content
from unwind.members.members import Members
from unwind.why.answers import Kubectl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from unwind.api.resources import Resource
    from unwind.api.unwind import Teardown


class Known(LiveTeardowns):
    """Teardowns that a test knows of, instead of a watch."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.known: dict[str, Teardown] = {}

    @property
    def synced(self) -> bool:
        return True

    def all(self) -> list[Teardown]:
        return list(self.known.values())

    def put(self, *items: Teardown) -> None:
        self.known |= {item.metadata.name: item for item in items}
        self._wake()


async def test_labels_that_a_cluster_got_after_it_was_listed_are_read_when_its_deletion_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_module, "_PAUSE", 0.0)
    monkeypatch.setattr(live_module, "_LABELLED", (CLUSTERS,))
    live = LiveTeardowns(Client(ClusterConnection(server="http://127.0.0.1:1")))
    before, after = teardown("before"), teardown("after", text="Cluster fleet/after", version="2")
    uid = after.spec.target.uid
    labels: dict[str, str] = {}

    async def of_kind(client: Client, resource: Resource) -> list[Content]:
        return [Content(resource, Metadata(name="after", uid=uid, resource_version="1", labels=dict(labels)))]

    monkeypatch.setattr(contents, "of_kind", of_kind)
    live._informer._tell(live._informer.store.put(before))
    reading = asyncio.create_task(live._read_labels())
    await eventually(lambda: uid in live.labels, "the first list")
    labels["env"] = "prod"
    live._informer._tell(live._informer.store.put(after))
    await eventually(lambda: live.labels[uid] == {"env": "prod"}, "its labels", within=5.0)
    reading.cancel()


def event(raw: bytes) -> tuple[str, Any]:
    name, data, *_ = raw.decode().split("\n")
    return name.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))


async def test_only_what_has_changed_is_sent_and_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CALM", 0.0)
    client = Client(ClusterConnection(server="http://127.0.0.1:1"))
    live = Known(client)
    pages = Dashboard(
        client, live=live, fleet=Members(client), sessions=Sessions(), kubectl=Kubectl(), home="unwind-system"
    )

    def stream() -> AsyncIterator[bytes]:
        return pages._updates(lambda: pages._pages.fleet(live.all()))

    live.put(teardown("one", "Removing"), teardown("two", "Removing"))
    events = stream()
    async with aclosing(events):  # type: ignore[type-var]
        assert event(await anext(events)) == ("trouble", "")
        name, first = event(await anext(events))
        assert name == "update"
        assert set(first["parts"]) == {"one", "two"} == set(first["order"])
        live.put(teardown("two", "Held", version="2"))
        _, second = event(await anext(events))
        assert (second["order"], set(second["parts"])) == (["two", "one"], {"two"})
        del live.known["one"]
        live.put()
        _, third = event(await anext(events))
        assert third == {"order": ["two"], "parts": {}}
        # A page that is opened later has all of it.
        later = stream()
        async with aclosing(later):  # type: ignore[type-var]
            await anext(later)
            assert set(event(await anext(later))[1]["parts"]) == {"two"}
        live.close()
        assert event(await anext(events)) == ("end", "")
    assert not live._listeners


SCRIPTS = {file.name: file.read_text() for file in (Path(server.__file__).parent / "static").glob("*.js")}


def test_the_modules_of_the_page_import_what_is_exported() -> None:
    """Nothing builds them: a name that does not exist would be found by a browser only."""
    assert "app.js" in SCRIPTS
    for name, script in SCRIPTS.items():
        for names, module in re.findall(r'^import \{ (.+) \} from "\./(.+)";$', script, re.MULTILINE):
            for one in names.split(", "):
                exported = rf"^export (async )?(function|const|let) {one}\b"
                assert re.search(exported, SCRIPTS[module], re.MULTILINE), (name, one, module)
                assert len(re.findall(rf"\b{one}\b", script)) > 1, (name, one)
        # Relative, from this server only.
        assert len(re.findall(r"\bimport\b", script)) == len(
            re.findall(r'^import \{ .+ \} from "\./', script, re.MULTILINE)
        )


def test_the_program_of_the_page_builds_no_markup() -> None:
    script = "".join(SCRIPTS.values())
    # Through one policy, from what the server has escaped.
    assert script.count(".innerHTML") == 1
    for forbidden in ("outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "document.cookie"):
        assert forbidden not in script
