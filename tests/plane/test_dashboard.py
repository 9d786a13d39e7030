"""`unwind dashboard` on a real control plane, over HTTP and in a real browser."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import expect

from tests.plane.support.cluster_teardowns import manager, scene
from tests.plane.support.controllers import HOLD
from tests.plane.support.dashboards import calling, chromium, dashboard, exchange, opened, shoot
from tests.plane.support.teardown_records import NOW, STUCK, Record
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import TEARDOWNS, LedgerNote, Release, TimelineEntry
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from tests.plane.support.dashboards import Started
    from unwind.local.plane import Plane

BAD = ("serious", "critical")
EVIL = "<img src=x onerror=document.title='owned'>"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def site(plane: Plane) -> AsyncIterator[Started]:
    async with dashboard(plane.management.kubeconfig) as site:
        yield site


# Over HTTP


async def test_the_token_works_once_and_data_needs_its_session(site: Started, record: Record) -> None:
    async with aiohttp.ClientSession() as http:
        assert (await exchange(http, site, "guessed"))[0] == 403
        status, session = await exchange(http, site, site.token)
        assert status == 200
        assert (await exchange(http, site, site.token))[0] == 403
        for headers, expected in (
            ({}, 401),
            ({"X-Unwind-Session": site.token}, 401),
            ({"X-Unwind-Session": session}, 200),
        ):
            async with http.get(f"{site.origin}/api/fleet", headers=headers) as answer:
                assert answer.status == expected
                if expected == 200:
                    while record.title.encode() not in await answer.content.readline():
                        pass
        # What leads here under another name is refused.
        headers = {"Host": f"rebound.example:{site.origin.rpartition(':')[2]}", "X-Unwind-Session": session}
        async with http.get(f"{site.origin}/api/ledger", headers=headers) as answer:
            assert answer.status == 403
        # What is only read cannot be written.
        for path in ("/api/fleet", f"/api/teardowns/{record.uid}", "/api/ledger"):
            headers = {"Origin": site.origin, "X-Unwind-Session": session}
            async with http.post(f"{site.origin}{path}", headers=headers) as answer:
                assert answer.status == 405


async def test_the_ledger_is_exported_as_csv_and_json(site: Started, record: Record) -> None:
    await record.left("old", LedgerNote(reason="Forced", message="=cmd|' /C calc'!A1", by="ada", at=NOW))
    await record.left("other", LedgerNote(reason="Forced", message="x", by="bob", at=NOW))
    async with calling(site) as caller:
        cluster = urlencode({"cluster": record.title})
        _, text = await caller.get(f"/api/ledger?form=csv&{cluster}&by=ada")
        [row] = csv.DictReader(io.StringIO(text, newline=""))
        assert (row["name"], row["by"], row["message"]) == ("old", "ada", "'=cmd|' /C calc'!A1")
        _, text = await caller.get(f"/api/ledger?form=json&{cluster}")
        assert {item["object"]["name"] for item in json.loads(text)["left"]} == {"old", "other"}


async def test_errors_are_told_and_do_not_end_the_dashboard(site: Started) -> None:
    async with calling(site) as caller:
        for path, status, said in (
            ("/api/plan?target=cluster/none", 502, "cluster 'none' not found"),
            ("/api/plan?target=", 400, "no target"),
            ("/api/plan?target=ns/none", 404, "not found"),
            ("/api/plan?target=ns/x&cluster=prod", 400, "--cluster does not apply"),
            ("/api/plan?target=release/none", 502, "not found"),
            ("/api/stuck?older=soon", 400, "invalid duration"),
            ("/api/teardowns/none/why", 404, "not found"),
        ):
            found, text = await caller.get(path)
            assert found == status, text
            assert said in json.loads(text)["error"]


# In a browser


async def test_the_list_follows_the_cluster_and_keeps_its_filters_on_reload(
    browser: Browser, site: Started, record: Record, plane: Plane
) -> None:
    other = Record(plane.management.client)
    await other.begin()
    await other.comes_to("Complete", "Removed", "Removed", "10/10")
    async with opened(browser, site.address) as page:
        row = page.get_by_role("row").filter(has_text=record.name)
        await expect(row).to_contain_text("Pending")
        assert "token" not in page.url
        await record.comes_to("Removing", "Removing", "Waiting", "3/10")
        await expect(row).to_contain_text("Removing")
        await expect(row).to_contain_text("3/10")
        await record.comes_to("Held", "Removed", "Removing", "7/10", blockers=(STUCK,))
        await expect(row).to_contain_text("Service ingress/nginx has the finalizer example.dev/cloud")
        await expect(row).to_contain_text("the cloud's controller")
        await expect(page.locator("#live > tr").first).to_have_attribute("data-state", "held")
        await shoot(page, "fleet")

        done = page.get_by_role("row").filter(has_text=other.name)
        await expect(done).to_be_visible()
        await page.get_by_label("Search").fill(f"{record.name} ada")
        await expect(done).to_be_hidden()
        await page.get_by_role("button", name="held").click()
        await page.reload()
        await expect(row).to_be_visible()
        await expect(done).to_be_hidden()
        await expect(page.get_by_label("Search")).to_have_value(f"{record.name} ada")
        await expect(page.get_by_role("button", name="held")).to_have_attribute("aria-pressed", "true")
        await page.get_by_role("button", name="finished").click()
        await expect(row).to_be_hidden()
        await expect(page.get_by_text("No teardown matches.")).to_be_visible()
        await page.get_by_role("button", name="finished").click()
        await page.get_by_role("button", name="Clear").click()
        await expect(done).to_be_visible()
        assert "q=" not in page.url
        await page.get_by_label("Cluster").select_option(record.title)
        await expect(done).to_be_hidden()
        await expect(row).to_be_visible()
        await page.get_by_role("button", name="Clear").click()
    found = await other.client.get(TEARDOWNS, other.uid)
    await other.client.delete(TEARDOWNS, other.uid, uid=found["metadata"]["uid"])


async def test_a_teardown_is_followed_live_from_its_first_wave_to_its_end(
    browser: Browser, site: Started, plane: Plane, namespace: str
) -> None:
    it = await scene(plane, namespace)
    await it.add_on("base", objects=2)
    await it.add_on("top", depends_on=("base",), finalizers=(HOLD,), objects=2)
    async with opened(browser, site.address) as page, manager(it.client, clock=StillClock()):
        await it.delete()
        row = page.get_by_role("row").filter(has_text=it.name)
        await expect(row).to_contain_text("Held")
        # Labels are those of the cluster, too.
        label = page.get_by_label("Label")
        await label.fill("!cluster.x-k8s.io/cluster-name")
        await expect(row).to_be_hidden()
        await label.fill(f"cluster.x-k8s.io/cluster-name={it.name}")
        await row.get_by_role("link").click()
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_contain_text("Held")
        await expect(page.get_by_text("1/2", exact=True)).to_be_visible()
        await expect(page.locator(".blockers")).to_contain_text(f"ConfigMap {it.on_member}/top-0")
        await expect(page.locator('[data-key="picture"] svg')).to_be_visible()
        await expect(page.locator(".facts")).to_contain_text("wait, and ask again after")
        # What to do is found out by itself, and is a command to copy.
        await expect(page.locator("#why .command code").first).to_be_visible(timeout=30_000)
        await expect(page.locator("#why")).to_contain_text("kubectl")
        await shoot(page, "teardown")
        objects = page.get_by_role("table", name="Objects of ClusterProfile/top")
        await page.get_by_role("button", name="ClusterProfile/top").click()
        await expect(objects.get_by_role("row").filter(has_text="not gone yet")).to_have_count(2)
        await page.reload()
        await expect(heading).to_contain_text(f"Cluster {namespace}/{it.name}")
        await expect(heading).to_contain_text("Held")
        await expect(objects.get_by_role("row").filter(has_text="not gone yet")).to_have_count(2)
        await it.unblock()
        await it.ended()
        await expect(heading).to_contain_text("Complete")
        await expect(page.locator(".overall .count")).to_have_text("4/4")
        await expect(page.locator(".facts")).to_contain_text("go on")
        await expect(page.locator(".blockers")).to_have_count(0)
        await expect(page.locator("#why")).to_be_hidden()
        await expect(page.locator("#objects")).to_contain_text("The records of removed objects are deleted")
        await expect(page.locator(".timeline")).to_contain_text("Wave 2 started")
        await expect(page.locator(".timeline")).to_contain_text("Finished: Complete")
        await expect(page.get_by_role("img", name=f"Timeline of Cluster {namespace}/{it.name}")).to_be_visible()
    await it.let_go()


async def test_text_from_a_cluster_is_never_markup(browser: Browser, site: Started, record: Record) -> None:
    await record.comes_to(
        "Held", "Removed", "Removing", "7/10", blockers=(msgspec.structs.replace(STUCK, message=EVIL, actor=EVIL),)
    )
    await record.left("old", LedgerNote(reason="Forced", message=EVIL, by=EVIL, at=NOW))
    async with opened(browser, site.address) as page:
        row = page.get_by_role("row").filter(has_text=record.name)
        await expect(row).to_contain_text(EVIL)
        await row.get_by_role("link").click()
        await expect(page.locator(".blockers")).to_contain_text(EVIL)
        await expect(page.locator('[data-key="picture"]')).to_contain_text("<img")
        await page.get_by_role("link", name="Ledger").click()
        await expect(page.get_by_role("row").filter(has_text=record.name)).to_contain_text(EVIL)
        assert await page.locator("main img").count() == 0
        assert await page.title() == "Ledger · Unwind"


async def test_the_ledger_is_searched_and_saved(browser: Browser, site: Started, record: Record) -> None:
    release = Release(reason="Forced", message="the fire", by="ada", at=NOW)
    await record.comes_to("Released", "Removed", "GivenUp", "7/10", left=1, release=release)
    await record.left("old", LedgerNote(reason="Forced", message="the fire", by="ada", at=NOW))
    await record.left("kept", LedgerNote(reason="KeptByPolicy", by="a label", at=NOW), kept=True)
    async with opened(browser, f"{site.origin}/ledger?token={site.token}") as page:
        rows = page.get_by_role("row").filter(has_text=record.name)
        await expect(rows).to_have_count(2)
        await expect(page.get_by_text(f"{record.title} was released by ada")).to_be_visible()
        await page.get_by_label("Search").fill(f"{record.name} fire")
        await expect(rows.filter(has_text="shop/kept")).to_be_hidden()
        await expect(rows.filter(has_text="shop/old")).to_be_visible()
        await page.get_by_label("Search").fill(record.name)
        await page.get_by_label("Person").select_option("ada")
        await expect(rows.filter(has_text="shop/kept")).to_be_hidden()
        await page.reload()
        await expect(rows.filter(has_text="shop/old")).to_be_visible()
        await expect(rows.filter(has_text="shop/kept")).to_be_hidden()
        await shoot(page, "ledger")
        # What is exported is what is shown.
        async with page.expect_download() as saved:
            await page.get_by_role("button", name="Export as CSV").click()
        download = await saved.value
        assert download.suggested_filename == "unwind-ledger.csv"
        text = await asyncio.to_thread(Path(await download.path()).read_text)
        assert "the fire" in text
        assert "KeptByPolicy" not in text
        await page.get_by_label("Person").select_option("")
        await page.get_by_label("Reason").select_option("KeptByPolicy")
        await expect(rows.filter(has_text="shop/old")).to_be_hidden()
        await expect(rows.filter(has_text="shop/kept")).to_be_visible()


async def test_what_is_stuck_and_what_a_deletion_would_do_are_shown(
    browser: Browser, site: Started, plane: Plane, namespace: str
) -> None:
    client = plane.management.client
    metadata = {"name": "held", "namespace": namespace, "finalizers": [HOLD]}
    made = await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    async with opened(browser, site.address) as page:
        await page.get_by_role("link", name="Plan").click()
        await page.get_by_label("Target").fill(f"ns/{namespace}")
        await page.get_by_role("button", name="Show the plan").click()
        await expect(page.get_by_role("heading", level=2)).to_have_text(f"Namespace {namespace}", timeout=30_000)
        await expect(page.locator(".picture svg")).to_be_visible()
        await shoot(page, "plan")
        await client.delete(CONFIG_MAPS, "held", uid=made["metadata"]["uid"], namespace=namespace)
        await page.goto(f"{site.origin}/stuck?older=0s&members=false")
        card = page.locator("article").filter(has_text=f"ConfigMap {namespace}/held")
        await expect(card).to_contain_text(f"blocked by finalizer {HOLD}", timeout=30_000)
        await card.get_by_text("What to do").click()
        await expect(card.locator("code").first).to_contain_text("kubectl patch")
        await shoot(page, "stuck")
    await client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=namespace)


async def test_a_new_tab_of_the_same_browser_has_access_and_another_browser_has_none(
    browser: Browser, site: Started, record: Record
) -> None:
    async with opened(browser, site.address) as page:
        await expect(page.get_by_role("row").filter(has_text=record.name)).to_be_visible()
        tab = await page.context.new_page()
        await tab.goto(f"{site.origin}/")
        await expect(tab.get_by_role("row").filter(has_text=record.name)).to_be_visible()
        context = await browser.new_context()
        stranger = await context.new_page()
        await stranger.goto(site.address)
        await expect(stranger.get_by_role("heading", level=1)).to_have_text("No access from this tab")
        await expect(stranger.get_by_text(record.name)).to_have_count(0)
        await context.close()


async def test_a_hidden_tab_gives_its_connection_back_and_is_brought_up_to_date_later(
    browser: Browser, site: Started, record: Record
) -> None:
    """A browser opens six connections to a host: with more tabs than that, none would get an answer."""
    look = """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    async with opened(browser, site.address) as first:
        tabs = [first, *[await first.context.new_page() for _ in range(7)]]
        for tab in tabs[1:]:
            await tab.goto(f"{site.origin}/")
            await expect(tab.get_by_role("row").filter(has_text=record.name)).to_contain_text("Pending")
            await tab.evaluate(look, True)
        await record.comes_to("Removing", "Removing", "Waiting", "3/10")
        await expect(first.get_by_role("row").filter(has_text=record.name)).to_contain_text("3/10")
        hidden = tabs[1].get_by_role("row").filter(has_text=record.name)
        await expect(hidden).to_contain_text("Pending")
        await tabs[1].evaluate(look, False)
        await expect(hidden).to_contain_text("3/10")


