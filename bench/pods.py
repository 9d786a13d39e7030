"""Replicas of the image, run as Pods of the chart: a rolling update with teardowns under way, and fail-over.

**Rolling update.** Clusters of the real Cluster API are deleted and held by an object on their member that has a
finalizer. Some of them are unblocked before the update, the others one after the other while it replaces both replicas.
The wait of a cluster is the time from there until its Teardown is complete, and until Cluster API lets the cluster go,
which asks at most once a second. All clusters lead to one real member, each with a namespace of its own on both sides.

**Fail-over.** The process of a replica is killed, so that its container restarts in the same Pod; or its Pod is
deleted. The time ends when another process owns the last shard of that replica. A deleted Pod works on for five seconds
(`preStop`), so the time without an owner is shown as well. A Pod that is deleted with force leaves no evidence that its
process has ended: its Leases must expire.

The agent that runs the Pods sees the end of a process at once. A kubelet may take a second.
It needs root, and Debian's apt for the image.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop
import yaml

from bench.addons import config_map, following, profile, provisioned
from image import build
from image import helm as image_helm
from unwind import logs
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.features import ALL
from unwind.api.names import NAME_LABEL, OK_TO_DELETE_ANNOTATION, POD_UID_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, LEASES, PODS
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS, Phase
from unwind.capi.admission_policies import extension_name
from unwind.concurrency import gather_limited
from unwind.kube.object_watch import has_condition, until_absent, until_true
from unwind.kube.shards import REPLICA_LEASES, SHARD_LEASES, SHARDS
from unwind.local import capi, tools
from unwind.local.home import Shape
from unwind.local.plane import running
from unwind.local.pods.agent import CHART_VALUES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from image.build import Image
    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane
    from unwind.local.pods.agent import PodAgent

CHART = Path(__file__).parents[1] / "charts" / "unwind"
UNDER_WAY, BEFORE = 50, 10
ADDED_WAIT, FAIL_OVER = 3.0, 6.0
ROUNDS = 3
NAME = "edge"
# The second needs the first, so it is removed first; one of its objects is held.
PROFILES = ("roll-a", "roll-b")
HELD, HOLD = "roll-b-0", "example.dev/backup"
_OBJECTS = 2
_PACE = 0.4
_LONG = 600.0


async def main() -> None:
    logs.setup()
    image = await asyncio.to_thread(lambda: build.ensure(image_helm.native()))
    async with charted(image) as replicas:
        if "fail-over" in sys.argv[1:] or len(sys.argv) == 1:
            tell_takeovers(await fail_over(replicas))
        if "rolling-update" in sys.argv[1:] or len(sys.argv) == 1:
            clusters = HeldClusters(replicas.plane, UNDER_WAY + BEFORE)
            await clusters.begin()
            tell_update(await rolling_update(replicas, clusters, before=BEFORE))


class Replicas:
    """The manager as a Deployment of the chart, with two replicas."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.client = plane.management.client

    async def helm(self, *arguments: str) -> None:
        found = tools.find_binary(tools.HELM)
        assert found, "`make setup` builds it"
        env = os.environ | {"KUBECONFIG": str(self.plane.management.kubeconfig)}
        words = [str(found.path), "--namespace", HOME, *arguments]
        await asyncio.to_thread(lambda: subprocess.run(words, env=env, check=True, capture_output=True, timeout=300))

    async def install(self) -> None:
        await self.plane.management.create_namespace(HOME)
        values = self.plane.directory / "values.json"
        values.write_bytes(msgspec.json.encode({"features": sorted(ALL), **CHART_VALUES}))
        await self.helm("install", "unwind", str(CHART), "--values", str(values))
        await self.ready()
        await until_true(self.client, EXTENSION_CONFIGS, extension_name(HOME), "Discovered", within=120)

    async def update(self, team: str) -> None:
        """Change the Pods' template; return when Helm has written it."""
        await self.helm("upgrade", "unwind", str(CHART), "--reuse-values", "--set", f"podLabels.team={team}")

    async def scale(self, count: int) -> None:
        await self.client.patch(DEPLOYMENTS, "unwind", {"spec": {"replicas": count}}, namespace=HOME)

    async def pods(self) -> list[Object]:
        return await self.client.list(PODS, namespace=HOME, labels=f"{NAME_LABEL}=unwind")

    async def ready(self, team: str = "") -> list[Object]:
        """The Pods, when both are ready and no other exists."""
        async with asyncio.timeout(_LONG):
            while True:
                pods = await self.pods()
                if len(pods) == 2 and all(_is_ready(pod, team) for pod in pods):
                    return pods
                await asyncio.sleep(0.2)

    @property
    def agent(self) -> PodAgent:
        assert self.plane.agent
        return self.plane.agent

    def kill(self, pod: Object) -> None:
        """SIGKILL the manager in a Pod."""
        process = self.agent.runner(pod).containers[0].process
        assert process
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)

    def failed_hook_calls(self) -> list[str]:
        """What Cluster API has logged about calls without a good answer."""
        log = self.plane.management.files.log(capi.USER)
        text = log.read_text(errors="replace")
        return [line for line in text.splitlines() if "failed to call extension handler" in line.lower()]


