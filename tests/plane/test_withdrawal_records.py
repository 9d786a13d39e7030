"""Withdrawals that need attention have a Teardown: progress, blockers, who must act, deadline and force-release."""

from __future__ import annotations

import base64
import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support import profiles, unjoins
from tests.plane.support.controllers import HOLD
from tests.plane.support.profiles import ProfileScene, config_map, message, playing
from unwind.api.karmada import WORKS
from unwind.api.names import (
    DEADLINE_ANNOTATION,
    DELETE_POLICY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    ON_DEADLINE_ANNOTATION,
    SVELTOS_PAUSED_ANNOTATION,
    UNKNOWN_USER,
    ConditionType,
)
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.sveltos import CLUSTER_PROFILES, CLUSTER_SUMMARIES
from unwind.api.unwind import INVENTORIES, TEARDOWNS, Cause, Phase, Teardown
from unwind.cli import ledger as ledgers
from unwind.cli.status import status
from unwind.cli.why import why
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.helm.program import Helm
from unwind.kube.object_watch import until, until_absent
from unwind.local import build, tools
from unwind.testing.charts import pack, unpack_chart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from unwind.kube.client import Client, Object
    from unwind.local.plane import Plane


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str) -> AsyncIterator[ProfileScene]:
    await profiles.install(plane.management.client)
    async with playing(plane, namespace) as it:
        yield it
        await it.unblock("held")


async def record_of(
    client: Client, uid: str, holds: Callable[[Teardown], bool] = lambda _: True, called: str = "recorded"
) -> Teardown:
    """The Teardown of a withdrawal, as soon as it is like this."""

    def look(it: Object | None) -> bool:
        return it is not None and holds(msgspec.convert(it, Teardown))

    found = await until(client, TEARDOWNS, uid, look, called, within=30)
    return msgspec.convert(found, Teardown)


def ended(teardown: Teardown) -> bool:
    return teardown.finished


def blocked_by(name: str) -> Callable[[Teardown], bool]:
    return lambda it: any(blocker.object.name == name for blocker in it.status.blockers)


async def recorded(client: Client, uid: str) -> list[Teardown]:
    found = msgspec.convert(await client.list(TEARDOWNS), list[Teardown])
    return [item for item in found if item.spec.target.uid == uid]


async def annotate(scene: ProfileScene, profile: str, **annotations: str) -> None:
    name, patch = scene.summary_name(profile), {"metadata": {"annotations": annotations}}
    await scene.client.patch(CLUSTER_SUMMARIES, name, patch, namespace=scene.namespace, field_manager="jane")


async def deploy(scene: ProfileScene, *held: str, free: tuple[str, ...] = ()) -> str:
    """A provisioned profile `web`; the ConfigMaps in `held` get a finalizer. Returns the uid of its summary."""
    await scene.register()
    await scene.source("s", *(config_map(scene.namespace, name) for name in (*held, *free)))
    await scene.profile("web", "s")
    async with profiles.running(scene.client, scene.namespace):
        await scene.until_provisioned("web")
    for name in held:
        await scene.block(name)
    return (await scene.summary("web")).metadata.uid


async def lead_nowhere(scene: ProfileScene) -> None:
    """Have the credentials of the cluster name a server that does not answer."""
    text = re.sub(r"server: \S+", "server: https://127.0.0.1:1", scene.member.kubeconfig.read_text())
    data = {"kubeconfig": base64.b64encode(text.encode()).decode()}
    await scene.client.patch(SECRETS, "edge-sveltos-kubeconfig", {"data": data}, namespace=scene.namespace)


# Add-ons


async def test_a_small_withdrawal_writes_no_teardown(scene: ProfileScene, plane: Plane) -> None:
    uid = await deploy(scene, free=("one", "two"))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    assert await recorded(scene.client, uid) == []
    written = plane.management.audit.entries(
        verbs=("create", "patch"), resource="teardowns", containing=(uid.encode(),)
    )
    assert list(written) == []


