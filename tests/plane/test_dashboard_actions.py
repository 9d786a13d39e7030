"""Release and cancel from the page of a teardown: what is shown first, and whose rights decide."""

from __future__ import annotations

import re
import uuid
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.plane.support.cluster_teardowns import ensure_installed, manager, scene
from tests.plane.support.controllers import HOLD
from tests.plane.support.dashboards import calling, chromium, dashboard, opened, person, shoot
from unwind.api.capi import CLUSTERS
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import (
    CANCEL_REASON_ANNOTATION,
    CANCEL_REASON_BY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    OWNER_LABEL,
)
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CONFIG_MAPS
from unwind.api.rights import HOME
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Entry, Inventory, InventorySpec, MemberRef, Teardown, TeardownSpec
from unwind.kube.errors import NotFoundError
from unwind.teardown.requests import request
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from tests.plane.support.cluster_teardowns import TeardownScene
    from tests.plane.support.dashboards import Caller
    from unwind.local.plane import Plane

READ = ["get", "list", "watch"]
VIEW = {"apiGroups": ["unwind.dev"], "resources": ["teardowns", "inventories"], "verbs": READ}
SEE_CLUSTERS = {"apiGroups": [CLUSTERS.group], "resources": ["clusters"], "verbs": READ}
PATCH_CLUSTERS = {"apiGroups": [CLUSTERS.group], "resources": ["clusters"], "verbs": ["patch"]}
DELETE_TEARDOWNS = {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["delete", "patch"]}
DELETE_CONFIG_MAPS = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@asynccontextmanager
async def held(plane: Plane, namespace: str) -> AsyncIterator[TeardownScene]:
    """A cluster that is being deleted, with two objects that do not go."""
    it = await scene(plane, namespace)
    await it.add_on("first", objects=1)
    await it.add_on("stuck", finalizers=(HOLD,), objects=2)
    async with manager(it.client, clock=StillClock()):
        await it.delete()
        await it.teardown(lambda found: str(found.phase) == "Held", "Held")
        yield it
        await it.unblock()
        await it.ended()
    await it.let_go()


async def released_by(it: TeardownScene) -> str | None:
    found = await it.client.get(CLUSTERS, it.name, namespace=it.namespace)
    reason: str | None = (found["metadata"].get("annotations") or {}).get(FORCE_RELEASE_ANNOTATION)
    return reason


async def test_a_person_releases_a_cluster_after_seeing_what_would_be_left(
    browser: Browser, plane: Plane, namespace: str
) -> None:
    async with (
        held(plane, namespace) as it,
        dashboard(plane.management.kubeconfig) as site,
        opened(browser, f"{site.origin}/teardowns/{it.uid}?token={site.token}") as page,
    ):
        await expect(page.get_by_text("Cluster API is told")).to_be_visible()
        await page.get_by_role("button", name="Release the cluster…").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_text("2 objects would be left behind (not verified absent)")).to_be_visible()
        await expect(dialog.get_by_role("listitem").first).to_have_text(f"ConfigMap {it.on_member}/stuck-0")
        await shoot(page, "release")
        axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await page.evaluate(axe)
            found = (await page.evaluate("axe.run()"))["violations"]
            assert not [one for one in found if one["impact"] in ("serious", "critical")], found
        # Nothing happens without a reason, nor with another name.
        await dialog.get_by_role("button", name="Release").click()
        await expect(dialog.get_by_label("Reason")).to_be_focused()
        await dialog.get_by_label("Reason").fill("the cloud account is closed")
        await dialog.get_by_label("Type the name").fill("another")
        await dialog.get_by_role("button", name="Release").click()
        await expect(dialog.get_by_label("Type the name")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()
        assert await released_by(it) is None

        await page.get_by_role("button", name="Release the cluster…").press("Enter")
        await dialog.get_by_label("Reason").fill("the cloud account is closed")
        await dialog.get_by_label("Type the name").fill(it.name)
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_role("status")).to_contain_text("requested")
        await dialog.get_by_role("button", name="Close").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Released")
        await expect(page.get_by_text("the cloud account is closed").first).to_be_visible()
        await expect(page.get_by_role("button", name="Release the cluster…")).to_have_count(0)
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Released")
        await page.get_by_role("link", name="Ledger", exact=True).click()
        rows = page.get_by_role("row").filter(has_text=f"{it.on_member}/stuck-")
        await expect(rows).to_have_count(2)