def _is_ready(pod: Object, team: str) -> bool:
    labels = pod["metadata"]["labels"]
    return has_condition(pod, "Ready") and (not team or labels.get("team") == team)


@asynccontextmanager
async def charted(image: Image) -> AsyncIterator[Replicas]:
    """A plane with Cluster API on which the chart is installed."""
    async with running(Shape(members=1, nodes=True, capi=True, image=str(image.archive))) as plane:
        replicas = Replicas(plane)
        await replicas.install()
        yield replicas


# Rolling update


class HeldClusters:
    """Clusters that are being deleted, each held by one object on the member."""

    def __init__(self, plane: Plane, count: int) -> None:
        self.plane = plane
        self.client = plane.management.client
        [self.member] = plane.members.values()
        self.places = [f"roll-{number:03}" for number in range(count)]
        self.uids: dict[str, str] = {}
        self.complete: dict[str, float] = {}
        """When the Teardown was complete, by place."""
        self.let_go: dict[str, float] = {}
        """When Cluster API let the Cluster go, by place."""

    async def begin(self) -> None:
        """Deploy the add-ons of all clusters, and delete all clusters; return when each is held."""
        await self._deploy()
        for cluster in await self.client.list(CLUSTERS):
            self.uids[cluster["metadata"]["namespace"]] = cluster["metadata"]["uid"]
        left, blocked = set(self.places), set(self.places)

        def held(_: str, obj: Object) -> bool:
            conditions = (obj.get("status") or {}).get("conditions") or ()
            reasons = {one["reason"] for one in conditions if one["type"] == "Deleting"}
            if "WaitingForBeforeDeleteHook" in reasons:
                left.discard(obj["metadata"]["namespace"])
            return not left

        def is_blocked(_: str, obj: Object) -> bool:
            if obj["metadata"]["name"] == HELD and "deletionTimestamp" in obj["metadata"]:
                blocked.discard(obj["metadata"]["namespace"])
            return not blocked

        async with (
            following(self.client, CLUSTERS, held) as all_held,
            following(self.member.client, CONFIG_MAPS, is_blocked) as all_blocked,
        ):
            await gather_limited((self._delete(place) for place in self.places), limit=8)
            await all_held()
            await all_blocked()

    async def _deploy(self) -> None:
        before: list[str] = []
        for name in PROFILES:
            # Without a namespace its source is looked for in each cluster's own.
            spec = {"policyRefs": [{"kind": "ConfigMap", "name": name}], "dependsOn": before}
            enforced = {"clusterDeletionBehavior": "EnforceRemovePolicies"}
            await self.client.create(CLUSTER_PROFILES, profile(name, {"roll": "on"}, **spec, **enforced))
            before = [name]
        left = {f"{place}/{name}-capi-{NAME}" for place in self.places for name in PROFILES}
        async with following(self.client, CLUSTER_SUMMARIES, provisioned(left)) as deployed:
            await gather_limited((self._place(place) for place in self.places), limit=4)
            await deployed()
        for place in self.places:
            # As another field manager: what Unwind wrote and does not apply any more is removed.
            patch = {"metadata": {"finalizers": [HOLD]}}
            await self.member.client.patch(CONFIG_MAPS, HELD, patch, namespace=place, field_manager="backup")

    async def _place(self, place: str) -> None:
        await self.plane.management.create_namespace(place)
        await self.member.create_namespace(place)
        for name in PROFILES:
            objects = [config_map(place, f"{name}-{number}") for number in range(_OBJECTS)]
            await self.client.create(CONFIG_MAPS, config_map(place, name, all=yaml.dump_all(objects)))
        await capi.create_cluster(
            self.client, name=NAME, namespace=place, member=self.member.name, labels={"roll": "on"}, within=300
        )

    async def _delete(self, place: str) -> None:
        await self.client.delete(CLUSTERS, NAME, uid=self.uids[place], namespace=place)

    async def unblock(self, place: str) -> None:
        patch = {"metadata": {"finalizers": None}}
        await self.member.client.patch(CONFIG_MAPS, HELD, patch, namespace=place)

    @asynccontextmanager
    async def watched(self, places: list[str]) -> AsyncIterator[Callable[[], Any]]:
        """Note the ends of these clusters; what it yields returns when all have ended."""
        by_uid = {self.uids[place]: place for place in places}

        def is_complete(_: str, obj: Object) -> bool:
            place = by_uid.get(obj["metadata"]["name"])
            if place and (obj.get("status") or {}).get("phase") == Phase.COMPLETE:
                self.complete.setdefault(place, time.monotonic())
            return self.complete.keys() >= set(places)

        def is_let_go(type_: str, obj: Object) -> bool:
            annotations = obj["metadata"].get("annotations") or {}
            if type_ == "DELETED" or OK_TO_DELETE_ANNOTATION in annotations:
                self.let_go.setdefault(obj["metadata"]["namespace"], time.monotonic())
            return self.let_go.keys() >= set(places)

        async with (
            following(self.client, TEARDOWNS, is_complete) as complete,
            following(self.client, CLUSTERS, is_let_go) as let_go,
        ):

            async def ended() -> None:
                await complete()
                await let_go()

            yield ended

    async def absent(self, places: list[str]) -> None:
        for place in places:
            await until_absent(self.client, CLUSTERS, NAME, namespace=place, within=_LONG)

    def deletes(self) -> Counter[str]:
        """How many DELETEs were sent for each object on the member, whatever the answer."""
        found = self.member.audit.entries(verbs=("delete", "deletecollection"), resource=CONFIG_MAPS.plural)
        return Counter(
            f"{entry.object_ref.namespace}/{entry.object_ref.name}"
            for entry in found
            if entry.object_ref.namespace in self.uids
        )

    def objects(self, places: list[str]) -> set[str]:
        return {f"{place}/{name}-{number}" for place in places for name in PROFILES for number in range(_OBJECTS)}