async def test_a_blocked_withdrawal_is_shown_by_every_command_with_who_must_act(
    scene: ProfileScene, plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    uid = await deploy(scene, "held", free=("free",))
    kubeconfig, name = plane.management.kubeconfig, scene.summary_name("web")
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.delete_profile("web")
        record = await record_of(scene.client, uid, blocked_by("held"), "blocked")
        step = f"ClusterProfile/{scene.called('web')}"
        assert record.spec.cause == Cause.WITHDRAWN
        assert record.spec.title == f"{step} on SveltosCluster {scene.namespace}/edge"
        assert (record.phase, record.status.removed) == (Phase.HELD, "1/2")
        [blocker] = record.status.blockers
        assert (blocker.step, blocker.reason, blocker.actor) == (step, "Finalizer", "the controller of example.dev")
        capsys.readouterr()
        await status(name, kubeconfig=kubeconfig)
        shown = capsys.readouterr().out
        assert "is blocked:" in shown
        assert HOLD in shown
        await status(f"{scene.namespace}/edge", output="json", kubeconfig=kubeconfig)
        [shown_one] = json.loads(capsys.readouterr().out)["items"]
        assert shown_one["metadata"]["name"] == uid, "it is on that cluster"
        await why(f"teardown/{uid}", output="json", kubeconfig=kubeconfig)
        answer = json.loads(capsys.readouterr().out)
        assert any(link["object"].get("name") == "held" for link in answer["chain"])
        commands = [command for remedy in answer["remedies"] for command in remedy["commands"]]
        assert any(
            f"clustersummaries.config.projectsveltos.io/{name}" in item and FORCE_RELEASE_ANNOTATION in item
            for item in commands
        )
        await scene.unblock("held")
        await scene.until_profile_gone("web")
    record = await record_of(scene.client, uid, ended, "ended")
    assert (record.phase, record.status.removed, record.status.left) == (Phase.COMPLETE, "2/2", 0)
    with pytest.raises(UnwindError, match="no teardown of"):
        await status(f"{scene.namespace}/edge", kubeconfig=kubeconfig)  # it is over, and the cluster stays


async def test_a_profile_that_waits_for_its_dependents_has_them_as_blockers(scene: ProfileScene) -> None:
    await scene.register()
    for name, needs in (("base", ()), ("top", ("base",))):
        await scene.source(name, config_map(scene.namespace, name))
        await scene.profile(name, name, dependsOn=scene.needs(*needs))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.until_provisioned("base", "top")
        uid = (await scene.summary("base")).metadata.uid
        await scene.delete_profile("base")
        record = await record_of(scene.client, uid, lambda it: bool(it.status.blockers), "blocked")
        [blocker] = record.status.blockers
        assert (blocker.object.name, blocker.reason) == (scene.summary_name("top"), "Waiting")
        assert blocker.actor.startswith(f"the owner of ClusterProfile {scene.called('top')}")
        await scene.delete_profile("top")
        await scene.until_profile_gone("base")
    assert (await record_of(scene.client, uid, ended, "ended")).phase is Phase.COMPLETE


async def test_objects_that_stay_by_policy_have_a_record_with_their_number(scene: ProfileScene) -> None:
    uid = await deploy(scene, free=("one", "two"))
    await scene.edit_profile("web", {"stopMatchingBehavior": "LeavePolicies"})
    async with profiles.running(scene.client, scene.namespace):
        await scene.until_summary(
            "web", lambda it: it.spec.cluster_profile_spec.stop_matching_behavior == "LeavePolicies", "updated"
        )
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    record = await record_of(scene.client, uid, ended, "ended")
    assert (record.phase, record.status.left) == (Phase.COMPLETE, 2)
    assert [item.state for item in record.status.steps] == ["Left"]


async def test_an_unreachable_cluster_is_the_blocker_of_a_withdrawal(scene: ProfileScene) -> None:
    uid = await deploy(scene, free=("one",))
    await lead_nowhere(scene)
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.delete_profile("web")
        record = await record_of(scene.client, uid, lambda it: bool(it.status.blockers), "blocked")
        [blocker] = record.status.blockers
        assert (blocker.reason, blocker.actor) == ("Unreachable", "the administrator of the member cluster")
        assert any(item.type == ConditionType.UNREACHABLE for item in record.status.conditions)
        await annotate(scene, "web", **{FORCE_RELEASE_ANNOTATION: "the cluster is lost"})
        await scene.until_profile_gone("web")
    record = await record_of(scene.client, uid, ended, "ended")
    assert (record.phase, record.status.left) == (Phase.RELEASED, 1)


async def test_a_force_release_leaves_what_remains_and_the_ledger_says_who_did_it(
    scene: ProfileScene, plane: Plane
) -> None:
    uid = await deploy(scene, "held", free=("free",))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.delete_profile("web")
        await scene.until_summary("web", lambda it: HOLD in message(it), "blocked")
        await scene.until_off_member("free")
        await annotate(scene, "web", **{FORCE_RELEASE_ANNOTATION: "its controller is gone"})
        await scene.until_profile_gone("web")
    record = await record_of(scene.client, uid, ended, "ended")
    assert (record.phase, record.status.removed, record.status.left) == (Phase.RELEASED, "1/2", 1)
    assert record.status.release
    assert record.status.release.message == "its controller is gone"
    assert record.status.release.by == f"{UNKNOWN_USER} (field manager jane)"
    assert set(await scene.on_member()) == {"held"}
    whole = await ledgers.read_ledger(plane.management.client, f"{scene.namespace}/edge", None)
    assert [(row.object.name, row.reason, row.kept) for row in whole.left] == [("held", "Forced", False)]
    assert [item.title for item in whole.released] == [record.spec.title]
    assert all(chunk.spec.sealed_for for chunk in await scene.inventories(uid))


async def test_a_deadline_on_the_summary_releases_it_if_it_says_so(scene: ProfileScene) -> None:
    uid = await deploy(scene, "held")
    await annotate(scene, "web", **{DEADLINE_ANNOTATION: "3s", ON_DEADLINE_ANNOTATION: "Release"})
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    record = await record_of(scene.client, uid, ended, "ended")
    assert (record.phase, record.spec.deadline, record.status.left) == (Phase.RELEASED, "3s", 1)
    assert record.status.release
    assert record.status.release.reason == "Deadline"
    assert set(await scene.on_member()) == {"held"}


async def test_a_withdrawal_that_was_interrupted_in_its_first_second_is_recorded_by_the_next_manager(
    scene: ProfileScene,
) -> None:
    uid = await deploy(scene, "held", free=("free",))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.delete_profile("web")
        await scene.until_off_member("free")
    assert await recorded(scene.client, uid) == [], "it was interrupted before a record was due"
    deleted_at = (await scene.summary("web")).metadata.deletion_timestamp
    assert deleted_at
    # Timestamps of the API server have whole seconds.
    await eventually(lambda: SYSTEM.now() >= deleted_at + timedelta(seconds=1), "a later second")
    await scene.unblock("held")
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.until_profile_gone("web")
    assert (await record_of(scene.client, uid, ended, "ended")).phase is Phase.COMPLETE
    assert sorted(scene.deleted()) == ["free", "held"]


async def test_a_blocked_prune_of_a_profile_is_recorded_until_it_has_ended(scene: ProfileScene) -> None:
    uid = await deploy(scene, "held", free=("free", "kept"))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit("s", config_map(scene.namespace, "kept"))
        name = f"{uid}-{(await scene.summary('web')).metadata.generation}"
        record = await record_of(scene.client, name, blocked_by("held"), "blocked")
        assert (record.spec.cause, record.spec.target.uid, record.phase) == (Cause.PRUNED, uid, Phase.HELD)
        assert record.status.removed == "1/2"
        await scene.unblock("held")
        record = await record_of(scene.client, name, ended, "ended")
        assert (record.phase, record.status.removed) == (Phase.COMPLETE, "2/2")
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"kept"}
    assert await scene.inventories(uid), "the prune has no inventory of its own"


