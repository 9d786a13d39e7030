"""`unwind why` about deletions that the API server refuses: webhooks, policies, protection and RBAC."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.why_answers import Asker, denying, forced, protected_asker, safe
from tests.plane.support.why_objects import NOWHERE, deployment, until_readable, webhook
from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS, VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.kube.client import Client
from unwind.why.answers import AnswerState, Effect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def asker(plane: Plane) -> AsyncIterator[Asker]:
    """On a cluster of these tests' own: their webhooks would hold other tests."""
    member = await plane.add_member("why-refusals")
    yield await protected_asker(member)
    await plane.remove_member(member.name)


async def test_the_command_ignores_a_dead_webhook_and_restores_it(asker: Asker) -> None:
    made = await asker.make(CONFIG_MAPS, "asked")
    await webhook(asker, "silent", "asked", {"url": NOWHERE})
    await asker.until_refused(CONFIG_MAPS, made, "failed calling webhook")
    answer = await asker.ask("cm/asked")
    assert answer.state is AnswerState.REFUSED
    assert f"the webhook silent.example.dev of ValidatingWebhookConfiguration silent must be called, but {NOWHERE}" in (
        answer.verdict
    )
    remedy = forced(answer)
    await asker.do(remedy)
    await asker.until_deletable(CONFIG_MAPS, made)
    await asker.delete(CONFIG_MAPS, made)
    await asker.until_gone(CONFIG_MAPS, "asked")
    done = await asker.shell(*remedy.afterwards)
    assert done.returncode == 0, done.stderr
    found = await asker.client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, "silent")
    assert found["webhooks"][0]["failurePolicy"] == "Fail"


async def test_a_denial_by_a_webhook_is_referred_to_its_owner(asker: Asker) -> None:
    made = await asker.make(CONFIG_MAPS, "billed")
    async with denying("the invoice is open") as way:
        await webhook(asker, "denying", "billed", way)
        await asker.until_refused(CONFIG_MAPS, made, "the invoice is open")
        answer = await asker.ask("cm/billed")
    assert answer.state is AnswerState.REFUSED
    assert "the invoice is open" in answer.verdict
    assert answer.only == f"the owner of {way['url']}, unless you can do what the denial asks for"
    assert {remedy.effect for remedy in answer.remedies} == {Effect.LOOKS}


async def test_a_denial_by_a_policy_is_referred_to_its_author(asker: Asker) -> None:
    made = await asker.make(CONFIG_MAPS, "audited")
    await asker.keeping("audited", "kept for the audit until January")
    await asker.until_refused(CONFIG_MAPS, made, "kept for the audit")
    answer = await asker.ask("cm/audited")
    assert answer.state is AnswerState.REFUSED
    assert (
        "denied by the ValidatingAdmissionPolicy audited (binding audited): kept for the audit until January"
        in answer.verdict
    )
    assert answer.only.startswith("the author of the policy audited")
    [remedy] = answer.remedies
    assert remedy.effect is Effect.LOOKS
    await asker.do(remedy)


async def test_the_command_removes_the_label_always(asker: Asker) -> None:
    await asker.make(CONFIG_MAPS, "always", metadata={"labels": {DELETE_PROTECTION_LABEL: "Always"}})
    answer = await asker.ask("cm/always")
    assert answer.state is AnswerState.REFUSED
    assert answer.chain[0].reason == Reason.PROTECTED
    assert f"protected by the label {DELETE_PROTECTION_LABEL}=Always" in answer.verdict
    await asker.do(forced(answer))
    await asker.until_gone(CONFIG_MAPS, "always")


async def test_cascading_is_satisfied_by_scaling_to_zero(asker: Asker) -> None:
    labels = {DELETE_PROTECTION_LABEL: "Cascading"}
    await deployment(asker, "cascading", replicas=2, labels=labels)
    answer = await asker.ask("deploy/cascading")
    assert answer.state is AnswerState.REFUSED
    assert "as long as something depends on it: replicas 2" in answer.verdict
    assert {remedy.effect for remedy in answer.remedies} == {Effect.SAFE, Effect.LEAVES}
    await asker.do(safe(answer))
    await asker.until_gone(DEPLOYMENTS, "cascading")


async def test_missing_rights_are_explained_with_the_command_that_grants_them(asker: Asker) -> None:
    made = await asker.make(CONFIG_MAPS, "theirs")
    reader = asker.cluster.connection("bob", groups=["readers"])
    done = await asker.shell(
        "kubectl create clusterrole readers --verb=get,list --resource=configmaps,events",
        "kubectl create clusterrolebinding readers --clusterrole=readers --group=readers",
    )
    assert done.returncode == 0, done.stderr
    async with Client(reader) as bob:
        answer = await until_readable(asker, "cm/theirs", bob)
        assert answer.state is AnswerState.REFUSED
        assert answer.chain[0].reason == Reason.NO_RIGHT
        assert "user bob is not allowed to delete it" in answer.verdict
        [remedy] = answer.remedies
        assert remedy.by == "an administrator who can grant permissions"
        await asker.do(remedy)
        meta = made["metadata"]

        async def deletable() -> bool:
            return (await asker.ask("cm/theirs", client=bob)).state is AnswerState.DELETABLE

        await eventually(deletable, within=30, every=0.1)
        await bob.delete(CONFIG_MAPS, "theirs", uid=meta["uid"], namespace="why")
    await asker.until_gone(CONFIG_MAPS, "theirs")
    assert (await asker.shell(*remedy.afterwards)).returncode == 0
