"""`unwind why` about clusters of the real Cluster API: who holds them, and the command that lets them go."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.plane.support.why_answers import Asker, answering, chain
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.hooks import API_VERSION
from unwind.api.names import FORCE_RELEASE_ANNOTATION, Reason
from unwind.api.sveltos import CLUSTER_PROFILES
from unwind.api.unwind import Phase
from unwind.kube import object_watch
from unwind.why.answers import AnswerState, Effect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.gated_clusters import GateScene, Ground
    from unwind.kube.client import Object
    from unwind.why.answers import Answer, Remedy

PROD = "clusters.cluster.x-k8s.io/prod"


pytestmark = pytest.mark.usefixtures("manager")


@pytest_asyncio.fixture(loop_scope="session")
async def asker(ground: Ground, scene: GateScene) -> Asker:
    return Asker(ground.management, scene.namespace)


def typed(answer: Answer, words: str) -> Remedy:
    """The one whose commands have these words in them."""
    [remedy] = [remedy for remedy in answer.remedies if any(words in command for command in remedy.commands)]
    return remedy


async def test_a_cluster_held_by_the_gate_is_freed_on_its_member(scene: GateScene, asker: Asker) -> None:
    cluster = await scene.held_cluster()
    # What holds it is told first as being deleted: who serves its finalizer takes a moment to find out.
    reasons = [Reason.GATE, Reason.FINALIZER, Reason.FINALIZER]
    answer = await asker.until(PROD, lambda it: [item.reason for item in it.chain] == reasons)
    assert answer.state is AnswerState.HELD
    assert chain(answer) == ["Cluster/prod", f"Teardown/{cluster.uid}", "ConfigMap/web-0"]
    assert answer.chain[-1].cluster == f"Cluster {scene.namespace}/prod"
    assert {remedy.effect for remedy in answer.remedies} == {Effect.LEAVES}
    # Nothing of the member's credentials is printed, and yet it is reached.
    remedy, release = answer.remedies
    assert FORCE_RELEASE_ANNOTATION in release.commands[0]
    assert "base64decode" in remedy.commands[0]
    shown = await asker.shell(f"unwind why {PROD} -n {scene.namespace}")
    assert shown.returncode == 0, shown.stderr
    assert "(on Cluster" in shown.stdout
    assert remedy.commands[1] in shown.stdout
    alone = await asker.shell(f"unwind why cm/web-0 -n {scene.namespace} --cluster {scene.namespace}/prod")
    assert remedy.commands[1] in alone.stdout, alone.stderr
    await asker.do(remedy)
    await cluster.until_gone()
    assert (await cluster.teardown()).phase is Phase.COMPLETE


async def test_a_teardown_that_waits_for_an_unreachable_member_is_released_by_the_command(
    ground: Ground, scene: GateScene, asker: Asker
) -> None:
    await scene.add_on("web")
    cluster = await scene.cluster("web")
    await ground.member.api_server.stop()
    try:
        await cluster.delete()
        await cluster.teardown(
            lambda it: (
                it.phase is Phase.HELD and any(blocker.reason == Reason.UNREACHABLE for blocker in it.status.blockers)
            )
        )
        answer = await asker.ask(f"teardown/{cluster.uid}")
        assert answer.state is AnswerState.HELD
        assert answer.verdict.startswith(
            f"the teardown of Cluster {scene.namespace}/prod is not finished (Held, wave 1/1"
        )
        assert answer.chain[0].reason == Reason.UNREACHABLE
        assert answer.chain[0].actor == "the administrator of the member cluster"
        [remedy] = answer.remedies
        assert remedy.effect is Effect.LEAVES
        assert FORCE_RELEASE_ANNOTATION in remedy.commands[0]
        about = await asker.ask(PROD)
        assert [item.reason for item in about.chain] == [Reason.GATE, Reason.UNREACHABLE]
        assert about.remedies == answer.remedies
        await asker.do(remedy)
        await cluster.until_gone()
    finally:
        await ground.member.api_server.start()
    ended = await cluster.teardown()
    assert ended.phase is Phase.RELEASED


async def test_a_profile_that_is_withdrawn_leads_to_what_stays_on_the_member(scene: GateScene, asker: Asker) -> None:
    await scene.add_on("web")
    await scene.cluster("web")
    await scene.block("web-0")
    name = scene.called("web")
    made = await scene.client.get(CLUSTER_PROFILES, name)
    await scene.client.delete(CLUSTER_PROFILES, name, uid=made["metadata"]["uid"])
    answer = await asker.until(f"clusterprofile/{name}", lambda it: bool(it.remedies))
    assert chain(answer) == [f"ClusterProfile/{name}", f"ClusterSummary/{name}-capi-prod", "ConfigMap/web-0"]
    [remedy] = answer.remedies
    await asker.do(remedy)
    await asker.until_gone(CLUSTER_PROFILES, name)


async def test_a_paused_cluster_goes_on_by_the_command(scene: GateScene, asker: Asker) -> None:
    cluster = await scene.cluster()
    await scene.client.patch(CLUSTERS, "prod", {"spec": {"paused": True}}, namespace=scene.namespace)
    await cluster.delete()
    answer = await asker.ask(PROD)
    assert [item.reason for item in answer.chain] == [Reason.PAUSED]
    [remedy] = answer.remedies
    assert remedy.effect is Effect.SAFE
    await asker.do(remedy)
    await cluster.until_gone()


async def test_another_extension_that_holds_a_cluster_is_named(scene: GateScene, asker: Asker) -> None:
    cluster = await scene.cluster()
    async with extension(scene, "the bill is not paid") as url:
        await cluster.delete()
        answer = await asker.until(PROD, lambda it: any(item.reason == Reason.EXTENSION for item in it.chain))
        [told] = [item for item in answer.chain if item.reason == Reason.EXTENSION]
        assert "the bill is not paid" in told.message
        assert told.actor == f"the owner of billing ({url})"
        await asker.do(typed(answer, "ok-to-delete"))
        await cluster.until_gone()


@asynccontextmanager
async def extension(scene: GateScene, message: str) -> AsyncIterator[str]:
    """An extension of somebody else's that lets no cluster of the scene go."""

    def reply(path: str, _: Object) -> Object:
        told = {"apiVersion": API_VERSION, "status": "Success", "message": ""}
        if path.endswith("/discovery"):
            hook = {"apiVersion": API_VERSION, "hook": "BeforeClusterDelete"}
            handler = {"name": "billing", "requestHook": hook, "timeoutSeconds": 5, "failurePolicy": "Fail"}
            return told | {"kind": "DiscoveryResponse", "handlers": [handler]}
        return told | {"kind": "BeforeClusterDeleteResponse", "message": message, "retryAfterSeconds": 1}

    async with answering(reply) as way:
        selector = {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}}
        made = await scene.client.create(
            EXTENSION_CONFIGS,
            {
                "apiVersion": EXTENSION_CONFIGS.api_version,
                "kind": EXTENSION_CONFIGS.kind,
                "metadata": {"name": "billing"},
                "spec": {"clientConfig": way, "namespaceSelector": selector},
            },
        )
        try:
            await object_watch.until_true(scene.client, EXTENSION_CONFIGS, "billing", "Discovered")
            yield way["url"]
        finally:
            await scene.client.delete(EXTENSION_CONFIGS, "billing", uid=made["metadata"]["uid"])
