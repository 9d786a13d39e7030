"""Shards on real Leases: spread over the replicas, re-spread when one joins, leaves, dies or falls asleep."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tests.eventually import eventually
from tests.plane.test_informers import through_proxy
from unwind.api.resources import CONFIG_MAPS, LEASES
from unwind.kube.client import DEADLINE, Client
from unwind.kube.object_watch import until_absent
from unwind.kube.shards import SHARD_LEASES, SHARDS, Shards, Timing, shard_of
from unwind.testing.clock import StillClock
from unwind.testing.managers import manager_client, manager_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

QUICK = Timing(lasts=3.0, renew=0.6, acts=2.0, steady=0.0)


@asynccontextmanager
async def replica(client: Client, namespace: str, identity: str) -> AsyncIterator[Shards]:
    async with manager_client(client, namespace) as own, asyncio.TaskGroup() as group:
        shards = Shards(own, namespace=namespace, identity=identity, timing=QUICK)
        task = group.create_task(shards.run())
        yield shards
        task.cancel()


def owners(*replicas: Shards) -> Counter[int]:
    """How many replicas there are for each shard."""
    return Counter(shard for shards in replicas for shard in shards.owned)


@asynccontextmanager
async def sole_replica(client: Client, namespace: str) -> AsyncIterator[Shards]:
    """A replica that owns all shards."""
    async with replica(client, namespace, "a") as a:
        await eventually(lambda: len(a.owned) == 16)
        yield a


async def test_one_replica_has_every_shard_and_leads(plane: Plane, namespace: str) -> None:
    async with sole_replica(plane.management.client, namespace) as a:
        assert a.leads
        assert a.owns("any-cluster")


async def until_owned(one: Shards, count: int, *, beside: Shards) -> None:
    """Return when a replica owns so many shards. Meanwhile no shard has two owners."""

    def owned() -> bool:
        assert max(owners(one, beside).values(), default=0) <= 1
        return len(one.owned) >= count

    await eventually(owned, f"{count} shards", within=30, every=0.002)


async def test_replicas_that_join_and_leave_share_the_shards_and_none_has_two_owners(
    plane: Plane, namespace: str
) -> None:
    client = plane.management.client
    async with sole_replica(client, namespace) as a:
        async with replica(client, namespace, "b") as b:
            await until_owned(b, 8, beside=a)
            assert (len(a.owned), len(b.owned)) == (8, 8)
        # It let go when it left: nobody has to wait until its Leases run out.
        await eventually(lambda: len(a.owned) == 16)
    leases = await client.list(LEASES, namespace=namespace)
    assert {lease["spec"]["holderIdentity"] for lease in leases} == {""}, "nobody holds anything any more"
    assert not [lease for lease in leases if "replica" in lease["metadata"]["name"]]


async def test_replicas_that_join_and_leave_move_no_shard_between_the_others(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    async with replica(client, namespace, "b") as b, replica(client, namespace, "c") as c:
        await eventually(lambda: (len(b.owned), len(c.owned)) == (8, 8))
        before = b.owned, c.owned
        async with replica(client, namespace, "a") as a:
            await eventually(lambda: sorted((len(a.owned), len(b.owned), len(c.owned))) == [5, 5, 6])
            assert b.owned < before[0]
            assert c.owned < before[1]
            between = b.owned, c.owned
        await eventually(lambda: (len(b.owned), len(c.owned)) == (8, 8))
        assert b.owned > between[0]
        assert c.owned > between[1]


def all_see(replicas: list[Shards], identity: str) -> bool:
    """Whether each of these replicas has seen this one."""
    return all(identity in shards._alive_before for shards in replicas)


async def test_in_a_rolling_update_each_shard_moves_once_when_its_owner_leaves(plane: Plane, namespace: str) -> None:
    client, clock = plane.management.client, StillClock()
    joining = {name: asyncio.Event() for name in "abcd"}
    leaving = {name: asyncio.Event() for name in "abcd"}

    async def moves() -> dict[str, int]:
        """How often each shard was released or taken."""
        leases = await client.list(LEASES, namespace=namespace)
        return {
            lease["metadata"]["name"]: lease["spec"].get("leaseTransitions", 0)
            for lease in leases
            if lease["metadata"]["name"].startswith(SHARD_LEASES)
        }

    async with manager_client(client, namespace) as own, asyncio.TaskGroup() as group:
        timing = Timing(steady=5.0)
        shards = {name: Shards(own, namespace=namespace, identity=name, timing=timing, clock=clock) for name in joining}

        async def run(name: str) -> None:
            await joining[name].wait()
            task = group.create_task(shards[name].run())
            await leaving[name].wait()
            task.cancel()

        for name in joining:
            group.create_task(run(name))
        joining["a"].set()
        await eventually(lambda: len(shards["a"].owned) == SHARDS)
        joining["b"].set()
        await eventually(partial(all_see, [shards["a"], shards["b"]], "b"))
        clock.advance(6)
        await eventually(lambda: (len(shards["a"].owned), len(shards["b"].owned)) == (8, 8))
        before = await moves()
        for running, joins, leaves in (("abc", "c", "a"), ("bcd", "d", "b")):
            joining[joins].set()
            await eventually(partial(all_see, [shards[name] for name in running], joins))
            leaving[leaves].set()
            await eventually(lambda: sum(len(some.owned) for some in shards.values()) == SHARDS)
        await eventually(lambda: (len(shards["c"].owned), len(shards["d"].owned)) == (8, 8))
        assert await moves() == {name: count + 2 for name, count in before.items()}, "released once, and taken once"
        for event in leaving.values():
            event.set()


async def test_shards_are_spread_in_turn_while_a_replica_of_an_earlier_version_runs(
    plane: Plane, namespace: str
) -> None:
    client, even = plane.management.client, frozenset(range(0, SHARDS, 2))
    metadata = {"name": "unwind-replica-z", "namespace": namespace}
    spec = {"holderIdentity": "z", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
    async with manager_client(client, namespace) as own, asyncio.TaskGroup() as group:
        shards = Shards(own, namespace=namespace, identity="a", clock=StillClock())
        task = group.create_task(shards.run())
        await eventually(lambda: len(shards.owned) == SHARDS)
        made = await client.create(LEASES, body)
        await eventually(lambda: shards.owned == even)
        await client.delete(LEASES, "unwind-replica-z", uid=made["metadata"]["uid"], namespace=namespace)
        await eventually(lambda: len(shards.owned) == SHARDS)
        task.cancel()


async def test_a_replica_that_was_asleep_is_told_when_it_may_act_again(plane: Plane, namespace: str) -> None:
    clock, told = StillClock(), []
    async with manager_client(plane.management.client, namespace) as own, asyncio.TaskGroup() as group:
        shards = Shards(own, namespace=namespace, identity="a", clock=clock)
        task = group.create_task(shards.run())
        await eventually(lambda: len(shards.owned) == 16)
        shards.subscribe(lambda: told.append(len(shards.owned)))
        clock.advance(12)
        assert not shards.owned
        # Nobody else took them: it holds the same Leases as before, and in between it did nothing for them.
        await eventually(lambda: told == [16])
        task.cancel()


class Late(Client):
    """Something takes its time before a Lease is renewed, once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.meanwhile: Callable[[], None] | None = None

    async def patch(self, resource: Resource, name: str, patch: Any, **more: Any) -> Object:
        if resource == LEASES and (meanwhile := self.meanwhile):
            self.meanwhile = None
            meanwhile()
        return await super().patch(resource, name, patch, **more)


