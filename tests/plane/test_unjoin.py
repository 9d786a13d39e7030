"""Members unjoined, on a real management cluster and a real member: as their removeStrategy says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec
import pytest

from tests.plane.support.controllers import HOLD
from tests.plane.support.unjoins import behind_proxy, controllers, scene
from unwind.api.karmada import WORKS, RemoveStrategy
from unwind.api.meta import find
from unwind.api.names import FORCE_RELEASE_ANNOTATION, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import Phase
from unwind.inventory.inventories import Inventories
from unwind.kube.client import Client
from unwind.members import members
from unwind.teardown import plan
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from unwind.local.plane import Plane
    from unwind.teardown.drafts import Drafted

REQUIRED = RemoveStrategy.REQUIRED

JANE = "unknown, see the audit log (field manager jane)"
"""Nobody saw the user: no webhook runs here, and a field manager can be anything."""


async def test_required_removes_every_object_in_order_before_the_member_goes(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.put("base")
        await it.put("middle", depends_on=("base",))
        await it.put("top", depends_on=("middle",))
        await it.deployed("base", "middle", "top")
        await it.delete()
        teardown = await it.gone()
        assert teardown.phase is Phase.COMPLETE
        assert teardown.spec.cause == "Unjoined"
        assert teardown.spec.title == f"Cluster {it.name}"
        assert teardown.status.removed == "6/6"
        assert [name.partition("-")[0] for name in it.deleted()] == ["top"] * 2 + ["middle"] * 2 + ["base"] * 2
        assert await it.on_member() == {}
        await it.nothing_left()
        assert await it.accounts() == []


async def test_the_inventories_that_were_read_for_the_plan_are_not_read_again_to_remove_their_objects(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: object) -> NoReturn:
        raise AssertionError("they were read again")

    for method in ("at_hand", "by_owner"):
        monkeypatch.setattr(Inventories, method, read)
    works = [f"web-{number}" for number in range(9)]
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        for name in works:
            await it.put(name, objects=1)
        await it.deployed(*works)
        await it.unjoin()


async def test_an_object_that_is_recorded_after_the_inventories_were_read_is_removed_too(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.deployed("web")
        draft = plan.draft

        async def record_later(*args: Any, **more: Any) -> Drafted:
            drafted = await draft(*args, **more)
            [chunk] = await it.accounts()
            [entry, *_] = chunk.spec.entries.values()
            labels = {OWNER_LABEL: chunk.spec.owner.uid}
            metadata = {"name": "late", "namespace": it.namespace, "labels": labels}
            made = await it.member.client.create(
                CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
            )
            late = msgspec.structs.replace(entry.object, name="late", uid=made["metadata"]["uid"])
            entry = msgspec.structs.replace(entry, object=late)
            await it.inventories.write(chunk, {"late": msgspec.to_builtins(entry)})
            return drafted

        monkeypatch.setattr(plan, "draft", record_later)
        await it.delete()
        assert (await it.gone()).phase is Phase.COMPLETE
        assert "late" in it.deleted()
        assert await it.on_member() == {}


async def test_required_removes_the_objects_of_suspended_works_too(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.deployed("web")
        await it.client.patch(WORKS, "web", {"spec": {"suspendDispatching": True}}, namespace=it.execution)
        await it.unjoin()


async def test_probes_works_and_the_unjoin_share_one_connection_to_the_member(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Counted(Client):
        async def __aenter__(self) -> Self:
            opened.append(self.connection.server)
            return await super().__aenter__()

    monkeypatch.setattr(members, "Client", Counted)
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.deployed("web")
        await it.delete()
        assert (await it.gone()).phase is Phase.COMPLETE
    assert opened == [it.cluster.server]


async def test_needless_leaves_every_object_without_our_marks_and_names_it(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.deployed("web")
        await it.delete()
        teardown = await it.gone()
        assert teardown.phase is Phase.COMPLETE
        assert teardown.status.left == 2
        assert it.deleted() == []
        there = await it.on_member()
        assert set(there) == {"web-0", "web-1"}
        assert not any(OWNER_LABEL in (item["metadata"].get("labels") or {}) for item in there.values())
        notes = await it.ledger()
        assert {(note.reason, note.by) for note in notes.values()} == {
            ("KeptByPolicy", f"removeStrategy of Cluster {it.name}")
        }
        assert set(notes) == {"web-0", "web-1"}
        await it.nothing_left()


async def test_what_cannot_be_removed_is_named_and_the_unjoin_goes_on_when_it_can(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.put("below")
        await it.put("above", depends_on=("below",))
        await it.deployed("web", "below", "above")
        await it.block("web-1")
        await it.block("above-0")
        await it.delete()
        said = await it.says("UnjoinFailed", "Work web: ", "web-1", HOLD, "Work above: ", "Work below")
        assert said.reason == "Finalizer"
        assert "since 20" in said.message
        going = find((await it.get()).status.conditions, "Unjoining")
        assert going
        assert (going.status, going.reason, going.message) == ("True", "UnjoinCluster", "Unjoining resources.")
        assert [name for name in it.deleted() if name.startswith("below")] == []
        await it.unblock("web-1", "above-0")
        assert (await it.gone()).phase is Phase.COMPLETE
        assert await it.on_member() == {}


async def test_a_person_may_let_the_member_go_and_is_named_with_each_object_left(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.delete_blocked()
        await it.annotate({FORCE_RELEASE_ANNOTATION: "the datacentre is closed"}, by="jane")
        teardown = await it.gone()
        assert teardown.phase is Phase.RELEASED
        release = teardown.status.release
        assert release
        assert (release.reason, release.message, release.by) == ("Forced", "the datacentre is closed", JANE)
        notes = await it.ledger()
        assert [(name, note.reason, note.by) for name, note in notes.items()] == [("web-1", "Forced", JANE)]
        await it.nothing_left()


async def test_required_that_is_lowered_to_needless_lets_go_and_says_who_did_it(plane: Plane, namespace: str) -> None:
    async with scene(plane, namespace, remove_strategy=REQUIRED) as it, controllers(it.client, namespace):
        await it.put("web")
        await it.put("kept", preserveResourcesOnDeletion=True)
        await it.deployed("web", "kept")
        await it.block("web-1")
        await it.delete()
        await it.says("UnjoinFailed", "web-1")
        await it.change({"spec": {"removeStrategy": "Needless"}}, by="jane")
        teardown = await it.gone()
        assert teardown.phase is Phase.RELEASED
        release = teardown.status.release
        assert release
        assert (release.reason, release.by) == ("StrategyChanged", JANE)
        notes = await it.ledger()
        assert {name: (note.reason, note.by) for name, note in notes.items()} == {
            "web-1": ("StrategyChanged", JANE),
            "kept-0": ("KeptByPolicy", f"preserveResourcesOnDeletion of Work {it.execution}/kept"),
            "kept-1": ("KeptByPolicy", f"preserveResourcesOnDeletion of Work {it.execution}/kept"),
        }
        there = await it.on_member()
        assert set(there) == {"web-1", "kept-0", "kept-1"}
        assert not any(OWNER_LABEL in (item["metadata"].get("labels") or {}) for item in there.values())


@pytest.mark.parametrize(("on_deadline", "left"), [("Hold", set()), ("Release", {"web-1"})])
async def test_a_deadline_of_the_member_holds_or_releases(
    plane: Plane, namespace: str, on_deadline: str, left: set[str]
) -> None:
    clock = StillClock()
    async with (
        scene(plane, namespace, remove_strategy=REQUIRED) as it,
        controllers(it.client, namespace, clock=clock),
    ):
        await it.put("web")
        await it.deployed("web")
        await it.block("web-1")
        await it.annotate({"unwind.dev/deadline": "30m", "unwind.dev/on-deadline": on_deadline})
        await it.delete()
        await it.says("UnjoinFailed", "web-1")
        # The clock began in the past: it is told to go on to well after the deletion.
        clock.advance(400 * 24 * 3600.0)
        if not left:
            await it.says("DeadlineExceeded", "30m")
            await it.unblock("web-1")
        teardown = await it.gone()
        assert teardown.phase is (Phase.RELEASED if left else Phase.COMPLETE)
        assert set(await it.ledger()) == left


async def test_needless_that_is_raised_to_required_stays_needless_and_says_so(plane: Plane, namespace: str) -> None:
    clock = StillClock()
    async with scene(plane, namespace) as it:
        async with behind_proxy(it, clock=clock) as proxy:
            # Its marks come off as far as it answers, and it has a while for that.
            proxy.close()
            await it.delete()
            await it.teardown(lambda one: one.spec.plan is not None, "planned")
            await it.change({"spec": {"removeStrategy": "Required"}})
            await it.says("PlanFrozen", "so the objects on the member stay: a later change has no effect")
            clock.advance(60)
            assert (await it.gone()).phase is Phase.COMPLETE
        assert set(await it.ledger()) == set(await it.on_member()) == {"web-0", "web-1"}