async def test_a_person_who_may_only_read_sees_no_button_and_cannot_post(
    browser: Browser, plane: Plane, namespace: str
) -> None:
    reader = await person(plane, f"reader-{namespace}", VIEW, SEE_CLUSTERS)
    async with held(plane, namespace) as it:
        async with dashboard(reader) as site, opened(browser, site.address) as page:
            await page.get_by_role("link", name=it.name).click()
            await expect(page.locator(".blockers")).to_be_visible()
            async with page.expect_response(re.compile("/actions$")):
                await page.reload()
            await expect(page.locator(".blockers")).to_be_visible()
            await expect(page.get_by_role("button", name=re.compile("Release|Cancel"))).to_have_count(0)
        async with dashboard(reader) as site, calling(site) as caller:
            path = f"/api/teardowns/{it.uid}/release"
            status, text = await caller.get(path)
            assert (status, "you may not patch Cluster" in text) == (403, True)
            for confirmation in ("", "guessed", site.token):
                body = {"confirmation": confirmation, "typed": it.name, "reason": "x"}
                assert (await caller.post(path, body))[0] == 403
                assert (await caller.post(f"/api/teardowns/{it.uid}/cancel", body))[0] == 403
        assert await released_by(it) is None


async def test_the_api_server_decides_also_if_a_button_was_shown(plane: Plane, namespace: str) -> None:
    name = f"operator-{namespace}"
    await person(plane, name, PATCH_CLUSTERS, role=f"{name}-patch")
    kubeconfig = await person(plane, name, VIEW, SEE_CLUSTERS)
    client = plane.management.client
    async with held(plane, namespace) as it:
        path = f"/api/teardowns/{it.uid}/release"
        async with dashboard(kubeconfig) as site, calling(site) as caller:
            assert "data-action" in (await caller.get(f"/api/teardowns/{it.uid}/actions"))[1]
            confirmation = confirmed(await caller.get(path))
            body = {"confirmation": confirmation, "typed": it.name, "reason": "x"}
            # A request that another page could cause is refused before it uses the confirmation up.
            assert (await caller.post(path, body, Origin="http://127.0.0.1:1"))[0] == 403
            assert (await caller.post(path, body, Sec_Fetch_Site="same-site"))[0] == 403
            assert (await caller.post(path, body, X_Unwind_Session="x"))[0] == 401
            status, text = await caller.post(path, body, Content_Type="text/plain")
            assert (status, "is not JSON" in text) == (400, True)
            status, text = await caller.post(path, body | {"typed": "another"})
            assert (status, "the name is not" in text) == (400, True)
            # It was used up. Another one is for this action and this Teardown only.
            assert (await caller.post(path, body))[0] == 403
            body["confirmation"] = confirmed(await caller.get(path))
            assert (await caller.post(path.replace("/release", "/cancel"), body))[0] == 403
            confirmation = confirmed(await caller.get(path))
            binding = await client.get(CLUSTER_ROLE_BINDINGS, f"{name}-patch")
            await client.delete(CLUSTER_ROLE_BINDINGS, f"{name}-patch", uid=binding["metadata"]["uid"])
            await until_refused(caller, it)
            status, text = await caller.post(path, body | {"confirmation": confirmation})
            assert (status, "forbidden" in text) == (403, True), text
        assert await released_by(it) is None