async def test_who_was_refused_while_a_renewal_took_its_time_is_told_when_it_may_act_again(
    plane: Plane, namespace: str
) -> None:
    clock, told, asked = StillClock(), list[int](), list[bool]()

    def meanwhile() -> None:
        clock.advance(2)  # more than it may act for since the renewal before
        asked.append(shards.owns("any-cluster"))

    async with Late(await manager_connection(plane.management.client, namespace)) as client:
        shards = Shards(client, namespace=namespace, identity="a", clock=clock)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(shards.run())
            await eventually(lambda: len(shards.owned) == 16)
            shards.subscribe(lambda: told.append(len(shards.owned)))
            client.meanwhile = meanwhile
            clock.advance(9)
            await eventually(lambda: asked == [False] and told == [16])
            task.cancel()


class Answered(Client):
    """The server answers to renewals after a while; it does what it is asked for at once."""

    def __init__(self, *arguments: Any, after: float = 0.0) -> None:
        super().__init__(*arguments)
        self._after = after
        self.renewals = Counter[str]()
        self.before_next: Callable[[str], Awaitable[object]] | None = None

    async def patch(self, resource: Resource, name: str, patch: Any, **more: Any) -> Object:
        before, self.before_next = self.before_next, None
        if before:
            await before(name)
        made = await super().patch(resource, name, patch, **more)
        await asyncio.sleep(self._after)
        self.renewals[name] += 1
        return made