async def test_a_blocked_prune_of_a_chart_is_recorded_until_it_has_ended(scene: ProfileScene, tmp_path: Path) -> None:
    template = {"templates/settings.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held}\n"}
    directory = unpack_chart(pack("settings", template), tmp_path)
    helm = Helm((await build.ensure([tools.HELM]))["helm"].path, charts=tmp_path)
    chart = {"repositoryURL": directory.as_uri(), "releaseName": "app", "releaseNamespace": scene.namespace}
    await scene.register()
    await scene.source("s", config_map(scene.namespace, "kept"))
    await scene.profile("web", "s", helmCharts=[chart])
    async with profiles.running(scene.client, scene.namespace, helm=helm):
        await scene.until_provisioned("web")
        await scene.until_on_member("held")
    await scene.block("held")
    uid = (await scene.summary("web")).metadata.uid
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM, helm=helm):
        await scene.edit_profile("web", {"helmCharts": []})

        async def chart_is_gone() -> bool:
            return not (await scene.summary("web")).spec.cluster_profile_spec.helm_charts

        await eventually(chart_is_gone, "the summary without the chart")
        name = f"{uid}-{(await scene.summary('web')).metadata.generation}"
        record = await record_of(scene.client, name, blocked_by("held"), "blocked")
        assert (record.spec.cause, record.spec.target.uid, record.phase) == (Cause.PRUNED, uid, Phase.HELD)
        await scene.unblock("held")
        record = await record_of(scene.client, name, ended, "ended")
        assert (record.phase, record.status.left) == (Phase.COMPLETE, 0)
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"kept"}
    assert await scene.inventories(uid), "the prune has no inventory of its own"


