"""The link of the deleter chain that does not delete protected objects."""

from __future__ import annotations

from typing import Any

import pytest

from unwind import Gone, Kept
from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_PROTECTION_LABEL, SCALE_TO_ZERO_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, DEPLOYMENTS
from unwind.deleters.builtin import BUILTIN
from unwind.deleters.chain_attempt import Failed, Waiting, attempt
from unwind.protection.deleter import ProtectedObject, ProtectionLink, cluster_option
from unwind.protection.rules import Denied, Why, label_of, unprotect_command
from unwind.testing import World, prove_idempotent

MEMBER = ObjectRef(group="cluster.x-k8s.io", version="v1beta2", kind="Cluster", namespace="fleet", name="m", uid="m")


def config(value: str | None = None, **metadata: Any) -> dict[str, Any]:
    labels = {DELETE_PROTECTION_LABEL: value} if value is not None else {}
    written: dict[str, Any] = {"f:metadata": {"f:labels": {f"f:{DELETE_PROTECTION_LABEL}": {}}}}
    fields = [{"manager": "jane", "time": "2026-01-01T00:00:00Z", "fieldsV1": written}]
    metadata = {"name": "it", "namespace": "default", "labels": labels, "managedFields": fields, **metadata}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def deployment(value: str, *, replicas: int) -> dict[str, Any]:
    metadata = {
        "name": "web",
        "namespace": "default",
        "labels": {DELETE_PROTECTION_LABEL: value},
        "annotations": {SCALE_TO_ZERO_ANNOTATION: "true"},
    }
    spec, status = {"replicas": replicas}, {"replicas": replicas, "observedGeneration": 1}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec, "status": status}


def world(obj: dict[str, Any], *, keep: bool = False) -> World:
    link = ProtectionLink(keep=keep, cluster=MEMBER).registration()
    return World(obj, *sorted([link, *BUILTIN], key=lambda it: (it.order, it.name)))


async def entered(it: World) -> Gone | Kept | Waiting | Failed:
    return await attempt(it.enter())


async def test_a_protected_object_is_waited_for_by_name() -> None:
    it = world(config("Always"))
    result = await entered(it)
    assert isinstance(result, Waiting)
    assert result.code == "Protected"
    assert result.reason == (
        f"ConfigMap default/it: blocked by label {DELETE_PROTECTION_LABEL}=Always, set by jane;"
        " to allow its deletion: unwind unprotect configmaps/it -n default --cluster fleet/m"
    )
    assert it.objects.get(CONFIG_MAPS, "it")


async def test_a_removal_that_only_tries_keeps_it() -> None:
    result = await entered(world(config("Always"), keep=True))
    assert isinstance(result, Kept)
    assert (result.reason, result.by) == ("Protected", "field manager jane")


@pytest.mark.parametrize("keep", [False, True])
async def test_an_unknown_value_protects(keep: bool) -> None:
    result = await entered(world(config("alwys"), keep=keep))
    assert isinstance(result, Kept if keep else Waiting)
    assert "UnknownValue" in (getattr(result, "code", ""), getattr(result, "reason", ""))


@pytest.mark.parametrize(
    "obj",
    [
        config(),
        config("Cascading"),
        config("Always", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.dev/hold"]),
        config(
            "Always", ownerReferences=[{"apiVersion": "v1", "kind": "Any", "name": "o", "uid": "o", "controller": True}]
        )
        | {"kind": "Pod"},
    ],
)
async def test_the_rules_of_admission_decide_what_may_go(obj: dict[str, Any]) -> None:
    result = await entered(world(obj))
    assert not (isinstance(result, Waiting) and "blocked by" in result.reason), result


async def test_a_protected_workload_is_not_scaled_down() -> None:
    it = world(deployment("Cascading", replicas=2))
    result = await entered(it)
    assert isinstance(result, Waiting)
    assert "Cascading and replicas 2>0" in result.reason
    found = it.objects.get(DEPLOYMENTS, "web")
    assert found
    assert found["spec"]["replicas"] == 2


async def test_it_continues_when_the_label_is_removed() -> None:
    def unlabel() -> None:
        it.objects.change(CONFIG_MAPS, "it", {"metadata": {"labels": {DELETE_PROTECTION_LABEL: None}}})

    it = world(config("Always"))
    result = await entered(it)
    assert isinstance(result, Waiting)
    unlabel()
    assert isinstance(await entered(it), Gone)


async def test_its_outcome_is_the_same_wherever_its_process_is_killed() -> None:
    await prove_idempotent(lambda: world(config("Always"), keep=True))
    await prove_idempotent(lambda: world(config("Cascading")))


def protected(
    why: Why, message: str, *, kind: str = "ConfigMap", command: str = "unwind unprotect x"
) -> ProtectedObject:
    ref = ObjectRef(version="v1", kind=kind, name="it", uid="u")
    return ProtectedObject(object=ref, denied=Denied(why, message), set_by="", command=command)


def test_only_the_contents_of_namespaces_and_definitions_are_looked_at_again_by_time() -> None:
    assert protected(Why.CASCADING, "", kind="Namespace").by_contents
    assert not protected(Why.ALWAYS, "", kind="Namespace").by_contents
    assert not protected(Why.CASCADING, "", kind="PersistentVolumeClaim").by_contents
    assert protected(Why.CASCADING, "", kind="Namespace").again < protected(Why.ALWAYS, "").again


def test_a_denial_is_told_without_the_prefix_of_admission() -> None:
    said = "forbidden by ResourcesProtectionDeletion for"
    label = DELETE_PROTECTION_LABEL
    assert label_of(Denied(Why.ALWAYS, f"{said} {label}=Always")) == f"label {label}=Always"
    assert label_of(Denied(Why.NOT_KNOWN, f"{said} list pods error: 503")) == f"label {label}: list pods error: 503"


def test_the_command_names_the_member_unless_it_is_the_management_cluster() -> None:
    home = ObjectRef(version="v1", kind="Namespace", name="kube-system", uid="h")
    karmada = ObjectRef(group="cluster.karmada.io", version="v1alpha1", kind="Cluster", name="edge", uid="e")
    assert [cluster_option(ref) for ref in (None, home, karmada, MEMBER)] == ["", "", "edge", "fleet/m"]
    assert unprotect_command("deployments.apps", "shop", "web", cluster="fleet/m") == (
        "unwind unprotect deployments.apps/web -n shop --cluster fleet/m"
    )
    assert unprotect_command("namespaces", "", "shop") == "unwind unprotect namespaces/shop"
