"""A step is reported as removed only when its inventory is sealed: nothing that is deployed late stays behind an open
gate. On a real management cluster with the real Cluster API and a real member."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plane.support.cluster_teardowns import TeardownScene, manager
from tests.plane.support.controllers import HOLD
from tests.plane.support.transports import Delay, delayed, seals
from unwind.api.names import FORCE_RELEASE_ANNOTATION
from unwind.api.rights import HOME
from unwind.api.unwind import Phase, StepState, Teardown
from unwind.inventory.inventories import Inventories
from unwind.inventory.writer import Records, SealedError
from unwind.members import targets
from unwind.members.member import Member
from unwind.teardown.deletion_gate import GateClosed, GateOpen, of_teardown
from unwind.teardown.status import UNSEALED
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.meta import ObjectRef


def state(it: TeardownScene, profile: str) -> Callable[[Teardown], str]:
    name = f"ClusterProfile/{it.profile(profile)}"
    return lambda one: next((step.state for step in one.status.steps if step.name == name), "")


def is_removed(it: TeardownScene, profile: str) -> Callable[[Teardown], bool]:
    return lambda one: state(it, profile)(one) == StepState.REMOVED


def waits_for_its_seal(it: TeardownScene, profile: str) -> Callable[[Teardown], bool]:
    """Whether all of a step is removed, but for its seal."""
    name = f"ClusterProfile/{it.profile(profile)}"
    return lambda one: any(step.name == name and step.message == UNSEALED for step in one.status.steps)


async def deploy(it: TeardownScene, owner: ObjectRef, name: str) -> None:
    """What another replica does that deploys one more object: it writes to the inventory first."""
    target = targets.capi_ref(it.namespace, it.name, it.uid)
    member = Member(target, it.member.client, system_uid=it.system_uid)
    records = Records(Inventories(it.client, namespace=HOME), owner, member)
    await records.load()
    await it.add_late(owner, name)


async def web_beside_held(it: TeardownScene) -> ObjectRef:
    """The add-on `web`, and another one whose objects do not go."""
    web = await it.add_on("web")
    await it.add_on("held", finalizers=(HOLD,))
    return web


async def test_removed_is_reported_only_for_what_is_sealed_and_no_seal_waits_for_a_try_step(it: TeardownScene) -> None:
    web = await it.add_on("web")
    await it.add_on("tried", behaviour="RemovePolicies", finalizers=(HOLD,))
    clock = StillClock()
    async with manager(it.client, clock=clock):
        await it.delete()
        teardown = await it.teardown(is_removed(it, "web"), "web removed")
        inventory = await it.inventory(web)
        assert inventory
        assert inventory.spec.sealed_for == it.uid
        with pytest.raises(SealedError):
            await deploy(it, web, "web-late")
        # The try step is under way still, and the gate is open.
        assert state(it, "tried")(teardown) == StepState.REMOVING
        assert of_teardown(it.uid, teardown) == GateOpen()
        clock.advance(61)
        assert (await it.ended()).phase is Phase.COMPLETE
    assert await it.objects() == {"tried-0", "tried-1", "tried-2"}
    await it.unblock()
    await it.let_go()


async def test_what_is_deployed_before_the_seal_is_removed_before_the_step_is_reported(it: TeardownScene) -> None:
    web = await it.add_on("web")
    await it.add_on("tried", behaviour="RemovePolicies", finalizers=(HOLD,))
    delay = Delay(seals(web))
    async with delayed(it.management, delay) as client, manager(client):
        await it.delete()
        await delay.until_reached()
        teardown = await it.teardown(waits_for_its_seal(it, "web"), "waiting for its seal")
        assert await it.objects() == {"tried-0", "tried-1", "tried-2"}
        assert isinstance(of_teardown(it.uid, teardown), GateClosed)
        await deploy(it, web, "web-late")
        delay.go.set()
        teardown = await it.teardown(is_removed(it, "web"), "web removed")
        assert await it.objects() == {"tried-0", "tried-1", "tried-2"}
        assert state(it, "tried")(teardown) == StepState.REMOVING
        assert of_teardown(it.uid, teardown) == GateOpen()
        await it.unblock()
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_steps_are_sealed_while_another_enforced_step_is_held(it: TeardownScene) -> None:
    web = await web_beside_held(it)
    async with manager(it.client):
        await it.delete()
        teardown = await it.teardown(is_removed(it, "web"), "web removed")
        inventory = await it.inventory(web)
        assert inventory
        assert inventory.spec.sealed_for == it.uid
        assert isinstance(of_teardown(it.uid, teardown), GateClosed)
        await it.unblock()
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_the_first_deletion_comes_before_any_seal(it: TeardownScene) -> None:
    delay = Delay(seals(*[await it.add_on(name, objects=1) for name in ("one", "two", "three")]))
    async with delayed(it.management, delay) as client, manager(client):
        await it.delete()
        await delay.until_reached()
        # Not only the first: no seal comes between the deletions.
        assert await it.objects() == set()
        delay.go.set()
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()


async def test_death_between_removal_and_seal_reports_nothing_as_removed(it: TeardownScene) -> None:
    web = await it.add_on("web")
    delay = Delay(seals(web))
    async with delayed(it.management, delay) as client, manager(client):
        await it.delete()
        await delay.until_reached()
        teardown = await it.teardown(waits_for_its_seal(it, "web"), "waiting for its seal")
        assert isinstance(of_teardown(it.uid, teardown), GateClosed)
    await deploy(it, web, "web-late")
    delay = Delay(seals(web))
    async with delayed(it.management, delay) as client, manager(client):
        await delay.until_reached()
        assert await it.objects() == set()
        teardown = await it.teardown(lambda _: True, "there")
        assert isinstance(of_teardown(it.uid, teardown), GateClosed)
        delay.go.set()
        assert (await it.ended()).phase is Phase.COMPLETE
    # What was gone was seen to be gone, and not deleted again.
    assert sorted(it.deleted()) == sorted(set(it.deleted()))
    await it.let_go()


async def test_a_step_that_is_reported_as_removed_and_not_sealed_is_carried_out_again(it: TeardownScene) -> None:
    """As an earlier version may have left it."""
    web = await web_beside_held(it)
    async with manager(it.client):
        await it.delete()
        await it.teardown(is_removed(it, "web"), "web removed")
    # Nobody can take a seal off, but another inventory of the same owner can be made.
    inventories = Inventories(it.client, namespace=HOME)
    await inventories.discard_all(await inventories.of(web.uid))
    entry = await it.put(web, "web-late")
    await it.record(web, {"web-late": entry})
    async with manager(it.client):
        await it.unblock()
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_what_is_deployed_before_the_seal_is_named_when_the_cluster_is_released(it: TeardownScene) -> None:
    web = await web_beside_held(it)
    delay = Delay(seals(web))
    async with delayed(it.management, delay) as client, manager(client):
        await it.delete()
        await delay.until_reached()
        await deploy(it, web, "web-late")
        await it.annotate({FORCE_RELEASE_ANNOTATION: "enough"}, by="jane")
        delay.go.set()
        teardown = await it.ended()
    assert teardown.phase is Phase.RELEASED
    inventory = await it.inventory(web)
    assert inventory
    assert inventory.spec.sealed_for == teardown.metadata.name
    left = {entry.object.name for entry in inventory.spec.entries.values() if entry.ledger}
    assert left == {"web-late"}
    await it.unblock()
    await it.let_go()
