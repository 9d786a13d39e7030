"""`kubectl delete cluster` with the real Cluster API: who waits for what, and for whom nobody waits."""

from __future__ import annotations

import signal
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.e2e.gated_clusters import ENFORCE, LEAVE, OURS, REMOVE, WAITING, GateScene
from tests.eventually import eventually
from tests.plane.support.objects import until_allowed
from tests.plane.support.profiles import condition, config_map
from unwind.api import meta
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.names import FORCE_RELEASE_ANNOTATION, OK_TO_DELETE_ANNOTATION
from unwind.api.resources import NAMESPACES
from unwind.api.sveltos import CLUSTER_PROFILES
from unwind.api.unwind import Phase
from unwind.concurrency import gather_limited
from unwind.kube import object_watch
from unwind.kube.errors import ApiError
from unwind.local.capi import USER as CLUSTER_API
from unwind.local.processes import ProcessId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.e2e.gated_clusters import GatedCluster, Ground
    from tests.plane.support.manager_process import Manager
    from unwind.kube.client import Object
    from unwind.local.audit_log import AuditEvent

FIFTY = 50


pytestmark = pytest.mark.usefixtures("manager")


async def test_a_deleted_cluster_waits_until_the_last_of_its_add_ons_is_gone(ground: Ground, scene: GateScene) -> None:
    graph = {"base": (), "middle": ("base",), "top": ("middle",)}
    for name, needs in graph.items():
        await scene.add_on(name, depends_on=needs)
    cluster = await scene.cluster(*graph)
    await scene.block("base-0")
    async with ground.user("alice") as alice:
        await cluster.delete(alice)

    # The others are named until their inventories are sealed.
    waits = f"{WAITING}ClusterProfile/{scene.called('base')}; ConfigMap {scene.namespace}/base-0: blocked by finalizer "
    said = await cluster.until_held(f"{waits}example.dev/backup")
    assert "Following hooks are blocking delete: BeforeClusterDelete" in said
    held = await cluster.teardown(lambda it: it.phase is Phase.HELD)
    assert held.spec.requested_by == "alice"
    assert set(await scene.on_member()) == {"base-0"}
    assert cluster.taken_apart() == []
    # Without it Cluster API would let the cluster go at once.
    with pytest.raises(ApiError, match=f"blocks Cluster {scene.namespace}/prod until its add-ons are removed"):
        await delete_registration(scene)
    with pytest.raises(ApiError, match=f"blocks Cluster {scene.namespace}/prod until its add-ons are removed"):
        await select(scene, {"hold": "yes"})

    await scene.unblock("base-0")
    await cluster.until_gone()
    ended = await cluster.teardown()
    assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "6/6")
    assert await scene.on_member() == {}
    went = scene.deletion_times()
    assert set(went) == {f"{name}-{number}" for name in graph for number in range(2)}
    for name, needs in graph.items():
        gone = max(went[f"{name}-{number}"][1] for number in range(2))
        touched = [went[f"{need}-{number}"][0] for need in needs for number in range(2)]
        assert all(gone <= item for item in touched)
    assert min(cluster.taken_apart()) > max(answered for _, answered in went.values())


async def delete_registration(scene: GateScene) -> str:
    found = await scene.client.get(EXTENSION_CONFIGS, OURS)
    await scene.client.delete(EXTENSION_CONFIGS, OURS, uid=found["metadata"]["uid"])
    return str(found["metadata"]["uid"])


async def select(scene: GateScene, labels: dict[str, str] | None) -> None:
    """Have Cluster API ask about the clusters of these namespaces only."""
    await scene.client.patch(EXTENSION_CONFIGS, OURS, {"spec": {"namespaceSelector": {"matchLabels": labels}}})


async def test_a_cluster_without_class_is_never_held(scene: GateScene) -> None:
    await scene.add_on("web")
    cluster = await scene.cluster("web", topology=False)
    await scene.block("web-0")
    await cluster.delete()
    await cluster.until_gone()
    ended = await cluster.teardown()
    assert ended.phase is Phase.TARGET_GONE
    assert meta.is_true(ended.status.conditions, "GateNotAvailable")
    # Nobody waits for the removal, so it may be cut short anywhere; whatever is there still, the ledger has it.
    left = set(await scene.on_member())
    assert "web-0" in left
    assert left <= set(await scene.ledger(ended))


async def test_what_is_left_and_what_is_only_tried_holds_nobody(scene: GateScene) -> None:
    await scene.add_on("left", behaviour=LEAVE)
    await scene.add_on("tried", behaviour=REMOVE)
    cluster = await scene.cluster("left", "tried")
    await scene.block("tried-0")
    await cluster.delete()
    await cluster.until_gone()
    # Had it waited until nobody tries any more, it would have come to another end.
    ended = await cluster.teardown()
    assert ended.phase is Phase.TARGET_GONE
    # The removal may be cut short anywhere; the ledger has whatever is there still.
    left = set(await scene.on_member())
    assert left >= {"left-0", "left-1", "tried-0"}
    assert left <= set(await scene.ledger(ended))


