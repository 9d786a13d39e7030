"""Every built-in deleter has the same outcome wherever its process crashes, and removes no finalizer too early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from unwind import Gone, Kept, PermanentError, WaitForDependents
from unwind.api import names
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS
from unwind.deleters.builtin import BUILTIN, KEEP_BY_POLICY, SCALE_TO_ZERO, WAIT_FOR_DEPENDENTS
from unwind.deleters.chain_attempt import Waiting, attempt
from unwind.testing import Life, Script, World, prove_idempotent, prove_patient

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind import DeleteContext
    from unwind.api.resources import Resource
    from unwind.kube.watches import Changes
    from unwind.testing.scripts import Turn


def config(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", **metadata}}


def namespace(**annotations: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "annotations": annotations}}


def deployment(**metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "uid": "web", **metadata},
        "spec": {"replicas": 2},
        "status": {"replicas": 2, "observedGeneration": 1},
    }


def managed() -> World:
    return World(config("plain"), KEEP_BY_POLICY, objects=[namespace()])


def kept() -> World:
    policy = {names.DELETE_POLICY_ANNOTATION: "detach-on-delete"}
    return World(config("kept", annotations=policy), KEEP_BY_POLICY)


def kept_by_namespace() -> World:
    return World(config("kept"), KEEP_BY_POLICY, objects=[namespace(**{names.RECONCILE_POLICY_ANNOTATION: "skip"})])


def scaled(**status: int) -> World:
    """A Deployment whose controller first observes the desired replicas, and then deletes one Pod at a time."""
    web = deployment(annotations={names.SCALE_TO_ZERO_ANNOTATION: "true"})
    web["status"] |= status

    def controller() -> None:
        found = world.objects.get(DEPLOYMENTS, "web")
        if found is None:
            return
        status, metadata = found["status"], found["metadata"]
        if status["observedGeneration"] < metadata["generation"]:
            world.objects.change(DEPLOYMENTS, "web", {"status": {"observedGeneration": metadata["generation"]}})
        elif status["replicas"] > found["spec"]["replicas"]:
            world.objects.change(DEPLOYMENTS, "web", {"status": {"replicas": status["replicas"] - 1}})

    world = World(web, SCALE_TO_ZERO, meanwhile=controller)
    return world


def just_created() -> World:
    """A workload that its controller has not observed yet: it has no Pods, and may get some at any moment."""
    return scaled(replicas=0, observedGeneration=0)


def owned(name: str) -> dict[str, Any]:
    return config(name, ownerReferences=[{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "web"}])


def awaited(*links: object, **annotations: str) -> World:
    """An owner, and a client that deletes its dependents, one at a time."""

    def somebody() -> None:
        mine = [item for item in world.objects.all(CONFIG_MAPS) if item["metadata"].get("ownerReferences")]
        if mine:
            world.objects.remove(CONFIG_MAPS, mine[0]["metadata"]["name"])

    world = World(
        deployment(annotations=annotations),
        *links,
        objects=[owned("a"), owned("b"), config("other")],
        meanwhile=somebody,
    )
    return world


def waiting() -> World:
    return awaited(WAIT_FOR_DEPENDENTS, **{names.WAIT_FOR_DEPENDENTS_ANNOTATION: "configmaps, jobs.batch"})


def waiting_in_code() -> World:
    return awaited(WaitForDependents(CONFIG_MAPS, JOBS))


def plain() -> World:
    """The end alone: the API server deletes an object without finalizers."""
    return World(config("plain"))


def finalized() -> World:
    def somebody() -> None:
        if world.objects.get(CONFIG_MAPS, "held"):
            world.objects.change(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}})

    world = World(config("held", finalizers=["example.dev/hold"]), meanwhile=somebody)
    return world


def owning() -> World:
    """Foreground deletion, with its dependents."""
    return World(deployment(), objects=[owned("a"), owned("b")])


def everything() -> World:
    """All of them in one chain."""
    world = scaled()
    return World(
        {
            **deployment(
                annotations={
                    names.SCALE_TO_ZERO_ANNOTATION: "true",
                    names.WAIT_FOR_DEPENDENTS_ANNOTATION: "configmaps",
                    names.DELETE_POLICY_ANNOTATION: "manage",
                }
            )
        },
        *BUILTIN,
        objects=world.objects,
        meanwhile=world.meanwhile,
    )


ALL = [
    managed,
    kept,
    kept_by_namespace,
    scaled,
    just_created,
    waiting,
    waiting_in_code,
    plain,
    finalized,
    owning,
    everything,
]


@pytest.mark.parametrize("fresh", ALL, ids=lambda one: one.__name__)
async def test_a_crash_at_any_await_changes_nothing(fresh: Callable[[], World]) -> None:
    worlds: list[World] = []

    def noted() -> World:
        worlds.append(fresh())
        return worlds[-1]

    proof = await prove_idempotent(noted)
    assert isinstance(proof.end, Kept if fresh in (kept, kept_by_namespace) else Gone)
    # One world for the run without a crash, one for each crash, and one that ended before it could crash.
    assert len(worlds) == len(proof.crashes) + 2
    assert len(proof.crashes) >= 2
    there = [world.obj["metadata"]["name"] in " ".join(world.objects.left()) for world in worlds]
    assert set(there) == {isinstance(proof.end, Kept)}


@pytest.mark.parametrize("fresh", [item for item in ALL if item().links], ids=lambda one: one.__name__)
async def test_no_finalizer_goes_too_early(fresh: Callable[[], World]) -> None:
    await prove_patient(fresh)


@pytest.mark.parametrize("fresh", [scaled, just_created])
async def test_a_workload_is_deleted_only_when_its_controller_has_taken_its_pods(fresh: Callable[[], World]) -> None:
    found: list[object] = []

    class Looking(Script):
        def play(self, ctx: DeleteContext, obj: Any) -> Turn:
            seen = obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
            found.append((obj["spec"]["replicas"], obj["status"]["replicas"], seen))
            return super().play(ctx, obj)

    world = fresh()
    world.script(Looking())
    async with Life() as life:
        assert isinstance(await world.finish(life, entries=25, within=10), Gone)
    assert found == [(0, 0, True)]


async def test_pods_that_go_between_the_look_and_the_wait_are_not_waited_for() -> None:
    """Seen on a loaded machine: the last event came after the object was read, and before the subscription."""
    world = scaled(replicas=1)
    world.objects.change(DEPLOYMENTS, "web", {"spec": {"replicas": 0}, "status": {"observedGeneration": 2}})
    world.meanwhile = lambda: None
    watches = world.objects.watches
    subscribe = watches.changes

    async def late(resource: Resource, *, namespace: str | None = None, name: str | None = None) -> Changes:
        world.objects.change(DEPLOYMENTS, "web", {"status": {"replicas": 0}})
        return await subscribe(resource, namespace=namespace, name=name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watches, "changes", late)
        async with Life() as life:
            assert isinstance(await world.finish(life, entries=25, within=10), Gone)


@pytest.mark.parametrize("fresh", [waiting, waiting_in_code])
async def test_an_owner_is_deleted_only_when_nothing_that_it_owns_is_left(fresh: Callable[[], World]) -> None:
    left: list[list[str]] = []

    class Looking(Script):
        def play(self, ctx: DeleteContext, obj: Any) -> Turn:
            left.append([item["metadata"]["name"] for item in world.objects.all(CONFIG_MAPS)])
            return super().play(ctx, obj)

    world = fresh()
    world.script(Looking())
    async with Life() as life:
        assert isinstance(await world.finish(life, entries=25, within=10), Gone)
    assert left == [["other"]]


async def test_the_deletion_is_sent_once_however_often_it_is_asked_for() -> None:
    world = finalized()
    async with Life() as life:
        for _ in range(3):
            assert isinstance(await life.live(attempt(world.enter()), within=10), Waiting)
        for _ in range(2):
            assert isinstance(await world.finish(life, entries=25, within=10), Gone)
    assert [request for request in world.objects.requests if request.startswith("DELETE")] == [
        "DELETE /api/v1/namespaces/default/configmaps/held"
    ]


async def test_an_unknown_word_holds_whoever_says_it() -> None:
    for annotation in (
        names.DELETE_POLICY_ANNOTATION,
        names.RECONCILE_POLICY_ANNOTATION,
        names.SCALE_TO_ZERO_ANNOTATION,
    ):
        world = World(deployment(annotations={annotation: "Maybe"}), *BUILTIN)
        with pytest.raises(PermanentError, match="Maybe"):
            await world.enter()
        assert world.objects.get(DEPLOYMENTS, "web")