class Wait(msgspec.Struct, frozen=True):
    """Seconds from the end of the blocker."""

    at: float
    """When the blocker ended, in seconds from the start of the update."""
    complete: float
    let_go: float


class RollingUpdate(msgspec.Struct, frozen=True):
    """What happened during a rolling update."""

    failed_hook_calls: list[str]
    deletes: Counter[str]
    took: float
    before: list[Wait]
    during: list[Wait]
    after: list[Wait]
    """Of the clusters that were unblocked when both replicas had been replaced."""


async def rolling_update(
    replicas: Replicas, clusters: HeldClusters, *, before: int, places: list[str] | None = None
) -> RollingUpdate:
    """Unblock clusters before and during a rolling update; returns when they are gone."""
    places = clusters.places if places is None else places
    first, rest = places[:before], places[before:]
    unblocked: dict[str, float] = {}

    async def unblock(place: str) -> None:
        unblocked[place] = time.monotonic()
        await clusters.unblock(place)
        await asyncio.sleep(_PACE)

    async with clusters.watched(first) as ended:
        for place in first:
            await unblock(place)
        await ended()
    async with clusters.watched(rest) as ended:
        began = time.monotonic()
        await replicas.update("new")
        updated = asyncio.create_task(replicas.ready("new"))
        took: list[float] = []
        updated.add_done_callback(lambda _: took.append(time.monotonic()))
        for place in rest:
            await unblock(place)
        await updated
        await ended()
    await clusters.absent(places)

    def wait(place: str) -> Wait:
        since = unblocked[place]
        return Wait(since - began, clusters.complete[place] - since, clusters.let_go[place] - since)

    return RollingUpdate(
        failed_hook_calls=replicas.failed_hook_calls(),
        deletes=clusters.deletes(),
        took=took[0] - began,
        before=[wait(place) for place in first],
        during=[wait(place) for place in rest if unblocked[place] < took[0]],
        after=[wait(place) for place in rest if unblocked[place] >= took[0]],
    )


def tell_update(found: RollingUpdate) -> None:
    print(f"rolling update of two replicas: {found.took:.1f} s; {len(found.during)} clusters unblocked in that time")
    twice = [name for name, count in found.deletes.items() if count > 1]
    for what, wrong in (("failed hook calls", found.failed_hook_calls), ("objects with two DELETEs", twice)):
        print(f"{what:<62} {len(wrong)} (goal 0) {'MISSED' if wrong else 'ok'}")
        for line in wrong[:5]:
            print(f"  {line}")
    parts = {"before": found.before, "during": found.during, "after": found.after}
    for field, what in (("complete", "Teardown complete"), ("let_go", "Cluster API lets it go")):
        waits = {when: [getattr(wait, field) for wait in some] for when, some in parts.items() if some}
        for when, some in waits.items():
            title = f"unblocked -> {what}, {when} the update"
            print(f"{title:<62} median {statistics.median(some):5.2f} s, worst {max(some):5.2f} s of {len(some)}")
        worst = sorted(found.during, key=lambda wait: getattr(wait, field), reverse=True)[:5]
        each = ", ".join(f"{getattr(wait, field):.1f} ({wait.at:.0f})" for wait in worst)
        print(f"  the longest during the update, in brackets the second in it: {each}")
        added = max(waits["during"]) - statistics.median(waits["before"])
        verdict = "ok" if added <= ADDED_WAIT else "MISSED"
        print(f"{'  added to the median at worst':<62} {added:5.2f} s (goal {ADDED_WAIT} s) {verdict}")