async def test_a_namespace_goes_after_its_gated_cluster_and_not_with_it(scene: GateScene) -> None:
    await scene.add_on("base")
    await scene.add_on("top", depends_on=("base",))
    cluster = await scene.cluster("base", "top")
    uid = (await scene.client.get(NAMESPACES, scene.namespace))["metadata"]["uid"]
    with pytest.raises(ApiError, match="Delete the Cluster first"):
        await scene.client.delete(NAMESPACES, scene.namespace, uid=uid)
    await scene.block("base-0")
    await cluster.delete()
    await cluster.until_held("base-0")
    with pytest.raises(ApiError, match="Delete the Cluster first"):
        await scene.client.delete(NAMESPACES, scene.namespace, uid=uid)
    assert set(await scene.on_member()) == {"base-0"}
    await scene.unblock("base-0")
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE
    assert await scene.on_member() == {}
    await until_allowed(lambda: scene.client.delete(NAMESPACES, scene.namespace, uid=uid))
    await object_watch.until_absent(scene.client, NAMESPACES, scene.namespace)


async def test_a_gated_cluster_is_not_deleted_in_the_foreground(scene: GateScene) -> None:
    await scene.add_on("base")
    cluster = await scene.cluster("base")
    await scene.block("base-0")

    async def delete_in_foreground() -> None:
        await scene.client.delete(
            CLUSTERS, cluster.name, uid=cluster.uid, namespace=scene.namespace, propagation="Foreground"
        )

    with pytest.raises(ApiError, match="Delete it in the background"):
        await delete_in_foreground()
    await cluster.delete()
    await cluster.until_held("base-0")
    # It is being deleted: a second request could still turn that into a foreground deletion.
    with pytest.raises(ApiError, match="Delete it in the background"):
        await delete_in_foreground()
    with pytest.raises(ApiError, match="is blocked until its add-ons are removed"):
        await cluster.annotate(scene.client, {OK_TO_DELETE_ANNOTATION: ""})
    await cluster.until_held("base-0")
    assert cluster.taken_apart() == []
    await scene.unblock("base-0")
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE


async def test_a_cluster_made_anew_under_the_same_name_waits_for_its_own_add_ons(scene: GateScene) -> None:
    await scene.add_on("web")
    first = await scene.cluster("web")
    await first.delete()
    await first.until_gone()
    second = await scene.cluster("web")
    assert second.uid != first.uid
    assert (await first.teardown()).phase is Phase.COMPLETE
    # Cluster API's last write for the first one goes by the name, and would mark the second one as free to go (seen).
    with pytest.raises(ApiError, match="is not being deleted") as refused:
        await second.annotate(scene.client, {OK_TO_DELETE_ANNOTATION: ""})
    assert refused.value.code == 403
    await scene.block("web-0")
    await second.delete()
    await second.until_held("web-0")
    await scene.unblock("web-0")
    await second.until_gone()
    assert (await second.teardown()).phase is Phase.COMPLETE
    assert await scene.on_member() == {}


async def test_who_forces_a_cluster_to_go_is_named_with_what_stays_behind(ground: Ground, scene: GateScene) -> None:
    cluster = await scene.held_cluster()
    async with ground.user("bob") as bob:
        await cluster.annotate(bob, {FORCE_RELEASE_ANNOTATION: "the backup is broken"})
    await cluster.until_gone()
    ended = await cluster.teardown()
    assert ended.phase is Phase.RELEASED
    assert ended.status.release
    assert (ended.status.release.by, ended.status.release.message) == ("bob", "the backup is broken")
    assert await scene.ledger(ended) == {"web-0": ("Forced", "bob")}
    assert set(await scene.on_member()) == {"web-0"}


async def test_a_registration_that_vanished_is_made_again_and_holds_again(ground: Ground, scene: GateScene) -> None:
    await scene.add_on("web")
    cluster = await scene.cluster("web")
    deleted: list[str] = []

    async def delete() -> None:
        deleted.append(await delete_registration(scene))

    await until_allowed(delete)  # the API server takes a moment to hear that nothing is held any more
    await object_watch.until(
        scene.client,
        EXTENSION_CONFIGS,
        OURS,
        lambda it: (
            it is not None and it["metadata"]["uid"] not in deleted and object_watch.has_condition(it, "Discovered")
        ),
        "made again",
    )
    await ground.until_discovered()
    await scene.block("web-0")
    await cluster.delete()
    await cluster.until_held("web-0")
    await scene.unblock("web-0")
    await cluster.until_gone()