async def test_a_page_on_another_port_can_read_and_write_nothing(
    browser: Browser, site: Started, record: Record
) -> None:
    """The other page knows everything but the session, and even that does not help it."""
    attempts = """async ([origin, token, name]) => {
        const found = {storage: sessionStorage.length};
        const attempt = async (name, path, options) => {
            try { found[name] = (await fetch(origin + path, options)).type; } catch (error) { found[name] = "refused"; }
        };
        await attempt("read", "/api/fleet", {});
        await attempt("readWithHeader", "/api/fleet", {headers: {"X-Unwind-Session": "x"}});
        await attempt("write", "/api/session", {method: "POST", body: JSON.stringify({token})});
        const path = `/api/teardowns/${name}/release`;
        const json = {"Content-Type": "application/json", "X-Unwind-Session": "x"};
        await attempt("release", path, {method: "POST", body: "{}", headers: json});
        await attempt("blindRelease", path, {method: "POST", body: "{}", mode: "no-cors"});
        const form = document.createElement("form");
        Object.assign(form, {method: "POST", action: origin + path, target: "sent"});
        const sent = Object.assign(document.createElement("iframe"), {name: "sent"});
        document.body.append(sent, form);
        form.submit();
        await attempt("blind", "/api/session", {method: "POST", body: JSON.stringify({token}), mode: "no-cors"});
        const asked = new BroadcastChannel("unwind-session");
        found.channel = await new Promise((resolve) => {
            asked.onmessage = (event) => resolve(event.data);
            asked.postMessage("session?");
            setTimeout(() => resolve("nothing"), 500);
        });
        const frame = document.createElement("iframe");
        frame.src = origin;
        document.body.append(frame);
        await new Promise((resolve) => { frame.onload = resolve; setTimeout(resolve, 1000); });
        try { found.frame = frame.contentWindow.document.body.innerText; } catch { found.frame = "refused"; }
        return found;
    }"""

    async def page_(_: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>other</title><body>other", content_type="text/html")

    application = web.Application()
    application.router.add_get("/", page_)
    runner = web.AppRunner(application)
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    port = runner.addresses[0][1]
    context = await browser.new_context()
    try:
        other = await context.new_page()
        await other.goto(f"http://127.0.0.1:{port}/")
        # The token is not used up by them either: the person can still open the page.
        first = await other.evaluate(attempts, [site.origin, site.token, record.uid])
        page = await context.new_page()
        await page.goto(site.address)
        await expect(page.get_by_role("row").filter(has_text=record.name)).to_be_visible()
        second = await other.evaluate(attempts, [site.origin, site.token, record.uid])
    finally:
        await context.close()
        await runner.cleanup()
    for found in (first, second):
        assert found == {
            "storage": 0,
            "read": "refused",
            "readWithHeader": "refused",
            "write": "refused",
            "release": "refused",
            "blindRelease": found["blindRelease"],
            # It may be sent, but is refused by its origin, and the answer cannot be read.
            "blind": found["blind"],
            "channel": "nothing",
            "frame": "refused",
        }
        assert {found["blind"], found["blindRelease"]} <= {"opaque", "refused"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_pages_fit_a_phone(browser: Browser, site: Started, record: Record, scheme: str) -> None:
    await record.comes_to("Held", "Removed", "Removing", "7/10", blockers=(STUCK,))
    async with opened(browser, site.address) as page:
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        await page.set_viewport_size({"width": 390, "height": 844})
        row = page.get_by_role("row").filter(has_text=record.name)
        await expect(row).to_be_visible()
        await shoot(page, f"phone-fleet-{scheme}")
        await row.get_by_role("link").click()
        await expect(page.locator(".blockers")).to_be_visible()
        await shoot(page, f"phone-teardown-{scheme}")
        for path in ("/stuck", "/plan", "/ledger", f"/teardowns/{record.uid}", "/"):
            await page.goto(f"{site.origin}{path}")
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path
        await page.set_viewport_size({"width": 1280, "height": 900})
        await page.goto(f"{site.origin}/teardowns/{record.uid}")
        await expect(page.locator('[data-key="picture"] svg')).to_be_visible()
        await shoot(page, f"teardown-{scheme}")


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_pages_are_accessible(
    browser: Browser, site: Started, record: Record, plane: Plane, namespace: str, width: int
) -> None:
    """axe finds no serious violation: on every page, light and dark, on a screen and on a phone."""
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "some", "namespace": namespace}}
    await plane.management.client.create(CONFIG_MAPS, body)
    entry = TimelineEntry(at=NOW, event="Blocked", object=STUCK.object, message="it has a finalizer", by="a controller")
    await record.comes_to("Held", "Removed", "Removing", "7/10", blockers=(STUCK,), timeline=(entry,))
    await record.left("old", LedgerNote(reason="Forced", message="the fire", by=f"oidc:{'0f' * 40}", at=NOW))
    async with opened(browser, site.address) as page:

        async def check(what: str) -> None:
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
                await page.evaluate(axe)
                found = (await page.evaluate("axe.run()"))["violations"]
                told = [(one["id"], [node["html"] for node in one["nodes"]]) for one in found if one["impact"] in BAD]
                assert not told, (what, scheme, told)

        await page.set_viewport_size({"width": width, "height": 900})
        await expect(page.get_by_role("row").filter(has_text=record.name)).to_be_visible()
        for path, ready in (
            ("/", f'[data-key="{record.uid}"]'),
            (f"/teardowns/{record.uid}?step=ClusterProfile/ingress", "#objects:not([hidden])"),
            ("/stuck?members=false", "#answer:not([aria-busy])"),
            (f"/plan?target=ns/{namespace}", "#answer .questions"),
            ("/ledger", "#answer table"),
            ("/plan", "form"),
        ):
            await page.goto(f"{site.origin}{path}")
            await expect(page.locator(ready)).to_be_visible(timeout=30_000)
            await check(path)
            assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path