# Fail-over


class Takeover(msgspec.Struct, frozen=True):
    """How the shards of one replica were taken over, in seconds."""

    how: str
    took: float
    """From the event until another process owns the last of them."""
    unowned: float
    """The longest time in which no live process owned one of them."""


class Holders:
    """Who holds each shard, and since when."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.holders: dict[str, tuple[str, float]] = {}
        self.released: dict[str, float] = {}
        self.replicas: dict[str, str] = {}
        """The identity of the replica in a Pod, by uid."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        while True:
            async with aclosing(self._client.watch(LEASES, namespace=HOME)) as events:
                async for event in events:
                    self._see(event.type, event.object)
                    self._changed.set()

    def _see(self, type_: str, lease: Object) -> None:
        name, now = lease["metadata"]["name"], time.monotonic()
        if name.startswith(REPLICA_LEASES):
            uid = (lease["metadata"].get("annotations") or {}).get(POD_UID_ANNOTATION)
            if uid and type_ != "DELETED":
                self.replicas[uid] = name.removeprefix(REPLICA_LEASES)
        elif name.startswith(SHARD_LEASES):
            holder = lease["spec"].get("holderIdentity") or ""
            if self.holders.get(name, ("", 0.0))[0] != holder:
                self.holders[name] = (holder, now)
            if not holder:
                self.released[name] = now

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def of(self, identity: str) -> set[str]:
        return {name for name, (holder, _) in self.holders.items() if holder == identity}

    def spread(self, pods: list[Object]) -> bool:
        """Whether each of two Pods holds one half."""
        found = [self.of(self.replicas.get(pod["metadata"]["uid"], "-")) for pod in pods]
        return [len(some) for some in found] == [SHARDS // 2] * 2


async def fail_over(replicas: Replicas) -> list[Takeover]:
    holders = Holders(replicas.client)
    watching = asyncio.create_task(holders.run())
    try:
        found = []
        for _ in range(ROUNDS):
            # A container is killed in its first run only: later restarts are delayed, by the kubelet, too.
            for how in ("container killed", "container killed", "Pod deleted", "Pod deleted"):
                pods = await replicas.ready()
                await holders.until(lambda pods=pods: holders.spread(pods))  # type: ignore[misc]
                victims = [pod for pod in pods if not pod["status"]["containerStatuses"][0]["restartCount"]]
                found.append(await _take_over(replicas, holders, (victims or pods)[0], how))
        pods = await replicas.ready()
        await holders.until(lambda: holders.spread(pods))
        found.append(await _take_over(replicas, holders, pods[0], "Pod deleted with force"))
        return found
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _take_over(replicas: Replicas, holders: Holders, pod: Object, how: str) -> Takeover:
    metadata = pod["metadata"]
    identity = holders.replicas[metadata["uid"]]
    shards = holders.of(identity)
    assert shards
    began = time.monotonic()
    if how == "container killed":
        replicas.kill(pod)
    else:
        grace = 0 if how.endswith("with force") else None
        await replicas.client.delete(PODS, metadata["name"], uid=metadata["uid"], namespace=HOME, grace=grace)
    await holders.until(lambda: all(holders.holders[name][0] not in ("", identity) for name in shards))
    taken = {name: holders.holders[name][1] for name in shards}
    killed = how != "Pod deleted"
    since = {name: began if killed else holders.released.get(name, began) for name in shards}
    return Takeover(how, max(taken.values()) - began, max(taken[name] - since[name] for name in shards))


def tell_takeovers(found: list[Takeover]) -> None:
    for how in dict.fromkeys(one.how for one in found):
        some = [one for one in found if one.how == how]
        took, unowned = max(one.took for one in some), max(one.unowned for one in some)
        each = ", ".join(f"{one.took:.1f} ({one.unowned:.1f})" for one in some)
        goal = "" if "force" in how else f" (goal {FAIL_OVER} s) {'ok' if unowned <= FAIL_OVER else 'MISSED'}"
        what = f"{how} -> shards owned by another process"
        print(f"{what:<62} worst {took:5.2f} s, without owner {unowned:5.2f} s{goal}")
        print(f"  each, in brackets without owner: {each}")


if __name__ == "__main__":
    uvloop.run(main())
