"""Watches that are shared by all who wait, on a real API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.kube.client import Client
from unwind.kube.errors import UnreachableError
from unwind.kube.watches import LINGER, Watches
from unwind.testing.clock import StillClock
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from unwind.kube.client import Object
    from unwind.local.plane import Plane


async def made(client: Client, namespace: str, name: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "labels": {"app": "x"}}
    return await client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


async def test_one_watch_serves_all_who_wait_and_ends_a_while_after_the_last(plane: Plane, namespace: str) -> None:
    client, clock = plane.management.client, StillClock()
    one, two = [await made(client, namespace, name) for name in ("one", "two")]
    async with Watches(client, clock=clock) as watches:
        first, second = [
            await watches.absence(
                CONFIG_MAPS, name=it["metadata"]["name"], uid=it["metadata"]["uid"], namespace=namespace
            )
            for it in (one, two)
        ]
        assert watches.open == {CONFIG_MAPS}
        first.close()
        first.close()
        clock.advance(2 * LINGER)
        assert watches.open == {CONFIG_MAPS}
        second.close()
        clock.advance(LINGER / 2)
        third = await watches.changes(CONFIG_MAPS, namespace=namespace)
        clock.advance(2 * LINGER)
        assert watches.open == {CONFIG_MAPS}
        third.close()
        clock.advance(LINGER)
        assert watches.open == set()


async def test_a_label_that_goes_is_a_change_and_no_absence(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    it = await made(client, namespace, "labelled")
    async with Watches(client) as watches:
        absence = await watches.absence(CONFIG_MAPS, name="labelled", uid=it["metadata"]["uid"], namespace=namespace)
        changes = await watches.changes(CONFIG_MAPS, namespace=namespace, name="labelled")
        other = await watches.changes(CONFIG_MAPS, namespace="elsewhere")
        await client.patch(CONFIG_MAPS, "labelled", {"metadata": {"labels": None}}, namespace=namespace)
        await changes.wait()
        assert not absence.happened
        assert not other.happened
        await client.delete(CONFIG_MAPS, "labelled", uid=it["metadata"]["uid"], namespace=namespace)
        await absence.wait()
        for item in (absence, changes, other):
            item.close()


async def test_what_went_while_the_server_was_away_is_told_by_the_list(plane: Plane, namespace: str) -> None:
    direct = plane.management.client
    it = await made(direct, namespace, "unseen")
    async with Proxy(plane.management.server) as proxy:
        connection = msgspec.structs.replace(direct.connection, server=proxy.url)
        async with Client(connection) as client, Watches(client, cluster=await client.cluster_uid()) as watches:
            absence = await watches.absence(CONFIG_MAPS, name="unseen", uid=it["metadata"]["uid"], namespace=namespace)
            proxy.close()
            await direct.delete(CONFIG_MAPS, "unseen", uid=it["metadata"]["uid"], namespace=namespace)
            proxy.reopen()
            await absence.wait()
            absence.close()


async def test_the_list_of_another_cluster_is_not_believed(plane: Plane, namespace: str) -> None:
    client, clock = plane.management.client, StillClock()
    told: list[str] = []
    async with Watches(client, cluster="another-uid", clock=clock, troubled=lambda e: told.append(str(e))) as watches:
        for _ in range(2):
            with pytest.raises(UnreachableError, match="cannot watch secrets: another cluster answers"):
                await watches.absence(SECRETS, name="gone-there", uid="x", namespace=namespace)
    assert "another cluster answers at " in told[0]


async def test_an_object_that_comes_again_under_its_name_is_another(plane: Plane, namespace: str) -> None:
    client = plane.management.client
    before = await made(client, namespace, "again")
    uid = before["metadata"]["uid"]
    async with Watches(client) as watches:
        old = await watches.absence(CONFIG_MAPS, name="again", uid=uid, namespace=namespace)
        assert old.seen is not None
        await client.delete(CONFIG_MAPS, "again", uid=uid, namespace=namespace)
        after = await made(client, namespace, "again")
        await old.wait()
        new = await watches.absence(CONFIG_MAPS, name="again", uid=after["metadata"]["uid"], namespace=namespace)
        assert not new.happened
        old.close()
        new.close()