@asynccontextmanager
async def not_asked_about(ground: Ground, scene: GateScene) -> AsyncIterator[None]:
    """Have Cluster API not ask about the scene's namespace, and the profile say so."""
    await until_allowed(lambda: select(scene, {"hold": "yes"}))
    try:
        await until_profile_says(scene, "NamespaceNotSelected")
        yield
    finally:
        await ground.install()
        config = await scene.client.get(EXTENSION_CONFIGS, OURS)
        assert config["spec"]["namespaceSelector"] == {}


async def until_profile_says(scene: GateScene, reason: str) -> None:
    """Return when the condition GateNotArmed of profile `web` has this reason, or with an empty one is not there."""

    def says(it: Object | None) -> bool:
        return str(condition(it or {}, "GateNotArmed").get("reason", "")) == reason

    await object_watch.until(scene.client, CLUSTER_PROFILES, scene.called("web"), says, reason or "armed")


@contextmanager
def paused(process: ProcessId | None) -> Iterator[None]:
    """Stop a process, and have it go on at the end of the block."""
    assert process
    assert process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


async def test_a_namespace_that_cluster_api_does_not_ask_about_is_told_of(ground: Ground, scene: GateScene) -> None:
    await scene.add_on("web")
    await scene.cluster("web")
    await until_profile_says(scene, "")
    async with not_asked_about(ground, scene):
        await scene.client.patch(NAMESPACES, scene.namespace, {"metadata": {"labels": {"hold": "yes"}}})
        await until_profile_says(scene, "")
        await scene.client.patch(NAMESPACES, scene.namespace, {"metadata": {"labels": {"hold": None}}})
        await until_profile_says(scene, "NamespaceNotSelected")


async def test_cluster_api_does_not_mark_a_cluster_that_it_does_not_ask_about_while_its_teardown_holds(
    ground: Ground, scene: GateScene
) -> None:
    await scene.add_on("web")
    cluster = await scene.cluster("web")
    async with not_asked_about(ground, scene):
        await scene.block("web-0")
        assert ground.plane.cluster_api
        assert ground.plane.cluster_api.daemon
        with paused(ground.plane.cluster_api.daemon.process):
            await cluster.delete()
            await cluster.teardown(lambda it: bool(it.status.blockers))
        await eventually(lambda: refused_marks(ground, scene), "a refused mark")
        assert OK_TO_DELETE_ANNOTATION not in (await cluster.get())["metadata"].get("annotations", {})
        assert cluster.taken_apart() == []
        await scene.unblock("web-0")
        await cluster.until_gone()
        ended = await cluster.teardown()
        assert (ended.phase, ended.status.removed) == (Phase.COMPLETE, "2/2")
        assert await scene.ledger(ended) == {}
        assert await scene.on_member() == {}


def refused_marks(ground: Ground, scene: GateScene) -> list[AuditEvent]:
    """Cluster API's writes to Clusters of the scene that were refused."""
    found = ground.management.audit.entries(resource="clusters", namespace=scene.namespace, user=CLUSTER_API)
    return [item for item in found if item.code == 403]


async def test_what_is_left_of_a_cluster_that_cluster_api_marked_before_its_teardown_is_in_the_ledger(
    ground: Ground, scene: GateScene, manager: Manager
) -> None:
    await scene.add_on("web")
    cluster = await scene.cluster("web")
    async with not_asked_about(ground, scene):
        with paused(ProcessId.of(manager.process.pid)):
            await cluster.delete()
            await cluster.until_gone()
        ended = await cluster.teardown()
        assert ended.phase is Phase.TARGET_GONE
        assert set(await scene.ledger(ended)) == set(await scene.on_member()) == {"web-0", "web-1"}


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_fifty_clusters_that_are_deleted_at_once_all_wait_and_all_go(ground: Ground, scene: GateScene) -> None:
    # Without a namespace the source is looked for in each cluster's own.
    await scene.profile("web", policyRefs=[{"kind": "ConfigMap", "name": "web"}], clusterDeletionBehavior=ENFORCE)
    clusters: list[tuple[GateScene, GatedCluster]] = []

    async def make(number: int) -> None:
        one = GateScene(ground, f"{scene.namespace}-{number}", shares=scene)
        await one.begin()
        await one.source("web", *(config_map(one.namespace, f"web-{at}") for at in range(2)))
        clusters.append((one, await one.cluster("web")))
        await one.block("web-0")

    async def go(one: GateScene, cluster: GatedCluster) -> None:
        await one.unblock("web-0")
        await cluster.until_gone()
        assert (await cluster.teardown()).phase is Phase.COMPLETE
        assert await one.on_member() == {}

    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{what} after {time.monotonic() - began:.1f} s")

    await gather_limited((make(number) for number in range(FIFTY)), limit=10)
    tell("deployed")
    await gather_limited((cluster.delete() for _, cluster in clusters), limit=FIFTY)
    await gather_limited((cluster.until_held("web-0") for _, cluster in clusters), limit=FIFTY)
    tell("all held")
    await gather_limited((go(*cluster) for cluster in clusters), limit=FIFTY)
    tell("all gone")
