"""`unwind why` on a real API server: the commands that it prints are typed, and free the object."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import pytest_asyncio

from tests.plane.support.why_answers import Asker, chain, deleting, forced, protected_asker, safe
from tests.plane.support.why_objects import (
    CLAIM,
    HOLD,
    NOWHERE,
    converted,
    deployment,
    node,
    owner,
    pod,
    pods,
    ready,
    warn,
)
from unwind.api.karmada import CLUSTERS as KARMADA_CLUSTERS
from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.api.resources import (
    API_SERVICES,
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from unwind.api.sveltos import SVELTOS_CLUSTERS
from unwind.kube import object_watch
from unwind.local.home import Shape
from unwind.local.plane import running
from unwind.why.answers import Answer, AnswerState, Effect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.kube.client import Object
    from unwind.local.cluster import LocalCluster
    from unwind.local.plane import Plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def here() -> AsyncIterator[Plane]:
    """A plane of these tests' own, with no nodes: what they break would be in everybody's way."""
    async with running(Shape(members=1), announce=print) as plane:
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def asker(here: Plane) -> Asker:
    return await protected_asker(here.management)


async def namespaced(asker: Asker, name: str) -> Object:
    """Another namespace, that can be deleted."""
    await asker.cluster.create_namespace(name)
    return await asker.client.get(NAMESPACES, name)


# Finalizers


async def test_the_command_removes_a_finalizer_whose_controller_is_gone(asker: Asker) -> None:
    made = await asker.make(CONFIG_MAPS, "orphan", finalizers=["other.example.dev/x", HOLD])
    await asker.delete(CONFIG_MAPS, made)
    answer = await asker.ask("cm/orphan")
    assert answer.state is AnswerState.HELD
    assert answer.since
    assert "no controller found" in answer.verdict
    assert [item.reason for item in answer.chain] == [Reason.FINALIZER, Reason.FINALIZER]
    assert {remedy.effect for remedy in answer.remedies} == {Effect.LEAVES}
    # One after the other, as they are printed.
    for remedy in answer.remedies:
        await asker.do(remedy)
    await asker.until_gone(CONFIG_MAPS, "orphan")


async def test_the_command_does_not_free_another_object_with_the_same_name(asker: Asker) -> None:
    made = await asker.make(CONFIG_MAPS, "renamed", finalizers=[HOLD])
    await asker.delete(CONFIG_MAPS, made)
    remedy = forced(await asker.ask("cm/renamed"))
    await asker.do(remedy)
    await asker.until_gone(CONFIG_MAPS, "renamed")
    await asker.make(CONFIG_MAPS, "renamed", finalizers=[HOLD])
    done = await asker.shell(*remedy.commands)
    assert done.returncode != 0
    found = await asker.client.get(CONFIG_MAPS, "renamed", namespace="why")
    assert found["metadata"]["finalizers"] == [HOLD]
    await asker.client.patch(CONFIG_MAPS, "renamed", {"metadata": {"finalizers": None}}, namespace="why")


async def test_a_failing_controller_is_named_with_its_last_event(asker: Asker) -> None:
    await deployment(asker, "backup-operator", replicas=1)
    await ready(asker, "backup-operator")
    made = await asker.make(CONFIG_MAPS, "failing", finalizers=["backup.example.org/x"])
    await asker.delete(CONFIG_MAPS, made)
    await warn(asker, CONFIG_MAPS, made, "the bucket does not answer")
    answer = await asker.ask("cm/failing")
    [link] = answer.chain
    assert "its controller seems to be Deployment why/backup-operator, which is running" in link.message
    assert "backup-operator says: BackupFailed: the bucket does not answer" in link.message
    assert "or its owner if it keeps failing" in link.actor
    looks = [remedy for remedy in answer.remedies if remedy.effect is Effect.LOOKS]
    assert looks[0].commands == ("kubectl logs -n why deployments.apps/backup-operator --tail=50",)
    await asker.do(forced(answer))
    await asker.until_gone(CONFIG_MAPS, "failing")


async def test_the_command_starts_a_controller_that_is_scaled_to_zero(asker: Asker) -> None:
    await deployment(asker, "snapshots", replicas=0)
    made = await asker.make(CONFIG_MAPS, "unserved", finalizers=["snapshots.example.net/x"])
    await asker.delete(CONFIG_MAPS, made)
    answer = await asker.ask("cm/unserved")
    assert answer.chain[0].reason == Reason.FINALIZER_NOT_SERVED
    assert "is scaled to zero" in answer.verdict
    await asker.do(safe(answer))

    def started(it: Object | None) -> bool:
        return bool(it and it["spec"]["replicas"] == 1)

    # What stands for it does its work as soon as it is started.
    await object_watch.until(asker.client, DEPLOYMENTS, "snapshots", started, "started", namespace="why")
    await asker.client.patch(CONFIG_MAPS, "unserved", {"metadata": {"finalizers": None}}, namespace="why")
    await asker.until_gone(CONFIG_MAPS, "unserved")


# Owners


async def test_a_foreground_deletion_is_traced_to_the_blocking_child(asker: Asker) -> None:
    parent = await asker.make(CONFIG_MAPS, "parent")
    await asker.make(CONFIG_MAPS, "child", finalizers=[HOLD], metadata={"ownerReferences": [owner(parent)]})
    await asker.delete(CONFIG_MAPS, parent, propagation="Foreground")
    answer = await asker.until("cm/parent", lambda it: bool(it.remedies))
    assert answer.state is AnswerState.HELD
    assert chain(answer) == ["ConfigMap/parent", "ConfigMap/child"]
    assert [item.reason for item in answer.chain] == [Reason.OWNS_OTHERS, Reason.FINALIZER]
    await asker.do(forced(answer))
    await asker.until_gone(CONFIG_MAPS, "parent")


async def test_a_protected_child_blocks_a_foreground_deletion(asker: Asker) -> None:
    parent = await asker.make(CONFIG_MAPS, "owner")
    metadata = {"ownerReferences": [owner(parent)], "labels": {DELETE_PROTECTION_LABEL: "Always"}}
    await asker.make(CONFIG_MAPS, "guarded", metadata=metadata)
    await asker.delete(CONFIG_MAPS, parent, propagation="Foreground")
    answer = await asker.until("cm/owner", lambda it: len(it.chain) > 1)
    assert chain(answer) == ["ConfigMap/owner", "ConfigMap/guarded"]
    assert answer.chain[1].reason == Reason.PROTECTED
    assert "ConfigMap why/guarded" in answer.verdict
    await asker.do(forced(answer))
    await asker.until_gone(CONFIG_MAPS, "owner")


# Namespaces


async def test_a_terminating_namespace_names_the_remaining_object(asker: Asker) -> None:
    room = await namespaced(asker, "why-kind")
    await asker.make(
        CONFIG_MAPS, "stays", metadata={"namespace": "why-kind", "labels": {DELETE_PROTECTION_LABEL: "Always"}}
    )
    await asker.delete(NAMESPACES, room)
    answer = await asker.until("ns/why-kind", lambda it: chain(it) == ["Namespace/why-kind", "ConfigMap/stays"])
    assert [item.reason for item in answer.chain] == [Reason.HOLDS_OTHERS, Reason.PROTECTED]
    await asker.do(forced(answer))
    await asker.until_gone(NAMESPACES, "why-kind")


async def test_the_command_frees_a_namespace_by_removing_a_finalizer_in_it(asker: Asker) -> None:
    room = await namespaced(asker, "why-inside")
    await asker.make(CONFIG_MAPS, "inside", finalizers=[HOLD], metadata={"namespace": "why-inside"})
    await asker.delete(NAMESPACES, room)
    answer = await asker.until("ns/why-inside", lambda it: bool(it.remedies))
    assert chain(answer) == ["Namespace/why-inside", "ConfigMap/inside"]
    assert [item.reason for item in answer.chain] == [Reason.HOLDS_OTHERS, Reason.FINALIZER]
    await asker.do(forced(answer))
    await asker.until_gone(NAMESPACES, "why-inside")


async def test_an_api_service_that_does_not_answer_blocks_a_namespace(asker: Asker) -> None:
    room = await namespaced(asker, "why-api")
    port = {"port": 443, "targetPort": 9}
    await asker.make(SERVICES, "nobody", spec={"ports": [port], "selector": {"app": "nobody"}})
    await deployment(asker, "nobody", replicas=0)
    await asker.make(
        API_SERVICES,
        "v1.silent.example.dev",
        spec={
            "group": "silent.example.dev",
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": "why", "name": "nobody"},
        },
    )
    try:
        await asker.delete(NAMESPACES, room)
        answer = await asker.until(
            "ns/why-api",
            lambda it: any(item.reason == Reason.API_NOT_SERVED for item in it.chain) and it.remedies != (),
        )
        assert "v1.silent.example.dev does not answer (Service why/nobody)" in answer.chain[0].message
        assert answer.chain[0].actor == "the owner of Service why/nobody"
        assert safe(answer).commands == ("kubectl scale -n why deployments.apps/nobody --replicas=1",)
    finally:
        # Whatever comes of it: while it is there, no namespace goes.
        await asker.do(forced(await asker.ask("ns/why-api")))
    await asker.until_gone(NAMESPACES, "why-api")


async def test_a_dead_conversion_webhook_blocks_a_namespace_and_its_object(asker: Asker) -> None:
    group = "conversion.example.dev"
    old = await converted(asker, group)
    room = await namespaced(asker, "why-conversion")
    await asker.make(old, "one", metadata={"namespace": "why-conversion"})
    try:
        # It can still be read as it is stored.
        alone = await asker.ask("gadgets.conversion.example.dev/one", namespace="why-conversion")
        assert alone.state is AnswerState.DELETABLE
        assert "gadgets.v1alpha1.conversion.example.dev/one" in alone.remedies[0].commands[0]
        await asker.delete(NAMESPACES, room)
        answer = await asker.until(
            "ns/why-conversion", lambda it: any(item.reason == Reason.WEBHOOK_SILENT for item in it.chain)
        )
        [told] = [item for item in answer.chain if item.reason == Reason.WEBHOOK_SILENT]
        assert f"the conversion webhook of CustomResourceDefinition gadgets.{group} ({NOWHERE})" in told.message
    finally:
        await asker.do(forced(await asker.ask("ns/why-conversion")))
    await asker.until_gone(NAMESPACES, "why-conversion")


# Volumes


async def test_the_command_frees_a_claim_by_deleting_its_pod(asker: Asker) -> None:
    await node(asker, "steady")
    made = await asker.make(PERSISTENT_VOLUME_CLAIMS, "used", spec=CLAIM)
    await pod(asker, "user", node="steady", claim="used")
    await asker.delete(PERSISTENT_VOLUME_CLAIMS, made)
    answer = await asker.ask("pvc/used")
    assert chain(answer) == ["PersistentVolumeClaim/used", "Pod/user"]
    assert [item.reason for item in answer.chain] == [Reason.IN_USE, Reason.STANDING]
    assert len(answer.remedies) == 1
    await asker.do(deleting(answer))
    await asker.until_gone(PERSISTENT_VOLUME_CLAIMS, "used")


async def test_the_command_frees_the_claim_of_a_deployment_by_scaling_it_down(asker: Asker) -> None:
    made = await asker.make(PERSISTENT_VOLUME_CLAIMS, "shared", spec=CLAIM)
    await node(asker, "steady")
    await deployment(asker, "reader", replicas=1, node="steady", claim="shared")
    await pods(asker, "reader")
    await asker.delete(PERSISTENT_VOLUME_CLAIMS, made)
    answer = await asker.ask("pvc/shared")
    assert "Deployment why/reader would recreate it" in answer.verdict
    assert safe(answer).commands == ("kubectl scale -n why deployments.apps/reader --replicas=0",)
    await asker.do(safe(answer))
    await asker.until_gone(PERSISTENT_VOLUME_CLAIMS, "shared")


async def test_the_command_frees_a_volume_by_deleting_its_claim(asker: Asker) -> None:
    volume = await asker.make(
        PERSISTENT_VOLUMES,
        "disk",
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": "/nowhere"},
        },
    )
    await asker.make(PERSISTENT_VOLUME_CLAIMS, "bound", spec=CLAIM | {"storageClassName": "", "volumeName": "disk"})

    def bound(it: Object | None) -> bool:
        return bool(it and it["status"].get("phase") == "Bound")

    await object_watch.until(asker.client, PERSISTENT_VOLUMES, "disk", bound, "bound")
    await asker.delete(PERSISTENT_VOLUMES, volume)
    answer = await asker.ask("pv/disk")
    assert chain(answer) == ["PersistentVolume/disk", "PersistentVolumeClaim/bound"]
    assert "its users lose the data on its volume" in deleting(answer).about
    await asker.do(deleting(answer))
    await asker.until_gone(PERSISTENT_VOLUMES, "disk")


# Pods and CRDs


async def test_a_pod_on_a_lost_node_needs_a_forced_deletion(asker: Asker) -> None:
    await node(asker, "lost", ready="Unknown")
    made = await pod(asker, "stranded", node="lost", grace=3600)
    await asker.delete(PODS, made)
    answer = await asker.ask("pod/stranded")
    assert answer.chain[0].reason == Reason.NODE_LOST
    assert "its node lost is not ready" in answer.verdict
    assert answer.since
    assert "the containers keep running there" in forced(answer).about
    await asker.do(forced(answer))
    await asker.until_gone(PODS, "stranded")


async def test_a_crd_waits_for_its_resources(asker: Asker) -> None:
    gadgets = await asker.define("crd.example.dev")
    await asker.make(gadgets, "held", finalizers=[HOLD])
    name = "gadgets.crd.example.dev"
    await asker.delete(CUSTOM_RESOURCE_DEFINITIONS, await asker.client.get(CUSTOM_RESOURCE_DEFINITIONS, name))
    answer = await asker.until(f"crd/{name}", lambda it: len(it.remedies) > 0)
    assert chain(answer) == [f"CustomResourceDefinition/{name}", "Gadget/held"]
    await asker.do(forced(answer))
    await asker.until_gone(CUSTOM_RESOURCE_DEFINITIONS, name)


# Members


async def test_an_object_on_a_member_is_explained_and_freed_through_its_cluster_object(
    here: Plane, asker: Asker
) -> None:
    done = await asker.shell("unwind crds -o yaml | kubectl apply --server-side -f -")
    assert done.returncode == 0, done.stderr
    for name in ("sveltosclusters.lib.projectsveltos.io", "clusters.cluster.karmada.io"):
        await object_watch.until_true(asker.client, CUSTOM_RESOURCE_DEFINITIONS, name, "Established")
    member = here.members["member-1"]
    await by_kubeconfig(asker, member, "edge")
    await by_token(asker, member, "pushed")
    for cluster, told in (("edge", "SveltosCluster why/edge"), ("why/edge", "SveltosCluster why/edge"), ("pushed", "")):
        there = Asker(member)
        await there.delete(CONFIG_MAPS, await there.make(CONFIG_MAPS, "afar", finalizers=[HOLD]))
        shown = await asker.shell(f"unwind why cm/afar --cluster {cluster} -o json")
        assert shown.returncode == 0, shown.stderr
        answer = msgspec.json.decode(shown.stdout, type=Answer)
        assert answer.cluster == (told or "Cluster pushed")
        remedy = forced(answer)
        assert len(remedy.commands) == 2
        await asker.do(remedy)
        await there.until_gone(CONFIG_MAPS, "afar")


async def by_kubeconfig(asker: Asker, member: LocalCluster, name: str) -> None:
    """Have a SveltosCluster stand for a member."""
    content = member.kubeconfig.read_text()
    await asker.make(SECRETS, f"{name}-sveltos-kubeconfig", stringData={"kubeconfig": content})
    await asker.make(SVELTOS_CLUSTERS, name, spec={})


async def by_token(asker: Asker, member: LocalCluster, name: str) -> None:
    """Have a Cluster of Karmada stand for a member, which is reached by a token."""
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    await Asker(member).make(CLUSTER_ROLE_BINDINGS, "afar", subjects=[subject], roleRef=role)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = await member.client.post(SERVICE_ACCOUNTS, "default", "token", request, namespace="default")
    authority = member.connection("any").authority
    assert authority
    data = {"token": token["status"]["token"], "caBundle": authority.decode()}
    secret = {"namespace": "why", "name": name}
    cluster = await asker.make(
        KARMADA_CLUSTERS, name, spec={"syncMode": "Push", "apiEndpoint": member.server, "secretRef": secret}
    )
    owned = owner(cluster) | {"apiVersion": KARMADA_CLUSTERS.api_version, "kind": KARMADA_CLUSTERS.kind}
    await asker.make(SECRETS, name, stringData=data, metadata={"ownerReferences": [owned]})


# As a person calls it


async def test_the_command_prints_the_verdict_the_chain_and_the_remedy(asker: Asker) -> None:
    parent = await asker.make(CONFIG_MAPS, "top")
    await asker.make(CONFIG_MAPS, "bottom", finalizers=[HOLD], metadata={"ownerReferences": [owner(parent)]})
    await asker.delete(CONFIG_MAPS, parent, propagation="Foreground")
    answer = await asker.until("cm/top", lambda it: bool(it.remedies))
    shown = await asker.shell("unwind why ConfigMap/top -n why")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == answer.verdict
    command = forced(answer).commands[0]
    assert f"    {command}" in lines
    assert any(line.startswith("  leaves something behind: ") for line in lines)
    assert "\x1b" not in shown.stdout
    told = await asker.shell("unwind why configmaps/top -n why -o json | python3 -m json.tool")
    assert told.returncode == 0
    assert '"state": "Held"' in told.stdout
    await asker.do(forced(answer))
    await asker.until_gone(CONFIG_MAPS, "top")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("cm/nothing -n why", 1, "ConfigMap why/nothing not found"),
        ("unicorn/one", 1, "kind 'unicorn' not found in this cluster"),
        ("just-a-name", 2, "use KIND/NAME"),
        ("cm/x --cluster nowhere", 1, "cluster 'nowhere' not found"),
    ],
)
async def test_errors_have_other_exit_codes(asker: Asker, arguments: str, code: int, said: str) -> None:
    done = await asker.shell(f"unwind why {arguments}")
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.replace("│", " ").split())


async def test_nothing_of_a_secret_is_printed(asker: Asker) -> None:
    made = await asker.make(SECRETS, "quiet", finalizers=[HOLD], stringData={"password": "s3cr3t-word"})
    await asker.delete(SECRETS, made)
    for form in ("table", "json"):
        shown = await asker.shell(f"unwind why secret/quiet -n why -o {form}")
        assert shown.returncode == 0
        assert HOLD in shown.stdout
        assert "s3cr3t" not in shown.stdout + shown.stderr
        assert made["data"]["password"] not in shown.stdout
    await asker.do(forced(await asker.ask("secret/quiet")))