async def test_a_prune_that_was_interrupted_is_ended_by_the_next_manager(scene: ProfileScene) -> None:
    uid = await deploy(scene, "held", free=("kept",))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit("s", config_map(scene.namespace, "kept"))
        name = f"{uid}-{(await scene.summary('web')).metadata.generation}"
        await record_of(scene.client, name, blocked_by("held"), "blocked")
    await scene.unblock("held")
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        assert (await record_of(scene.client, name, ended, "ended")).phase is Phase.COMPLETE


async def test_a_small_prune_writes_no_teardown(scene: ProfileScene) -> None:
    uid = await deploy(scene, free=("free", "kept"))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit("s", config_map(scene.namespace, "kept"))
        await scene.until_off_member("free")
        await scene.until_provisioned("web")
    assert await recorded(scene.client, uid) == []


async def test_a_force_released_prune_leaves_its_objects_for_good_and_uses_the_annotation_up(
    scene: ProfileScene, plane: Plane
) -> None:
    uid = await deploy(scene, "held", free=("free", "kept"))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit("s", config_map(scene.namespace, "kept"))
        name = f"{uid}-{(await scene.summary('web')).metadata.generation}"
        await record_of(scene.client, name, blocked_by("held"), "blocked")
        await annotate(scene, "web", **{FORCE_RELEASE_ANNOTATION: "its controller is gone"})
        record = await record_of(scene.client, name, ended, "ended")
        assert (record.phase, record.status.removed, record.status.left) == (Phase.RELEASED, "1/2", 1)
        assert record.status.release
        assert record.status.release.by == f"{UNKNOWN_USER} (field manager jane)"
        summary = await scene.until_summary(
            "web", lambda it: FORCE_RELEASE_ANNOTATION not in it.metadata.annotations, "without the annotation"
        )
        await scene.until_provisioned("web")
        whole = await ledgers.read_ledger(plane.management.client, f"{scene.namespace}/edge", None)
        assert [(row.object.name, row.reason, row.kept) for row in whole.left] == [("held", "Forced", False)]
        assert not any(chunk.spec.sealed_for for chunk in await scene.inventories(uid)), "its owner still deploys"
        # The next prune does not touch it, and is not released.
        await scene.edit("s", config_map(scene.namespace, "other"))
        await scene.until_off_member("kept")
        await scene.until_provisioned("web")
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    assert summary.metadata.uid == uid
    assert set(await scene.on_member()) == {"held"}
    assert (await record_of(scene.client, uid, ended, "ended")).phase is Phase.COMPLETE


async def test_a_deadline_on_the_summary_releases_a_prune_if_it_says_so(scene: ProfileScene) -> None:
    uid = await deploy(scene, "held", free=("kept",))
    await annotate(scene, "web", **{DEADLINE_ANNOTATION: "3s", ON_DEADLINE_ANNOTATION: "Release"})
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit("s", config_map(scene.namespace, "kept"))
        name = f"{uid}-{(await scene.summary('web')).metadata.generation}"
        record = await record_of(scene.client, name, ended, "ended")
        assert (record.phase, record.spec.deadline, record.status.left) == (Phase.RELEASED, "3s", 1)
        assert record.status.release
        assert record.status.release.reason == "Deadline"
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"held", "kept"}


