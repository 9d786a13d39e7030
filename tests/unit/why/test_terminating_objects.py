from __future__ import annotations

import datetime as dt
import json
import shlex
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from unwind.api.meta import ObjectRef
from unwind.api.names import Finalizer, Reason
from unwind.api.resources import (
    API_SERVICES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DAEMON_SETS,
    DEPLOYMENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    Resource,
)
from unwind.why import facts
from unwind.why.answers import Effect, Kubectl, Thing
from unwind.why.facts import ControllerWorkload, Node, ObjectReport, ObjectSnapshot, Silent, Unlisted
from unwind.why.terminating_objects import SHOWN, conversion, hold_findings, undeleted_findings

if TYPE_CHECKING:
    from unwind.why.answers import Finding

NOW = dt.datetime(2026, 5, 4, 12, 0, tzinfo=dt.UTC)
DELETED = "2026-05-04T11:30:00Z"
KUBECTL = Kubectl()


def look(resource: Resource = CONFIG_MAPS, *finalizers: str, **around: Any) -> ObjectSnapshot:
    metadata: dict[str, Any] = {
        "name": "web",
        "uid": "u-1",
        "finalizers": list(finalizers),
        "deletionTimestamp": DELETED,
        **around.pop("metadata", {}),
    }
    if resource.namespaced:
        metadata["namespace"] = "shop"
    seen = facts.facts_of(
        Thing(resource=resource, name="web"), {"kind": resource.kind, "metadata": metadata, **around.pop("body", {})}
    )
    return msgspec.structs.replace(seen, **around)


def only(it: ObjectSnapshot) -> Finding:
    [found] = hold_findings(it, KUBECTL, now=NOW)
    return found


def workload(name: str, *, running: bool = True, wanted: int | None = 1) -> ControllerWorkload:
    ref = ObjectRef(group="apps", version="v1", kind="Deployment", namespace="ops", name=name, uid=name)
    return ControllerWorkload(object=ref, running=running, wanted=wanted)


def operations(command: str) -> list[dict[str, Any]]:
    words = shlex.split(command)
    found: list[dict[str, Any]] = json.loads(words[words.index("-p") + 1])
    return found


def test_a_finalizer_is_taken_off_the_very_object_from_the_very_place() -> None:
    found = hold_findings(look(CONFIG_MAPS, "a.example.dev/x", "b.example.dev/y"), KUBECTL, now=NOW)
    commands = [item.remedies[0].commands[0] for item in found]
    assert [operations(command) for command in commands] == [
        [
            {"op": "test", "path": "/metadata/uid", "value": "u-1"},
            {"op": "test", "path": f"/metadata/finalizers/{place}", "value": name},
            {"op": "remove", "path": f"/metadata/finalizers/{place}"},
        ]
        for place, name in ((1, "b.example.dev/y"), (0, "a.example.dev/x"))
    ]
    assert commands[0].startswith("kubectl patch -n shop configmap/web --type=json -p '")
    assert all(item.remedies[0].effect is Effect.LEAVES for item in found)


def test_what_the_controller_said_last_is_told() -> None:
    words = (ObjectReport(by="backup-operator", message="BackupFailed: no bucket"),)
    found = only(look(CONFIG_MAPS, "example.dev/x", workloads=(workload("example-operator"),), words=words))
    assert found.reason == Reason.FINALIZER
    assert "its controller seems to be Deployment ops/example-operator, which is running" in found.message
    assert found.message.endswith("; backup-operator says: BackupFailed: no bucket")
    assert [remedy.effect for remedy in found.remedies] == [Effect.LOOKS, Effect.LEAVES]