async def test_no_shard_is_lost_while_the_server_answers_later_than_leases_are_renewed(
    plane: Plane, namespace: str
) -> None:
    told: list[int] = []
    connection = await manager_connection(plane.management.client, namespace)
    timing = Timing(lasts=30.0, renew=0.2, acts=20.0)
    async with Answered(connection, after=0.6) as client, asyncio.TaskGroup() as group:
        shards = Shards(client, namespace=namespace, identity="a", timing=timing)
        shards.subscribe(lambda: told.append(len(shards.owned)))
        task = group.create_task(shards.run())
        await eventually(lambda: told[-1:] == [SHARDS])
        told.clear()
        await eventually(lambda: len(client.renewals) > SHARDS and min(client.renewals.values()) > 2)
        assert told == [], "none was lost or gained"
        task.cancel()


async def test_a_shard_stays_ours_if_its_lease_was_changed_before_it_was_renewed(plane: Plane, namespace: str) -> None:
    changed, told = list[str](), list[int]()

    async def change(name: str) -> None:
        changed.append(name)
        patch = {"metadata": {"annotations": {"example.dev/seen": "yes"}}}
        await plane.management.client.patch(LEASES, name, patch, namespace=namespace)

    connection = await manager_connection(plane.management.client, namespace)
    async with Answered(connection) as client, asyncio.TaskGroup() as group:
        shards = Shards(client, namespace=namespace, identity="a", timing=Timing(renew=0.2))
        shards.subscribe(lambda: told.append(len(shards.owned)))
        task = group.create_task(shards.run())
        await eventually(lambda: told[-1:] == [SHARDS])
        told.clear()
        while not any(name.startswith(SHARD_LEASES) for name in changed):
            before, client.before_next = len(changed), change
            await eventually(partial(lambda before: len(changed) > before, before))
        renewals = client.renewals[changed[-1]]
        await eventually(lambda: client.renewals[changed[-1]] > renewals)
        assert told == [], "none was lost or gained"
        task.cancel()


class Slow(Client):
    """Hears of what it has created a moment later."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.created = asyncio.Event()

    async def create(self, resource: Resource, body: Object, **more: Any) -> Object:
        made = await super().create(resource, body, **more)
        self.created.set()
        await asyncio.sleep(0.1)
        return made


async def test_a_replica_that_is_stopped_while_it_takes_shards_leaves_none_behind(plane: Plane, namespace: str) -> None:
    async with Slow(await manager_connection(plane.management.client, namespace)) as client:
        async with replica(client, namespace, "a"):
            await client.created.wait()
            client.created.clear()
            await client.created.wait()
        leases = await client.list(LEASES, namespace=namespace)
    assert {lease["spec"]["holderIdentity"] for lease in leases} <= {""}
    assert not [lease for lease in leases if "replica" in lease["metadata"]["name"]]


async def test_the_lease_of_a_replica_that_was_killed_is_cleared_away(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    metadata = {"name": "unwind-replica-dead", "namespace": namespace}
    spec = {"holderIdentity": "dead", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 2}
    await client.create(LEASES, {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec})
    timing = msgspec.structs.replace(QUICK, forgotten=3.0)
    async with manager_client(client, namespace) as own, asyncio.TaskGroup() as group:
        shards = Shards(own, namespace=namespace, identity="a", timing=timing)
        task = group.create_task(shards.run())
        # By our clock it was seen a moment ago: it counts as alive until it has been silent for long enough.
        await eventually(lambda: 0 < len(shards.owned) < 16)
        await until_absent(client, LEASES, "unwind-replica-dead", namespace=namespace)
        await eventually(lambda: len(shards.owned) == 16)
        task.cancel()


async def test_a_replica_that_cannot_reach_the_server_stops_acting_before_another_takes_over(
    plane: Plane, namespace: str
) -> None:
    async with through_proxy(plane.management) as (client, proxy), replica(client, namespace, "a") as a:
        await eventually(lambda: len(a.owned) == 16)
        async with replica(plane.management.client, namespace, "b") as b:
            await eventually(lambda: len(b.owned) == 8)
            proxy.hold()
            await until_owned(b, 16, beside=a)
            assert not a.owned
            proxy.cut()
            proxy.resume()
            await eventually(lambda: len(a.owned) == 8 and len(b.owned) == 8)


ACTING = """
import asyncio, sys, pathlib
from unwind.api.resources import CONFIG_MAPS
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.shards import Shards, Timing