async def test_what_a_prune_leaves_is_in_the_ledger_until_a_later_removal_removes_it(
    scene: ProfileScene, plane: Plane
) -> None:
    uid = await deploy(scene, free=("skipped", "kept"))
    skip = {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: "skip"}}}
    await scene.member.client.patch(CONFIG_MAPS, "skipped", skip, namespace=scene.namespace)
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit("s", config_map(scene.namespace, "kept"))
        name = f"{uid}-{(await scene.summary('web')).metadata.generation}"
        record = await record_of(scene.client, name, ended, "ended")
        assert (record.phase, record.status.left) == (Phase.COMPLETE, 1)
        await scene.until_provisioned("web")
        whole = await ledgers.read_ledger(plane.management.client, f"{scene.namespace}/edge", None)
        assert [(row.object.name, row.reason) for row in whole.left] == [("skipped", "KeptByPolicy")]
        manage = {"metadata": {"annotations": {DELETE_POLICY_ANNOTATION: None}}}
        await scene.member.client.patch(CONFIG_MAPS, "skipped", manage, namespace=scene.namespace)
        await scene.delete_profile("web")
        await scene.until_profile_gone("web")
    assert await scene.on_member() == {}
    assert (await ledgers.read_ledger(plane.management.client, f"{scene.namespace}/edge", None)).left == ()


async def test_a_prune_that_is_killed_while_it_is_released_ends_as_released(scene: ProfileScene) -> None:
    uid = await deploy(scene, "held", free=("kept",))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.edit("s", config_map(scene.namespace, "kept"))
        name = f"{uid}-{(await scene.summary('web')).metadata.generation}"
        record = await record_of(scene.client, name, blocked_by("held"), "blocked")
    # The ledger is written, and nothing else.
    await annotate(scene, "web", **{FORCE_RELEASE_ANNOTATION: "its controller is gone"})
    [chunk] = await scene.inventories(uid)
    [key] = [key for key, entry in chunk.spec.entries.items() if entry.object.name == "held"]
    at = record.spec.requested_at
    assert at
    note = {"reason": "Forced", "message": "its controller is gone", "by": "jane", "at": msgspec.to_builtins(at)}
    body = {"spec": {"entries": {key: {"ledger": note}}}}
    await scene.client.patch(INVENTORIES, chunk.metadata.name, body, namespace=chunk.metadata.namespace)
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        record = await record_of(scene.client, name, ended, "ended")
        assert (record.phase, record.status.left) == (Phase.RELEASED, 1)
        await scene.until_summary(
            "web", lambda it: FORCE_RELEASE_ANNOTATION not in it.metadata.annotations, "without the annotation"
        )
        await scene.until_provisioned("web")
    assert set(await scene.on_member()) == {"held", "kept"}


async def test_a_paused_profile_stops_its_withdrawal_and_goes_on_when_it_is_unpaused(scene: ProfileScene) -> None:
    uid = await deploy(scene, "held", free=("free",))
    async with profiles.running(scene.client, scene.namespace, clock=SYSTEM):
        await scene.delete_profile("web")
        await record_of(scene.client, uid, blocked_by("held"), "blocked")
        pause = {"metadata": {"annotations": {SVELTOS_PAUSED_ANNOTATION: "true"}}}
        await scene.client.patch(CLUSTER_PROFILES, scene.called("web"), pause)
        record = await record_of(scene.client, uid, blocked_by(scene.called("web")), "paused")
        assert [item.reason for item in record.status.blockers] == ["Paused"]
        await scene.client.patch(
            CLUSTER_PROFILES, scene.called("web"), {"metadata": {"annotations": {SVELTOS_PAUSED_ANNOTATION: None}}}
        )
        await record_of(scene.client, uid, blocked_by("held"), "blocked again")
        await scene.unblock("held")
        await scene.until_profile_gone("web")
    assert (await record_of(scene.client, uid, ended, "ended")).phase is Phase.COMPLETE


# Works


async def test_a_blocked_work_is_recorded_and_released_by_its_annotation(plane: Plane, namespace: str) -> None:
    async with unjoins.scene(plane, namespace) as it, unjoins.controllers(it.client, namespace, clock=SYSTEM):
        await it.put("shop")
        await it.deployed("shop")
        await it.block("shop-0")
        work = (await it.client.get(WORKS, "shop", namespace=it.execution))["metadata"]
        await it.client.delete(WORKS, "shop", uid=work["uid"], namespace=it.execution)
        record = await record_of(it.client, work["uid"], blocked_by("shop-0"), "blocked")
        assert (record.spec.cause, record.spec.title) == (Cause.WITHDRAWN, f"Work/shop on Cluster {it.name}")
        assert (record.phase, record.status.removed) == (Phase.HELD, "1/2")
        assert [item.actor for item in record.status.blockers] == ["the controller of example.dev"]
        patch = {"metadata": {"annotations": {FORCE_RELEASE_ANNOTATION: "not needed"}}}
        await it.client.patch(WORKS, "shop", patch, namespace=it.execution, field_manager="jane")
        await until_absent(it.client, WORKS, "shop", namespace=it.execution)
        record = await record_of(it.client, work["uid"], ended, "ended")
        assert (record.phase, record.status.left) == (Phase.RELEASED, 1)
        assert set(await it.on_member()) == {"shop-0"}
        await it.unblock("shop-0")