async def test_the_pages_are_used_with_the_keyboard(browser: Browser, site: Started, record: Record) -> None:
    await record.comes_to("Held", "Removed", "Removing", "7/10", blockers=(STUCK,))
    async with opened(browser, site.address) as page:
        row = page.get_by_role("row").filter(has_text=record.name)
        await expect(row).to_be_visible()
        await page.keyboard.press("Tab")
        await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        await row.get_by_role("link").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_contain_text(record.name)
        assert await page.evaluate("document.activeElement.id") == "main"
        # A change of the page does not take the focus away.
        step = page.get_by_role("button", name="ClusterProfile/ingress")
        await step.press("Enter")
        await expect(page.get_by_text("No objects are recorded for this step")).to_be_visible()
        await record.comes_to("Held", "Removed", "Removing", "8/10", blockers=(STUCK,))
        await expect(page.locator(".overall .count")).to_have_text("8/10")
        await expect(step).to_be_focused()
        await expect(step).to_have_attribute("aria-expanded", "true")
        await page.get_by_role("link", name="Stuck").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Stuck")


async def test_without_the_crd_or_the_right_the_page_says_so(browser: Browser, plane: Plane) -> None:
    for kubeconfig, said in (
        (plane.members["member-1"].kubeconfig, "the CRD of Teardown is not installed"),
        (plane.management.write_kubeconfig("nobody-at-all"), "is forbidden"),
    ):
        async with dashboard(kubeconfig) as site, opened(browser, site.address) as page:
            await expect(page.get_by_role("alert")).to_contain_text(said)
