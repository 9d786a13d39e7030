"""What hooks are answered: no from caches at once, yes only by what was just read, and never anything but Success."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.capi.answering import DELETE, NOT_LOADED, SERVED, Standin, later, summary, unloadable
from tests.unit.capi.asked import UID, body, cluster, teardown
from unwind.api.hooks import Hook
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import CLUSTER_UID_ANNOTATION, MEMBER_LABEL, OWNER_LABEL
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import (
    INVENTORIES,
    TEARDOWNS,
    Blocker,
    Effort,
    Entry,
    EntryState,
    Inventory,
    InventorySpec,
    MemberRef,
    Teardown,
)
from unwind.capi import hook_protocol
from unwind.capi.hook_protocol import switched_on
from unwind.cli import ledger
from unwind.hooks import HookContext, Rule, Wait
from unwind.kube.client import Client
from unwind.kube.decoding import Key
from unwind.kube.events import EVENTS
from unwind.kube.transport import ServerAnswer
from unwind.manager.feature_gates import FEATURE_GATES, parse

CLOSED = "waiting for add-on cleanup: "
AFTER = Hook.AFTER_CONTROL_PLANE_INITIALIZED


def rule(hook: Hook, decide: Any) -> Rule:
    return Rule(name="rule", hook=hook, decide=decide, source="others 1.0")


async def wait(request: Any, ctx: HookContext[Any]) -> Wait:
    return Wait("for others", 4)


async def break_down(request: Any, ctx: HookContext[Any]) -> None:
    raise ValueError("no idea")


# The gate


async def test_a_no_comes_from_the_caches_and_costs_nothing_while_nothing_changes() -> None:
    standin = Standin()
    it = teardown(("db", "Enforce", "Removing"))
    standin.knows(it)
    first, second = [await standin.post(hook_protocol.path(DELETE), body()) for _ in range(2)]
    assert first is second
    assert json.loads(first.body)["message"] == f"{CLOSED}db"
    standin.knows(later(it, blockers=(Blocker(step="db", reason="Finalizer", message="held by x"),)))
    third = await standin.post(hook_protocol.path(DELETE), body())
    assert json.loads(third.body)["message"] == f"{CLOSED}db; held by x"
    assert standin.objects.requests == []


async def test_a_yes_comes_only_from_what_was_read_for_it() -> None:
    standin = Standin()
    it = teardown(("db", "Enforce", "Removed"))
    standin.knows(it)
    standin.has(teardown(("db", "Enforce", "Removing")))
    assert (await standin.ask())["message"] == f"{CLOSED}db", "the record says otherwise"
    standin.objects.change(TEARDOWNS, UID, {"status": {"phase": "Complete"}}, namespace="")
    assert (await standin.ask())["retryAfterSeconds"] == 0
    assert standin.objects.requests == [f"GET /apis/unwind.dev/v1alpha1/teardowns/{UID}"] * 2


@pytest.mark.parametrize("phase", ["Removing", "Complete"])
async def test_a_paused_cluster_is_held_whatever_its_teardown_says(phase: str) -> None:
    standin = Standin()
    it = teardown(("db", "Enforce", "Removed"), phase=phase)
    standin.knows(it)
    standin.has(it)
    by_field, by_annotation = cluster(), cluster()
    by_field["spec"]["paused"] = True
    by_annotation["metadata"]["annotations"]["cluster.x-k8s.io/paused"] = ""
    for paused in (by_field, by_annotation):
        told = await standin.ask(cluster=paused)
        assert told["retryAfterSeconds"] > 0
        assert "is paused" in told["message"]
    assert (await standin.ask())["retryAfterSeconds"] == 0


@pytest.mark.parametrize("hook", Hook)
async def test_hooks_only_read(hook: Hook) -> None:
    for known in (None, teardown(("db", "Enforce", "Removed"), phase="Complete"), teardown(("db", "Enforce", ""))):
        standin = Standin()
        if known:
            standin.knows(known)
            standin.has(known)
        standin.knows(summary("web", "EnforceRemovePolicies"))
        await standin.ask(hook)
        assert [request for request in standin.objects.requests if not request.startswith("GET ")] == []


async def test_a_teardown_that_is_gone_leaves_nothing_behind() -> None:
    standin = Standin()
    standin.knows(teardown(("db", "Enforce", "Removing")))
    await standin.ask()
    assert list(standin.asking._answers) == [UID]
    informer = standin.caches.teardowns
    informer._tell(informer.cache.drop(Key("", UID)))
    assert standin.asking._answers == {}
    assert (await standin.ask())["retryAfterSeconds"] == 0, "there is nothing on it any more"


@pytest.mark.parametrize(
    ("said", "remembered", "closed"),
    [
        ("EnforceRemovePolicies", None, True),
        (None, "EnforceRemovePolicies", True),
        (None, "Enforce", True),
        ("RemovePolicies", "EnforceRemovePolicies", False),
        ("LeavePolicies", None, False),
        (None, "LeavePolicies", False),
        (None, None, False),
        ("removePolicies", None, True),
    ],
)
async def test_a_summary_keeps_its_cluster_by_what_it_says_or_said(
    said: str | None, remembered: str | None, closed: bool
) -> None:
    cached, read = Standin(), Standin()
    cached.knows(summary("one", said, remembered=remembered))
    read.has(summary("one", said, remembered=remembered))
    if closed:
        assert (await cached.ask())["retryAfterSeconds"] == 1
        assert cached.objects.requests == []
    assert (await read.ask())["retryAfterSeconds"] == int(closed)


@pytest.mark.parametrize(
    "other",
    [
        summary("other", "EnforceRemovePolicies", uid="of-another"),
        summary("other", "EnforceRemovePolicies", uid=None, of="prod-8"),
    ],
)
async def test_summaries_of_other_clusters_keep_nobody(other: Any) -> None:
    standin = Standin()
    standin.knows(other)
    standin.has(other)
    assert (await standin.ask())["retryAfterSeconds"] == 0


async def test_a_summary_that_no_profile_owns_keeps_its_cluster_only_by_an_inventory() -> None:
    planted = summary("one", "EnforceRemovePolicies", owned=False)
    standin = Standin()
    standin.knows(planted)
    standin.has(planted)
    assert (await standin.ask())["retryAfterSeconds"] == 0
    owner = ObjectRef(kind="ClusterSummary", namespace="fleet", name="one", uid=planted.metadata.uid)
    member = MemberRef(object=ObjectRef(kind="Namespace", name="kube-system", uid="here"), system_uid="here")
    chunk = Inventory(
        metadata=ObjectMeta(name=f"{owner.uid}-0", namespace="unwind-system", labels={OWNER_LABEL: owner.uid}),
        spec=InventorySpec(owner=owner, member=member),
    )
    standin.objects.put(manifest(INVENTORIES, chunk))
    assert (await standin.ask())["retryAfterSeconds"] == 1


@pytest.mark.parametrize(
    ("effort", "state", "held"),
    [
        (Effort.ENFORCE, EntryState.CONFIRMED, True),
        (Effort.ENFORCE, EntryState.REMOVED, False),
        (Effort.TRY, EntryState.CONFIRMED, False),
        (Effort.LEAVE, EntryState.CONFIRMED, False),
        ("", EntryState.CONFIRMED, True),
        ("Gently", EntryState.CONFIRMED, True),
    ],
)
async def test_without_the_feature_that_deployed_them_recorded_objects_keep_their_cluster(
    effort: str, state: EntryState, held: bool
) -> None:
    standin = Standin(addons=False)
    owner = ObjectRef(kind="ClusterSummary", namespace="fleet", name="one", uid="uid-one")
    entry = Entry(object=ObjectRef(kind="ConfigMap", namespace="web", name="settings", uid="9"), state=state)
    for member in (UID, "another cluster"):
        chunk = Inventory(
            metadata=ObjectMeta(name=f"of-{member[:7]}", namespace="unwind-system", labels={MEMBER_LABEL: member}),
            spec=InventorySpec(
                owner=owner,
                member=MemberRef(object=ObjectRef(kind="Cluster", name="prod-7", uid=member), system_uid="here"),
                effort=effort if member == UID else Effort.ENFORCE,
                entries={"one": entry},
            ),
        )
        standin.objects.put(manifest(INVENTORIES, chunk))
    told = await standin.ask()
    assert (told["retryAfterSeconds"] > 0) is held
    if held:
        assert told["message"] == f"{CLOSED}ClusterSummary/one/uid-one"


async def test_without_the_feature_that_deployed_them_an_unknown_record_keeps_the_cluster() -> None:
    standin = Standin(addons=False, served=[resource for resource in SERVED if resource != INVENTORIES])
    told = await standin.ask()
    assert told["retryAfterSeconds"] > 0
    assert "the Inventories in namespace unwind-system" in told["message"]


async def test_what_is_not_known_yet_of_profiles_keeps_a_cluster() -> None:
    standin = Standin()
    standin.has(summary("one", "EnforceRemovePolicies", owned=False))
    standin.caches.profiles._synced.clear()
    assert (await standin.ask())["retryAfterSeconds"] == 1


async def test_a_summary_that_does_not_say_which_cluster_it_was_made_for_counts() -> None:
    standin = Standin()
    standin.has(summary("one", "EnforceRemovePolicies", uid=None))
    assert (await standin.ask())["retryAfterSeconds"] == 1


async def test_a_summary_that_cannot_be_read_keeps_its_own_cluster_only() -> None:
    standin = Standin()
    broken: dict[str, Any] = {
        "apiVersion": CLUSTER_SUMMARIES.api_version,
        "kind": "ClusterSummary",
        "metadata": {"name": "broken", "namespace": "fleet", "annotations": {CLUSTER_UID_ANNOTATION: UID}},
        "spec": {"clusterNamespace": "fleet", "clusterName": "prod-8", "clusterProfileSpec": {"tier": "high"}},
    }
    standin.objects.put(broken)
    assert (await standin.ask())["retryAfterSeconds"] == 0
    told = await standin.ask(cluster=cluster(name="prod-8"))
    assert (told["message"], told["retryAfterSeconds"]) == (
        (
            f"{CLOSED}cannot read the ClusterSummaries in namespace fleet from the API server;"
            " see the log of the Unwind manager"
        ),
        1,
    )


async def test_a_server_that_does_not_know_teardowns_says_nothing_about_one() -> None:
    standin = Standin(served=[item for item in SERVED if item is not TEARDOWNS])
    told = await standin.ask()
    assert told["retryAfterSeconds"] == 1
    assert (
        told["message"]
        == f"{CLOSED}cannot read Teardown {UID} from the API server (404); see the log of the Unwind manager"
    )


async def test_that_something_else_was_not_found_says_nothing_about_a_teardown(monkeypatch: pytest.MonkeyPatch) -> None:
    standin = Standin()
    read = standin.objects.request

    async def request(method: str, target: str, **more: Any) -> ServerAnswer:
        if TEARDOWNS.plural not in target:
            return await read(method, target, **more)
        return ServerAnswer(404, b'{"kind":"Status","code":404,"reason":"NotFound","details":{"name":"gateway"}}')

    monkeypatch.setattr(standin.objects, "request", request)
    assert (await standin.ask())["retryAfterSeconds"] == 1


async def test_a_cluster_without_a_uid_is_kept() -> None:
    told = await Standin().ask(cluster=cluster(uid=""))
    assert told["retryAfterSeconds"] == 1
    assert "no Cluster uid" in told["message"]


async def test_without_time_to_confirm_it_stays_closed() -> None:
    told = await Standin().ask(within=0.1)
    assert told["message"] == f"{CLOSED}cannot read Teardown {UID}: the API server timed out; Cluster API asks again"


@pytest.mark.parametrize("which", ["teardowns", "summaries"])
async def test_a_kind_that_is_no_longer_followed_keeps_every_cluster(which: str) -> None:
    standin = Standin()
    standin.knows(teardown(("db", "Enforce", "Removing")))
    assert (await standin.ask())["message"] == f"{CLOSED}db"
    getattr(standin.caches, which)._synced.clear()
    told = await standin.ask()
    assert (told["message"], told["retryAfterSeconds"]) == (
        f"{CLOSED}Unwind is starting and has not read all objects yet; Cluster API asks again",
        1,
    )


async def test_a_rule_may_keep_what_the_gate_lets_go() -> None:
    standin = Standin(rules=[rule(DELETE, wait)])
    told = await standin.ask()
    assert (told["message"], told["retryAfterSeconds"]) == ("for others", 4)


# Whatever happens


async def test_a_mistake_of_ours_keeps_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    standin = Standin()
    monkeypatch.setattr(Client, "get", broken)
    assert (await standin.ask())["retryAfterSeconds"] == 1
    monkeypatch.setattr(standin.asking._source, "holding", broken)
    told = await standin.ask()
    assert (told["message"], told["retryAfterSeconds"]) == (
        f"{CLOSED}internal error; see the log of the Unwind manager",
        1,
    )


@pytest.mark.parametrize("hook", Hook)
def test_an_answer_that_is_late_or_has_no_room_is_to_ask_again(hook: Hook) -> None:
    route = Standin().routes[hook_protocol.path(hook)]
    for answer in (route.late, route.busy):
        assert answer
        told = json.loads(answer.body)
        assert (answer.status, told["status"], told.get("retryAfterSeconds")) == (
            200,
            "Success",
            1 if hook.blocks else None,
        )
    assert route.ready(), "it never answers 503"


# Rules


@pytest.mark.parametrize("hook", [hook for hook in Hook if hook not in (DELETE, AFTER)])
async def test_rules_hold_their_hook_and_no_other(hook: Hook) -> None:
    standin = Standin(rules=[rule(hook, wait), rule(hook, break_down)])
    told = await standin.ask(hook)
    assert told["message"] == (
        "for others; hook rule rule of others 1.0 blocks the cluster: failed: ValueError: no idea; see the log of the"
        " manager"
    )
    assert told["retryAfterSeconds"] == 4
    for other in Hook:
        if other is not hook:
            assert (await standin.ask(other)).get("retryAfterSeconds", 0) == 0


async def test_a_hook_that_is_switched_off_lets_everything_pass() -> None:
    standin = Standin(rules=[rule(Hook.BEFORE_CLUSTER_CREATE, wait)], hooks=[DELETE])
    assert (await standin.ask(Hook.BEFORE_CLUSTER_CREATE))["retryAfterSeconds"] == 0


async def test_nobody_is_kept_after_the_control_plane_is_there() -> None:
    asked = []

    async def start(request: Any, ctx: HookContext[Any]) -> None:
        asked.append(request.cluster.metadata.name)
        raise ValueError("no idea")

    standin = Standin(rules=[rule(AFTER, start)])
    assert "retryAfterSeconds" not in await standin.ask(AFTER)
    standin.caches.summaries._synced.clear()
    await standin.ask(AFTER)
    assert asked == ["prod-7", "prod-7"]


async def test_a_package_that_does_not_load_holds_its_hook() -> None:
    standin = Standin(plugins=[unloadable("BeforeClusterUpgrade")])
    told = await standin.ask(Hook.BEFORE_CLUSTER_UPGRADE)
    assert told["retryAfterSeconds"] == 10
    assert told["message"].endswith(
        "for BeforeClusterUpgrade: ImportError: no module; fix or uninstall the package, then restart the manager"
    )
    assert (await standin.ask(Hook.BEFORE_CLUSTER_CREATE))["retryAfterSeconds"] == 0


# Nothing is enforced


@pytest.mark.parametrize("steps", [(), (("web", "Try", "Removing"), ("log", "Leave", "Waiting"))])
async def test_rules_that_do_not_load_do_not_block_a_plan_without_an_enforced_step(
    steps: tuple[tuple[str, str, str], ...],
) -> None:
    standin = Standin(plugins=[unloadable()])
    record = teardown(*steps)
    standin.knows(record)
    standin.has(record)
    assert (await standin.ask())["retryAfterSeconds"] == 0
    noted = standin.objects.get(TEARDOWNS, UID)
    assert noted
    [said] = noted["status"]["conditions"]
    assert (said["type"], said["status"], said["reason"], said["message"]) == (
        "NotVerified",
        "True",
        "NotLoaded",
        NOT_LOADED,
    )


async def test_rules_that_do_not_load_block_an_enforced_plan_even_when_it_is_removed() -> None:
    standin = Standin(plugins=[unloadable()])
    record = teardown(("db", "Enforce", "Removed"), ("web", "Try", "Removed"))
    standin.knows(record)
    standin.has(record)
    assert await standin.ask() == {**await standin.ask(), "message": NOT_LOADED, "retryAfterSeconds": 10}


async def test_a_rule_that_answers_or_fails_blocks_although_nothing_is_enforced() -> None:
    async def fail(*_: Any) -> Any:
        raise ValueError("no idea")

    for decide, message in ((wait, "for others"), (fail, "failed: ValueError: no idea; see the log of the manager")):
        standin = Standin(rules=[rule(DELETE, decide)], plugins=[unloadable()])
        standin.has(record := teardown(("web", "Try", "Removing")))
        standin.knows(record)
        told = await standin.ask()
        assert told["retryAfterSeconds"] > 0
        assert told["message"].endswith(message)
        noted = standin.objects.get(TEARDOWNS, UID)
        assert noted
        assert "conditions" not in noted.get("status", {})


async def test_the_frozen_plan_in_the_cache_opens_the_gate_when_the_read_fails() -> None:
    standin = Standin(served=[item for item in SERVED if item is not TEARDOWNS])
    standin.knows(teardown(("web", "Try", "Removing")))
    assert (await standin.ask())["retryAfterSeconds"] == 0


async def test_a_gate_that_opened_without_the_read_says_so_in_a_condition_an_event_and_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standin = Standin()
    record = teardown(("web", "Try", "Removing"))
    standin.knows(record)
    standin.has(record)
    request = standin.objects.request

    async def refused(method: str, target: str, **more: Any) -> ServerAnswer:
        if method == "GET" and "/teardowns/" in target:
            return ServerAnswer(403, b'{"kind": "Status", "reason": "Forbidden", "code": 403}')
        return await request(method, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(standin.objects, "request", refused)
        assert (await standin.ask())["retryAfterSeconds"] == 0
    why = f"cannot read Teardown {UID} from the API server (403); see the log of the Unwind manager"
    noted = standin.objects.get(TEARDOWNS, UID)
    assert noted
    [said] = noted["status"]["conditions"]
    assert (said["type"], said["status"], said["reason"], said["message"]) == (
        "NotVerified",
        "True",
        "ReadFailed",
        why,
    )
    await standin.recorder.write()
    [event] = standin.objects.all(EVENTS)
    assert (event["regarding"]["uid"], event["reason"], event["note"]) == (UID, "NotVerified", why)
    [line] = (await ledger.read_ledger(standin.objects.client, UID, None)).not_verified
    assert (line.target.uid, line.reason, line.message) == (UID, "ReadFailed", why)


@pytest.mark.parametrize(
    "known",
    [
        teardown(("web", "Try", "Removing"), ("db", "Enforce", "Removed"), phase="Complete"),
        teardown(("web", "Sometimes", "Removed"), phase="Complete"),
        teardown(("web", "Try", "Removing"), uid="another"),
    ],
    ids=["enforced", "unknown effort", "of another cluster"],
)
async def test_no_other_plan_in_the_cache_does(known: Teardown) -> None:
    standin = Standin(served=[item for item in SERVED if item is not TEARDOWNS])
    standin.knows(known)
    told = await standin.ask()
    assert (told["message"], told["retryAfterSeconds"]) == (
        f"{CLOSED}cannot read Teardown {UID} from the API server (404); see the log of the Unwind manager",
        1,
    )


async def test_a_forged_plan_in_the_cache_does_not_open_the_gate() -> None:
    standin = Standin(served=[item for item in SERVED if item is not TEARDOWNS])
    informer = standin.caches.teardowns
    informer._tell(informer.cache.put(teardown(("web", "Try", "Removing"))))
    assert (await standin.ask())["retryAfterSeconds"] == 1


def test_hooks_are_switched_on_one_by_one_and_the_gate_cannot_be_switched_off() -> None:
    assert switched_on(parse("")) == (AFTER, DELETE)
    assert switched_on(parse("BeforeWorkersUpgrade=true")) == (AFTER, Hook.BEFORE_WORKERS_UPGRADE, DELETE)
    gates = {feature.name for feature in FEATURE_GATES}
    assert {hook.value for hook in Hook} - gates == {AFTER.value, DELETE.value}
