"""A step source that teardowns do not know: its steps run beside those of ClusterSummaries, by the same rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.plane.support.cluster_teardowns import TeardownScene, manager
from tests.plane.support.controllers import HOLD
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.resources import CONFIG_MAPS
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import Effort, Phase, StepState, Teardown
from unwind.kube.object_watch import until
from unwind.planning.waves import Draft
from unwind.teardown.step_removers import InventoryRemover
from unwind.teardown.step_sources import FollowedSource, SourceStep, SourceSteps, StepTerms
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.unwind import Step
    from unwind.kube.client import Object
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps

LISTED = "example.dev/cluster"


class ListedSteps(FollowedSource):
    """ConfigMaps beside a Cluster, each of which is a step: what it depends on and its effort are its data."""

    def __init__(self, deps: RemovalDeps) -> None:
        self.remover = InventoryRemover()
        self._client = deps.inventories.client
        self.told: list[tuple[str, StepState]] = []

    def owns(self, owner: ObjectRef) -> bool:
        return (owner.group, owner.kind) == ("", "ConfigMap")

    async def steps(self, target: ClusterTarget, *, gone: bool = False) -> SourceSteps:
        ref = target.ref
        labels = f"{LISTED}={ref.name}"
        found = await self._client.list(CONFIG_MAPS, namespace=ref.namespace, labels=labels)
        return SourceSteps(steps=tuple(map(_step, found)))

    def terms(self, step: Step, target: ClusterTarget) -> StepTerms:
        return StepTerms(left="its list says so", decided_by=step.name)

    def step_changed(self, step: Step, state: StepState, target: ClusterTarget) -> None:
        self.told.append((step.object.name, state))


def _step(obj: Object) -> SourceStep:
    name, data = obj["metadata"]["name"], obj["data"]
    return SourceStep(
        draft=Draft(
            name=f"ConfigMap/{name}",
            object=_ref(obj),
            kind="ConfigMap",
            namespace=obj["metadata"]["namespace"],
            declared=name,
            depends_on=tuple(data["dependsOn"].split()),
            effort=Effort(data["effort"]),
        )
    )


def _ref(obj: Object) -> ObjectRef:
    meta = obj["metadata"]
    return ref_of(CONFIG_MAPS, ObjectMeta(name=meta["name"], namespace=meta["namespace"], uid=meta["uid"]))


async def listed(
    it: TeardownScene,
    name: str,
    *,
    depends_on: str = "",
    effort: Effort = Effort.ENFORCE,
    objects: int = 2,
    finalizers: tuple[str, ...] = (),
) -> ObjectRef:
    """A step of `ListedSteps`, with objects on the member and an Inventory of its own."""
    made = await it.client.create(
        CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": it.namespace, "labels": {LISTED: it.name}},
            "data": {"dependsOn": depends_on, "effort": effort.value},
        },
    )
    ref = _ref(made)
    names = [f"{name}-{number}" for number in range(objects)]
    await it.record(ref, {name: await it.put(ref, name, finalizers) for name in names})
    return ref


def _states(teardown: Teardown) -> dict[str, str]:
    return {step.name: step.state for step in teardown.status.steps}


def _is_held_at(name: str) -> Callable[[Teardown], bool]:
    return lambda one: one.phase is Phase.HELD and any(it.object.name == name for it in one.status.blockers)


async def test_steps_of_several_sources_run_in_one_plan_each_in_its_order_and_with_its_effort(
    it: TeardownScene,
) -> None:
    base = await it.add_on("base")
    await it.add_on("web", depends_on=("base",))
    await listed(it, "disk")
    await listed(it, "db", depends_on="disk", finalizers=(HOLD,))
    logs = await listed(it, "logs", effort=Effort.LEAVE)
    made: list[ListedSteps] = []

    def make(deps: RemovalDeps) -> ListedSteps:
        made.append(ListedSteps(deps))
        return made[0]

    async with manager(it.client, sources=(make,)):
        await it.delete()
        # What is held in one source holds nothing in the other.
        held = await it.teardown(_is_held_at("db-0"), "held at db-0")
        assert held.spec.plan
        assert {step.name: (step.wave, step.effort, step.objects) for step in held.spec.plan.steps} == {
            f"ClusterProfile/{it.profile('web')}": (1, "Enforce", 3),
            f"ClusterProfile/{it.profile('base')}": (2, "Enforce", 3),
            "ConfigMap/db": (1, "Enforce", 2),
            "ConfigMap/disk": (2, "Enforce", 2),
            "ConfigMap/logs": (1, "Leave", 2),
        }
        assert _states(held)["ConfigMap/disk"] == StepState.WAITING
        assert {"disk-0", "disk-1"} <= await it.objects()
        await until(
            it.client,
            CLUSTER_SUMMARIES,
            base.name,
            lambda one: one is not None and one["status"]["featureSummaries"][0]["status"] == "Removed",
            "told that its step is removed",
            namespace=it.namespace,
        )
        await it.unblock()
        ended = await it.ended()
    assert ended.phase is Phase.COMPLETE
    assert _states(ended) == {
        f"ClusterProfile/{it.profile('web')}": "Removed",
        f"ClusterProfile/{it.profile('base')}": "Removed",
        "ConfigMap/db": "Removed",
        "ConfigMap/disk": "Removed",
        "ConfigMap/logs": "Left",
    }
    order = [name.partition("-")[0] for name in it.deleted()]
    assert order.index("base") > max(number for number, name in enumerate(order) if name == "web")
    assert order.index("disk") > max(number for number, name in enumerate(order) if name == "db")
    assert await it.objects() == {"logs-0", "logs-1"}
    left = await it.inventory(logs)
    assert left
    notes = [entry.ledger for entry in left.spec.entries.values()]
    assert {(note.reason, note.message, note.by) for note in notes if note} == {
        ("KeptByPolicy", "its list says so", "ConfigMap/logs")
    }
    [source] = made
    assert sorted(source.told) == sorted(
        [
            *(("db", state) for state in (StepState.REMOVING, StepState.REMOVED)),
            *(("disk", state) for state in (StepState.REMOVING, StepState.REMOVED)),
            *(("logs", state) for state in (StepState.REMOVING, StepState.LEFT)),
        ]
    )
    await it.let_go()


async def test_a_step_whose_source_does_not_run_is_held_by_name_until_it_does(it: TeardownScene) -> None:
    await it.add_on("web")
    await listed(it, "disk")
    await listed(it, "db", depends_on="disk", finalizers=(HOLD,))
    async with manager(it.client, sources=(ListedSteps,)):
        await it.delete()
        await it.teardown(_is_held_at("db-0"), "held at db-0")
    await it.unblock()
    async with manager(it.client):
        held = await it.teardown(_is_held_at("db"), "held for its source")
        assert "the running manager has no feature for kind ConfigMap" in held.status.blocked_by
        assert _states(held)["ConfigMap/db"] == StepState.REMOVING
    async with manager(it.client, sources=(ListedSteps,)):
        assert await it.objects() == {"disk-0", "disk-1"}
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.nothing_left()


async def test_objects_of_an_owner_that_no_source_knows_hold_the_plan(it: TeardownScene) -> None:
    await it.add_on("web", objects=1)
    owner = await listed(it, "db")
    clock = StillClock()
    async with manager(it.client, clock=clock):
        await it.delete()
        held = await it.teardown(lambda one: one.phase is Phase.HELD, "held")
        assert held.spec.plan is None
        [said] = [condition for condition in held.status.conditions if condition.type == "UnknownValue"]
        assert str(owner) in said.message
        assert it.deleted() == []
    async with manager(it.client, clock=clock, sources=(ListedSteps,)):
        assert (await it.ended()).phase is Phase.COMPLETE
    await it.let_go()
