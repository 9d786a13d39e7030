"""Notes about removed objects are written late. They never land on an entry that names another object by then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from tests.eventually import eventually
from tests.owners import Owner
from tests.plane.support.controllers import HOLD
from tests.plane.support.removals import RemovalLog
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS
from unwind.api.unwind import INVENTORIES, EntryState
from unwind.kube.fencing import Fences
from unwind.kube.object_watch import until_absent
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from tests.plane.support.removals import RemovalScene
    from unwind.api.unwind import Entry


async def confirm_anew(scene: RemovalScene, room: str, key: str, name: str) -> Entry:
    """Deploy an object once more, as another replica does that does not know of the removal."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": room}}
    made = await scene.client.create(CONFIG_MAPS, body)
    entry = scene.entries[key]
    ref = msgspec.structs.replace(entry.object, uid=made["metadata"]["uid"])
    entry = msgspec.structs.replace(entry, object=ref, state=EntryState.CONFIRMED.value)
    patch = {"spec": {"entries": {key: msgspec.to_builtins(entry)}}}
    [chunk] = await scene.read()
    await scene.inventories.client.patch(INVENTORIES, chunk.metadata.name, patch, namespace=scene.inventories.namespace)
    return entry


async def until_state(scene: RemovalScene, key: str, state: EntryState) -> None:
    async def reached() -> bool:
        return (await scene.account())[key].state == state

    await eventually(reached, f"the state {state} of {key}", within=30)


async def until_removed_beside(scene: RemovalScene, key: str, entry: Entry) -> None:
    """Return when an object is noted as removed; the entry `again` stays as it is."""
    await until_state(scene, key, EntryState.REMOVED)
    assert (await scene.account())["again"] == entry


async def test_a_late_note_does_not_land_on_an_entry_that_was_confirmed_for_another_object(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    await scene.config_map(room, "again", key="again")
    await scene.config_map(room, "gone", key="gone")
    held = await scene.config_map(room, "held", key="held", metadata={"finalizers": [HOLD]})
    await scene.write()
    clock = StillClock()
    async with scene.waiting(HOLD, clock=clock) as (removal, _):
        await eventually(lambda: removal.progress.removed >= 2, "two removed objects", within=30)
        entry = await confirm_anew(scene, room, "again", "again")
        clock.advance(31)  # now the notes of both are written
        await until_removed_beside(scene, "gone", entry)
        free = {"metadata": {"finalizers": None}}
        await scene.client.patch(CONFIG_MAPS, held.name, free, namespace=room)
    assert (await scene.account())["held"].state == EntryState.REMOVED
    assert (await scene.account())["again"] == entry


async def test_an_intended_entry_that_was_confirmed_meanwhile_is_not_noted_as_removed(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    scene.intend(CONFIG_MAPS, room, "again")
    scene.intend(CONFIG_MAPS, room, "never")
    held = await scene.config_map(room, "held", key="held", metadata={"finalizers": [HOLD]})
    await scene.write()
    clock = StillClock()
    async with scene.waiting(HOLD, clock=clock):
        entry = await confirm_anew(scene, room, "again", "again")
        clock.advance(31)
        await until_removed_beside(scene, "never", entry)
        await scene.client.patch(CONFIG_MAPS, held.name, {"metadata": {"finalizers": None}}, namespace=room)


class Unsettled(Owner):
    """An owner that has just taken over from a process that may still write."""

    def __init__(self, clock: StillClock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._until = clock.monotonic() + seconds

    def unsettled(self, key: str) -> float:
        return max(0.0, self._until - self._clock.monotonic())


async def test_an_intended_object_is_looked_for_again_after_the_former_owners_last_possible_write(
    scene: RemovalScene, room: str
) -> None:
    await scene.cluster.create_namespace(room)
    scene.intend(CONFIG_MAPS, room, "late")
    await scene.write()
    clock, told = StillClock(), RemovalLog()
    async with scene.removal(clock=clock, told=told) as removal:

        async def remove(_: str) -> float | None:
            await removal.run()
            return None

        running = asyncio.ensure_future(Fences(Unsettled(clock, 40)).around(remove, str)("shard"))
        await told.until("can create no more objects")
        # The request that the former owner had sent arrives.
        metadata = {"name": "late", "namespace": room, "labels": {OWNER_LABEL: scene.owner.uid}}
        await scene.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
        assert not running.done()
        clock.advance(41)
        async with asyncio.timeout(30):
            await running
    assert (await scene.account())["late"].state == EntryState.REMOVED
    await until_absent(scene.client, CONFIG_MAPS, "late", namespace=room)