@pytest.mark.parametrize(
    ("wanted", "effect", "command"),
    [
        (0, Effect.SAFE, "kubectl scale -n ops deployments.apps/example-operator --replicas=1"),
        (1, Effect.LOOKS, "kubectl describe -n ops deployments.apps/example-operator"),
    ],
)
def test_a_controller_that_does_not_run_is_started_or_looked_at_first(
    wanted: int, effect: Effect, command: str
) -> None:
    stopped = workload("example-operator", running=False, wanted=wanted)
    found = only(look(CONFIG_MAPS, "example.dev/x", workloads=(stopped,)))
    assert found.reason == Reason.FINALIZER_NOT_SERVED
    assert (found.remedies[0].effect, found.remedies[0].commands) == (effect, (command,))


def test_a_program_that_wrote_the_finalizer_is_known_by_its_name() -> None:
    fields: dict[str, Any] = {"f:metadata": {"f:finalizers": {'v:"strange.io/x"': {}}}}
    metadata = {"managedFields": [{"manager": "keeper", "fieldsV1": fields}]}
    found = only(look(CONFIG_MAPS, "strange.io/x", metadata=metadata, workloads=(workload("keeper-7"),)))
    assert "its controller seems to be Deployment ops/keeper-7" in found.message


@pytest.mark.parametrize("manager", ["kubectl-edit", "manager", "helm"])
def test_a_program_that_anybody_uses_serves_nothing(manager: str) -> None:
    fields: dict[str, Any] = {"f:metadata": {"f:finalizers": {'v:"strange.io/x"': {}}}}
    metadata = {"managedFields": [{"manager": manager, "fieldsV1": fields}]}
    found = only(look(CONFIG_MAPS, "strange.io/x", metadata=metadata, workloads=(workload(f"{manager}-1"),)))
    assert f"(no controller found; set by {manager})" in found.message


def test_our_own_finalizer_is_never_taken_off_by_hand() -> None:
    found = only(look(CONFIG_MAPS, Finalizer.CREDENTIALS, manager_runs=True))
    assert found.remedies == ()
    stopped = only(look(CONFIG_MAPS, Finalizer.CREDENTIALS, manager_runs=False))
    assert stopped.reason == Reason.MANAGER_NOT_RUNNING
    assert stopped.remedies[0].commands == ("unwind run",)


def test_the_namespaces_own_finalizer_is_never_taken_off() -> None:
    silent = Silent(service=Thing(resource=API_SERVICES, name="v1.a.dev", uid="s"), behind="ops/a", message="no reply")
    gadgets = Unlisted(
        definition=Thing(resource=CUSTOM_RESOURCE_DEFINITIONS, name="gadgets.b.dev", uid="c"),
        kind="Gadget",
        error="conversion webhook failed",
        converts="Service ops/b",
    )
    inside = tuple(
        Thing(resource=CONFIG_MAPS, name=f"m{number}", namespace="web", uid=str(number)) for number in range(6)
    )
    it = look(
        NAMESPACES,
        body={"spec": {"finalizers": ["kubernetes"]}},
        silent=(silent,),
        unlisted=(gadgets,),
        contents=inside,
    )
    api, converted, holds = hold_findings(it, KUBECTL, now=NOW)
    assert api.reason == Reason.API_NOT_SERVED
    assert api.remedies[0].commands == ("kubectl delete apiservices.apiregistration.k8s.io/v1.a.dev --wait=false",)
    assert converted.reason == Reason.WEBHOOK_SILENT
    assert '{"spec":{"conversion":{"strategy":"None","webhook":null}}}' in converted.remedies[0].commands[0]
    assert len(holds.behind) == SHOWN
    assert holds.message.endswith(" and 2 more")
    commands = " ".join(command for item in (api, converted, holds) for it in item.remedies for command in it.commands)
    assert "finalize" not in commands


def test_a_namespace_with_nothing_left_is_about_to_go() -> None:
    assert only(look(NAMESPACES, body={"spec": {"finalizers": ["kubernetes"]}})).reason == Reason.DELETING


def test_a_kind_that_cannot_be_listed_for_another_reason_has_no_command() -> None:
    found = conversion(Unlisted(definition=None, kind="Gadget", error="etcd is away"), KUBECTL)
    assert found.remedies == ()
    assert "etcd is away" in found.message