async def main(config, namespace, identity, key):
    async with Client(kubeconfig.load(pathlib.Path(config))) as client, asyncio.TaskGroup() as group:
        # Another replica that is slow to renew its Leases loses none to this one: it may act only if it believes to be
        # the owner still.
        shards = Shards(client, namespace=namespace, identity=identity,
                        timing=Timing(lasts=600.0, renew=0.6, acts=2.0, steady=0.0))
        group.create_task(shards.run())
        for number in range(100000):
            if shards.owns(key):
                metadata = {"generateName": f"{identity}-", "namespace": namespace}
                await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
                print("acted", flush=True)
            await asyncio.sleep(0.01)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_an_owner_that_was_stopped_and_wakes_up_late_does_not_act(plane: Plane, namespace: str) -> None:
    cluster = plane.management
    config = str(cluster.write_kubeconfig("sleeper", groups=("system:masters",)))
    # A replica with too many shards keeps the first ones: what a loses of them in its sleep, it does not get back.
    key = next(
        f"cluster-{number}" for number in range(99) if shard_of(f"cluster-{number}", shards=SHARDS) < SHARDS // 2
    )
    sleeper = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ACTING, config, namespace, "a", key, stdout=subprocess.PIPE
    )
    assert sleeper.stdout

    def acts() -> int:
        return len(list(cluster.audit.entries(verbs=("create",), user="sleeper", resource=CONFIG_MAPS.plural)))

    try:
        async with asyncio.timeout(30):
            await sleeper.stdout.readline()
        sleeper.send_signal(signal.SIGSTOP)
        async with replica(cluster.client, namespace, "b") as b:
            await eventually(lambda: b.owns(key))
            before = acts()
            assert before
            sleeper.send_signal(signal.SIGCONT)
            # It is awake, and knows where it is, when it has its own half again.
            await eventually(lambda: len(b.owned) == SHARDS // 2 and b.owns(key))
            # One act may have been decided on before the sleep and is sent after it: no Lease can rule that out.
            # Whoever believed to own the key still would act every 10 ms.
            assert acts() <= before + 1
    finally:
        sleeper.kill()
        await sleeper.wait()


async def test_the_next_owner_of_a_shard_knows_how_long_the_former_may_still_write(
    plane: Plane, namespace: str
) -> None:
    client = plane.management.client
    async with sole_replica(client, namespace) as a:
        assert a.unsettled("any-cluster") == 0, "nobody was there before"
        async with replica(client, namespace, "b") as b:
            await eventually(lambda: len(b.owned) == 8)
            [key] = [key for key in map(str, range(100)) if b.owns(key)][:1]
            # A lease and the deadline of a request, after the last that was heard of the former owner.
            assert DEADLINE < b.unsettled(key) <= DEADLINE + QUICK.lasts
            b.drained = True
        await eventually(lambda: len(a.owned) == 16)
        assert a.unsettled(key) == 0, "nothing was under way any more"