async def test_a_requested_deletion_is_cancelled_after_seeing_what_is_gone(
    browser: Browser, plane: Plane, namespace: str
) -> None:
    client = plane.management.client
    await ensure_installed(client)
    name, uid = await requested(plane, namespace)
    canceller = await person(plane, f"canceller-{namespace}", VIEW, DELETE_TEARDOWNS)
    # Whoever may not delete the target, and has not requested its deletion, is refused by admission.
    async with dashboard(canceller) as site, calling(site) as caller:
        assert await caller.get(f"/api/teardowns/{name}/actions") == (200, "")
        status, text = await caller.get(f"/api/teardowns/{name}/cancel")
        assert (status, "may not cancel" in text) == (403, True)
    await person(plane, f"canceller-{namespace}", DELETE_CONFIG_MAPS, role=f"canceller-{namespace}-target")
    async with (
        dashboard(canceller) as site,
        opened(browser, f"{site.origin}/teardowns/{name}?token={site.token}") as page,
    ):
        await page.get_by_role("button", name="Cancel the deletion…").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_text("1 object is gone and stays gone")).to_be_visible()
        await expect(dialog.get_by_role("listitem")).to_have_text([f"ConfigMap {namespace}/there"])
        await dialog.get_by_label("Type the name").fill("shop")
        await dialog.get_by_role("button", name="Cancel the deletion").click()
        await expect(dialog.get_by_label("Reason")).to_be_focused()
        await dialog.get_by_label("Reason").fill("the wrong <b>shop</b>")
        await dialog.get_by_role("button", name="Cancel the deletion").click()
        await expect(dialog.get_by_role("status")).to_have_text(
            f"Cancelled. The manager sends no further DELETE for ConfigMap {namespace}/shop."
        )
        # Recorded before the deletion is stopped. The manager takes it from there.
        ending = await client.get(TEARDOWNS, name, type=Teardown)
        assert ending.metadata.terminating
        assert ending.metadata.annotations[CANCEL_REASON_ANNOTATION] == "the wrong <b>shop</b>"
        assert ending.metadata.annotations[CANCEL_REASON_BY_ANNOTATION] == f"canceller-{namespace}"
        await client.patch(TEARDOWNS, name, {"metadata": {"finalizers": None}})
        await dialog.get_by_role("button", name="Close").click()
        await expect(page.get_by_text("This Teardown does not exist, or was deleted.")).to_be_visible()
    with pytest.raises(NotFoundError):
        await client.get(TEARDOWNS, name)
    found = await client.get(INVENTORIES, f"{uid}-0", namespace=HOME)
    await client.delete(INVENTORIES, f"{uid}-0", uid=found["metadata"]["uid"], namespace=HOME)


async def test_a_teardown_that_a_user_has_written_does_not_lead_to_a_cluster(plane: Plane, namespace: str) -> None:
    """Users may create Teardowns. One with another title must not make an administrator release a cluster."""
    async with held(plane, namespace) as it:
        record = await it.client.get(TEARDOWNS, it.uid, type=Teardown)
        name = f"forged-{uuid.uuid4().hex[:8]}"
        spec = TeardownSpec(title="Cluster demo/harmless", target=record.spec.target, cause="ClusterDeleted")
        made = await it.client.create(
            TEARDOWNS, manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=name), spec=spec))
        )
        async with dashboard(plane.management.kubeconfig) as site, calling(site) as caller:
            status, text = await caller.get(f"/api/teardowns/{name}/release")
            assert status == 502
            assert f"Teardown {name} is not its record" in text or "is finished, or is not" in text
        await it.client.delete(TEARDOWNS, name, uid=made["metadata"]["uid"])
        assert await released_by(it) is None


def confirmed(answer: tuple[int, str]) -> str:
    status, html = answer
    assert status == 200, html
    found = re.search(r'data-confirmation="([^"]+)"', html)
    assert found
    return found[1]


async def until_refused(caller: Caller, it: TeardownScene) -> None:
    """The authorizer follows bindings with a watch."""
    while "data-action" in (await caller.get(f"/api/teardowns/{it.uid}/actions"))[1]:
        pass


async def requested(plane: Plane, namespace: str) -> tuple[str, str]:
    """A requested deletion that no manager carries out, with one object that is gone and one that is not."""
    client = plane.management.client
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "shop", "namespace": namespace}}
    made = await client.create(CONFIG_MAPS, body)
    target = ObjectRef(version="v1", kind="ConfigMap", namespace=namespace, name="shop", uid=made["metadata"]["uid"])
    found = await request(client, target, plural="configmaps", now=datetime.now(UTC))
    name, uid = found.metadata.name, found.metadata.uid
    # As with the finalizer of the manager, it is still there after its deletion.
    await client.patch(TEARDOWNS, name, {"metadata": {"finalizers": [HOLD]}})
    entries = {
        state: Entry(
            object=ObjectRef(version="v1", kind="ConfigMap", namespace=namespace, name=state, uid=state), state=recorded
        )
        for state, recorded in (("there", "Confirmed"), ("went", "Removed"))
    }
    inventory = Inventory(
        metadata=ObjectMeta(name=f"{uid}-0", namespace=HOME, labels={OWNER_LABEL: uid}),
        spec=InventorySpec(
            owner=ObjectRef(kind="Teardown", name=name, uid=uid),
            member=MemberRef(object=ObjectRef(kind="Cluster", name="x"), system_uid="x"),
            entries=entries,
        ),
    )
    await client.create(INVENTORIES, manifest(INVENTORIES, inventory))
    return name, uid
