"""Objects that another owner has: conflicts, adoption, and takeover by tier."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.plane.support.addon_site import (
    CONFLICT,
    CREATED,
    UNCHANGED,
    UPDATED,
    AddonSite,
    member_by,
    message,
    outcomes,
)
from unwind.api.names import ADOPTED_ANNOTATION, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS, Resource
from unwind.api.unwind import EntryState
from unwind.deploy.deployment import deploy
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.kube.client import Object


async def test_an_object_of_another_owner_is_neither_changed_nor_deleted(site: AddonSite) -> None:
    owner = site.owner()
    theirs = await site.put("it", data={"theirs": "x"})
    ref = await site.source("s", site.config_map("it"), site.config_map("ours"))
    for ours in (CREATED, UNCHANGED):
        report = await site.deploy(owner, ref)
        assert outcomes(report) == {"it": CONFLICT, "ours": ours}
        assert message(report, "it") == (
            "it already exists and is not managed by Unwind; delete it, or adopt it with the annotation"
            ' unwind.dev/adopt: "true" on the profile or Work'
        )
    assert list(await site.entries(owner)) == ["ours"]
    await site.remove(owner)
    assert (await site.get("it"))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    with pytest.raises(NotFoundError):
        await site.get("ours")


@pytest.mark.parametrize("end", ["pruned", "removed"])
async def test_an_adopted_object_is_updated_and_unmarked_in_the_end(site: AddonSite, end: str) -> None:
    owner = site.owner(adopt=True)
    theirs = await site.put("it", data={"theirs": "x"}, labels={"app": "theirs"})
    ref = await site.source("s", site.config_map("it"))
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"it": UPDATED}
    live = await site.get("it")
    assert live["data"] == {"theirs": "x", "a": "1"}
    assert live["metadata"]["annotations"][ADOPTED_ANNOTATION] == "true"
    assert (await site.entries(owner))["it"].adopted
    assert outcomes(await site.deploy(owner, ref)) == {"it": UNCHANGED}
    if end == "pruned":
        report = await site.deploy(owner, await site.text("s", {}))
        assert await site.prune(owner, report) == ["it Left"]
        assert await site.entries(owner) == {}
    else:
        await site.remove(owner)
    live = await site.get("it")
    assert live["metadata"]["uid"] == theirs["metadata"]["uid"]
    assert live["metadata"]["labels"] == {"app": "theirs"}
    assert not live["metadata"].get("annotations")


async def test_a_lower_tier_takes_an_object_over_and_the_former_owner_leaves_it_alone(site: AddonSite) -> None:
    ref = await site.source("s", site.config_map("it"))
    first, second = site.owner("first"), site.owner("second", tier=50)
    made = await site.deploy(first, ref)
    report = await site.deploy(second, ref)
    assert outcomes(report) == {"it": UPDATED}
    assert message(report, "it") == "taken over from ClusterProfile first"
    live = await site.get("it")
    assert live["metadata"]["uid"] == made.results[0].object.uid
    assert live["metadata"]["labels"][OWNER_LABEL] == second.uid
    # The first has not looked since, and its inventory still says that the object is its own.
    await site.remove(first)
    assert (await site.entries(first))[
        "it"
    ].ledger.message == "taken over by ClusterProfile second; it is left in place"
    assert await site.get("it")
    await site.remove(second)
    with pytest.raises(NotFoundError):
        await site.get("it")


async def test_the_former_owner_reports_the_conflict_and_drops_its_entry(site: AddonSite) -> None:
    ref = await site.source("s", site.config_map("it"))
    first, second = site.owner("first"), site.owner("second", tier=50)
    await site.deploy(first, ref)
    await site.deploy(second, ref)
    report = await site.deploy(first, ref)
    assert outcomes(report) == {"it": CONFLICT}
    assert (
        message(report, "it")
        == "managed by ClusterProfile second (tier 50); remove it from one of them, or use a lower tier here"
    )
    assert await site.entries(first) == {}
    assert (await site.entries(second))["it"].state == EntryState.CONFIRMED


class Interrupted(Client):
    """Something happens to an object just before something is applied to it: `times` times."""

    def __init__(self, original: Client, meanwhile: Callable[[], Awaitable[object]], times: int) -> None:
        super().__init__(original.connection)
        self.meanwhile = meanwhile
        self.times = times

    async def apply(self, resource: Resource, body: Object, **more: Any) -> Object:
        if self.times:
            self.times -= 1
            await self.meanwhile()
        return await super().apply(resource, body, **more)


async def test_an_object_taken_over_during_an_update_is_not_taken_back(site: AddonSite) -> None:
    first, second = site.owner("first"), site.owner("second", tier=50)
    old = await site.source("s", site.config_map("it"))
    await site.deploy(first, old)
    taken = await site.read(old)
    read = await site.read(await site.source("s", site.config_map("it", data={"a": "2"})))

    async def take() -> None:
        await deploy(site.member, site.inventories, second, taken)

    async with member_by(site, Interrupted(site.there, take, 1)) as member:
        report = await deploy(member, site.inventories, first, read)
    assert outcomes(report) == {"it": CONFLICT}
    live = await site.get("it")
    assert (live["metadata"]["labels"][OWNER_LABEL], live["data"]) == (second.uid, {"a": "1"})


async def test_an_object_that_others_keep_changing_is_still_updated(site: AddonSite) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    read = await site.read(await site.source("s", site.config_map("it", data={"a": "2"})))

    async def change() -> None:
        patch = {"metadata": {"annotations": {"theirs": uuid.uuid4().hex}}}
        await site.there.patch(CONFIG_MAPS, "it", patch, namespace=site.namespace, field_manager="them")

    async with member_by(site, Interrupted(site.there, change, 2)) as member:
        assert outcomes(await deploy(member, site.inventories, owner, read)) == {"it": UPDATED}
    assert (await site.get("it"))["data"] == {"a": "2"}


@pytest.mark.parametrize("tier", [100, 200])
async def test_an_equal_or_higher_tier_leaves_an_object_to_its_owner(site: AddonSite, tier: int) -> None:
    ref = await site.source("s", site.config_map("it"))
    first, second = site.owner("first"), site.owner("second", tier=tier)
    await site.deploy(first, ref)
    before = (await site.get("it"))["metadata"]["resourceVersion"]
    assert outcomes(await site.deploy(second, ref)) == {"it": CONFLICT}
    assert await site.entries(second) == {}
    await site.remove(second)
    assert (await site.get("it"))["metadata"]["resourceVersion"] == before


async def test_an_adopted_object_stays_adopted_after_a_takeover(site: AddonSite) -> None:
    ref = await site.source("s", site.config_map("it"))
    await site.put("it")
    first, second = site.owner("first", adopt=True), site.owner("second", tier=50)
    await site.deploy(first, ref)
    assert outcomes(await site.deploy(second, ref)) == {"it": UPDATED}
    await site.remove(second)
    assert OWNER_LABEL not in ((await site.get("it"))["metadata"].get("labels") or {})
