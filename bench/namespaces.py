"""A chain of profiles with a Namespace each, withdrawn from a member, against the same DELETEs and nothing else.

Kubernetes waits five seconds before it finalizes any Namespace. Both sides pay that once: the bare side deletes the
next wave when the ConfigMaps of the one before are gone, and waits for the Namespaces in the end.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import uvloop
import yaml

from bench.addons import (
    AT_ONCE,
    OBJECTS,
    REST,
    Bare,
    bare_session,
    config_map,
    following,
    gone,
    managing,
    profile,
    provisioned,
    register,
    timed,
)
from bench.ratios import Ratio, alternate
from unwind.api.resources import CONFIG_MAPS, NAMESPACES
from unwind.api.rights import Setting
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES, SVELTOS_CLUSTERS
from unwind.concurrency import gather_limited
from unwind.install.install import install
from unwind.local.home import Shape
from unwind.local.plane import running

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.kube.client import Object
    from unwind.local.plane import Plane

CHAIN, RUNS = 10, 3
PLACE = "rooms"


async def main() -> None:
    async with running(Shape(members=1)) as plane:
        await install(plane.management.client, Setting())
        async with managing(plane.management), bare_session(plane) as session:
            await chain(plane, session)


def namespace_body(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def ended(left: set[str]) -> Callable[[str, Object], bool]:
    """True when these Namespaces were reported as deleted."""

    def over(type_: str, obj: Object) -> bool:
        if type_ == "DELETED":
            left.discard(obj["metadata"]["name"])
        return not left

    return over


class Rooms:
    """Profiles in a chain, each with a Namespace and ConfigMaps in it."""

    def __init__(self, plane: Plane) -> None:
        self.client = plane.management.client
        [self.member] = plane.members.values()
        self.names = [f"{PLACE}-{number:02}" for number in range(CHAIN)]
        """Profiles and their Namespaces, in the order in which they are deployed."""

    def objects(self, name: str) -> list[str]:
        return [f"{name}/{number:02}" for number in range(OBJECTS)]

    async def make(self) -> None:
        before: list[str] = []
        for name in self.names:
            bodies = [namespace_body(name), *(config_map(*item.split("/")) for item in self.objects(name))]
            await self.client.create(CONFIG_MAPS, config_map(PLACE, name, all=yaml.dump_all(bodies)))
            refs = [{"kind": "ConfigMap", "namespace": PLACE, "name": name}]
            await self.client.create(CLUSTER_PROFILES, profile(name, {"app": PLACE}, policyRefs=refs, dependsOn=before))
            before = [name]

    async def _label(self, value: str | None) -> None:
        patch = {"metadata": {"labels": {"app": value}}}
        await self.client.patch(SVELTOS_CLUSTERS, "edge", patch, namespace=PLACE)

    async def withdraw(self) -> float:
        """Deploy the chain, then withdraw it; the seconds until the last Namespace was absent."""
        summaries = {f"{PLACE}/{name}-sveltos-edge" for name in self.names}
        async with following(self.client, CLUSTER_SUMMARIES, provisioned(set(summaries)), namespace=PLACE) as deployed:
            await self._label(PLACE)
            await deployed()
        await asyncio.sleep(REST)
        async with (
            following(self.client, CLUSTER_SUMMARIES, gone(summaries), namespace=PLACE) as tidy,
            following(self.member.client, NAMESPACES, ended(set(self.names))) as over,
        ):
            return await timed(self._label(None), over, tidy)

    async def withdraw_bare(self, bare: Bare) -> float:
        """The same objects, created and deleted with nothing around it; only the deletions are counted."""
        uids: dict[str, str] = {}

        async def create(where: str) -> None:
            uids[where] = await bare.create(config_map(*where.split("/")))

        for name in self.names:
            made = await self.member.client.create(NAMESPACES, namespace_body(name))
            uids[name] = made["metadata"]["uid"]
            await gather_limited((create(item) for item in self.objects(name)), limit=AT_ONCE)
        await asyncio.sleep(REST)
        await bare.warm()
        async with following(self.member.client, NAMESPACES, ended(set(self.names))) as over:
            began = time.perf_counter()
            for name in reversed(self.names):
                async with following(
                    self.member.client, CONFIG_MAPS, gone(set(self.objects(name))), namespace=name
                ) as it:
                    await gather_limited((bare.delete(item, uids[item]) for item in self.objects(name)), limit=AT_ONCE)
                    await it()
                await bare.delete_namespace(name, uids[name])
            await over()
            return time.perf_counter() - began


async def chain(plane: Plane, bare: Bare) -> None:
    await register(plane, PLACE)
    rooms = Rooms(plane)
    await rooms.make()
    await rooms.withdraw()  # not counted: the manager may still be starting
    took = await alternate(rooms.withdraw, lambda: rooms.withdraw_bare(bare), runs=RUNS)
    what = f"withdraw a chain of {CHAIN} Namespaces x {OBJECTS}"
    print(Ratio(what, "bare DELETEs, and once five seconds", *took, goal=1.3), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