async def test_a_small_work_writes_no_teardown_and_a_slow_one_ends_with_its_record(
    plane: Plane, namespace: str
) -> None:
    async with unjoins.scene(plane, namespace) as it, unjoins.controllers(it.client, namespace, clock=SYSTEM):
        for name in ("small", "slow"):
            await it.put(name)
            await it.deployed(name)
        await it.block("slow-0")
        uids = {}
        for name in ("small", "slow"):
            uids[name] = (await it.client.get(WORKS, name, namespace=it.execution))["metadata"]["uid"]
            await it.client.delete(WORKS, name, uid=uids[name], namespace=it.execution)
        await until_absent(it.client, WORKS, "small", namespace=it.execution)
        await record_of(it.client, uids["slow"], blocked_by("slow-0"), "blocked")
        assert await recorded(it.client, uids["small"]) == []
        await it.unblock("slow-0")
        await until_absent(it.client, WORKS, "slow", namespace=it.execution)
        record = await record_of(it.client, uids["slow"], ended, "ended")
        assert (record.phase, record.status.removed) == (Phase.COMPLETE, "2/2")


async def test_a_blocked_prune_of_a_work_is_recorded_until_it_has_ended(plane: Plane, namespace: str) -> None:
    async with unjoins.scene(plane, namespace) as it, unjoins.controllers(it.client, namespace, clock=SYSTEM):
        await it.put("shop")
        await it.deployed("shop")
        await it.block("shop-0")
        left = [config_map(namespace, "shop-1")]
        patch = {"spec": {"workload": {"manifests": left}}}
        work = (await it.client.patch(WORKS, "shop", patch, namespace=it.execution))["metadata"]
        name = f"{work['uid']}-{work['generation']}"
        record = await record_of(it.client, name, blocked_by("shop-0"), "blocked")
        assert (record.spec.cause, record.phase, record.status.removed) == (Cause.PRUNED, Phase.HELD, "0/1")
        await it.unblock("shop-0")
        record = await record_of(it.client, name, ended, "ended")
        assert (record.phase, record.status.removed) == (Phase.COMPLETE, "1/1")
        assert set(await it.on_member()) == {"shop-1"}


async def test_a_force_released_prune_of_a_work_leaves_its_objects_and_uses_the_annotation_up(
    plane: Plane, namespace: str
) -> None:
    async with unjoins.scene(plane, namespace) as it, unjoins.controllers(it.client, namespace, clock=SYSTEM):
        await it.put("shop")
        await it.deployed("shop")
        await it.block("shop-0")
        patch = {"spec": {"workload": {"manifests": [config_map(namespace, "shop-1")]}}}
        work = (await it.client.patch(WORKS, "shop", patch, namespace=it.execution))["metadata"]
        name = f"{work['uid']}-{work['generation']}"
        await record_of(it.client, name, blocked_by("shop-0"), "blocked")
        released = {"metadata": {"annotations": {FORCE_RELEASE_ANNOTATION: "not needed"}}}
        await it.client.patch(WORKS, "shop", released, namespace=it.execution, field_manager="jane")
        record = await record_of(it.client, name, ended, "ended")
        assert (record.phase, record.status.left) == (Phase.RELEASED, 1)

        def used_up(one: Object | None) -> bool:
            return one is not None and FORCE_RELEASE_ANNOTATION not in (one["metadata"].get("annotations") or {})

        await until(it.client, WORKS, "shop", used_up, "without the annotation", namespace=it.execution)
        entries = [entry for chunk in await it.inventories.of(work["uid"]) for entry in chunk.spec.entries.values()]
        assert [(entry.object.name, entry.ledger.reason) for entry in entries if entry.ledger] == [("shop-0", "Forced")]
        await it.client.delete(WORKS, "shop", uid=work["uid"], namespace=it.execution)
        await until_absent(it.client, WORKS, "shop", namespace=it.execution)
        assert set(await it.on_member()) == {"shop-0"}
        await it.unblock("shop-0")