@pytest.mark.parametrize(
    ("node", "reason", "said"),
    [
        (Node(name="n1", there=True, ready=False), Reason.NODE_LOST, "--grace-period=0 --force"),
        (Node(name="n1", there=False), Reason.NODE_LOST, "--grace-period=0 --force"),
        (Node(name="n1", there=True, ready=True), Reason.DELETING, "--grace-period=1"),
    ],
)
def test_a_pod_goes_by_force_only_where_its_node_is_lost(node: Node, reason: Reason, said: str) -> None:
    found = only(look(PODS, node=node))
    assert found.reason == reason
    assert found.remedies[0].commands[0].endswith(said)
    assert found.remedies[0].effect is Effect.LEAVES


def test_a_pod_that_has_time_left_waits_for_its_node_and_for_its_finalizers() -> None:
    it = look(PODS, "example.dev/x", node=Node(name="n1", there=False), metadata={"deletionGracePeriodSeconds": 600})
    assert [item.reason for item in hold_findings(it, KUBECTL, now=NOW)] == [Reason.FINALIZER, Reason.NODE_LOST]


def test_a_summary_leads_to_what_it_put_on_its_member() -> None:
    there = tuple(Thing(resource=CONFIG_MAPS, name=f"m{number}", uid=str(number)).ref for number in range(6))
    cluster = ObjectRef(kind="Cluster", name="prod", uid="c")
    found = only(look(CONFIG_MAPS, Finalizer.SUMMARY, manager_runs=True, placed=there, placed_on=cluster))
    assert (found.behind, found.elsewhere) == (there[:SHOWN], cluster)
    assert "6 of its objects are not verified absent" in found.message


def test_what_was_told_of_already_is_not_told_twice() -> None:
    it = look(CONFIG_MAPS, "a.dev/x", "b.dev/y")
    [found] = hold_findings(it, KUBECTL, now=NOW, besides=("b.dev/y",))
    assert "/metadata/finalizers/0" in found.remedies[0].commands[0]


def test_what_unwind_says_is_in_the_way_is_told() -> None:
    blocked = {"type": "Blocked", "status": "True", "message": "waits for base"}
    found = only(look(CONFIG_MAPS, Finalizer.SUMMARY, manager_runs=True, body={"status": {"conditions": [blocked]}}))
    assert found.message.endswith("; condition Blocked says: waits for base")


def test_since_when_a_pod_is_deleted_is_not_when_its_time_is_over() -> None:
    it = look(PODS, metadata={"deletionGracePeriodSeconds": 600})
    assert it.deleted_at == dt.datetime(2026, 5, 4, 11, 20, tzinfo=dt.UTC)


def test_a_claim_that_nobody_uses_is_about_to_go() -> None:
    assert only(look(PERSISTENT_VOLUME_CLAIMS, "kubernetes.io/pvc-protection")).reason == Reason.DELETING


@pytest.mark.parametrize(
    ("controller", "command"),
    [
        (None, "kubectl delete -n shop pod/web --wait=false"),
        (DEPLOYMENTS, "kubectl scale -n shop deployments.apps/top --replicas=0"),
        (DAEMON_SETS, "kubectl delete -n shop daemonsets.apps/top --wait=false"),
    ],
)
def test_a_pod_is_stopped_where_nobody_makes_another(controller: Resource | None, command: str) -> None:
    above = Thing(resource=controller, name="top", namespace="shop") if controller else None
    found = undeleted_findings(look(PODS, controller=above), KUBECTL)
    assert found.remedies[0].commands == (command,)


def test_commands_for_a_member_come_with_the_way_to_it() -> None:
    there = Kubectl(options=("--kubeconfig", "prod.kubeconfig"), first=("fetch it",))
    [found] = hold_findings(look(CONFIG_MAPS, "example.dev/x"), there, now=NOW)
    first, second = found.remedies[0].commands
    assert first == "fetch it"
    assert second.startswith("kubectl --kubeconfig prod.kubeconfig patch -n shop configmap/web ")
