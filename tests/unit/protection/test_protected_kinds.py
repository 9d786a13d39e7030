"""What a label does not protect against, in words."""

from __future__ import annotations

import pytest

from unwind.api.annotation_values import DeleteProtection
from unwind.protection.protected_kinds import (
    DEFINITION,
    KINDS,
    NAMESPACE,
    ProtectedKind,
    disk_warning,
    not_against,
    of_any,
    unprotectable,
)

ALWAYS, CASCADING = DeleteProtection.ALWAYS, DeleteProtection.CASCADING


def told(kind: ProtectedKind, word: DeleteProtection = ALWAYS, *owners: str) -> str:
    return "\n".join(not_against(kind, word, owners=owners))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
def test_whoever_may_write_can_take_every_label_away(kind: ProtectedKind) -> None:
    assert "can remove the label policy.kruise.io/delete-protection" in told(kind)


def test_owners_namespaces_and_definitions_are_named_where_there_are_some() -> None:
    by_name = {kind.resource: kind for kind in KINDS}
    replica_set, clone_set = by_name["replicasets.apps"], by_name["clonesets.apps.kruise.io"]
    assert "the deletion of Deployment web, which owns it: Kubernetes' controllers may delete it" in told(
        replica_set, ALWAYS, "Deployment web"
    )
    assert "the deletion of Shop web, which owns it: with foreground deletion" in told(
        by_name["secrets"], ALWAYS, "Shop web"
    )
    assert "which owns it" not in told(replica_set)
    assert "the deletion of its namespace while no manager runs" in told(replica_set)
    assert "the deletion of its namespace" not in told(by_name["persistentvolumes"])
    assert "the deletion of the CRD clonesets.apps.kruise.io" in told(clone_set)
    assert "the deletion of the CRD" not in told(replica_set)


def test_cascading_says_when_it_ends_and_containers_that_they_are_no_guard_of_what_is_in_them() -> None:
    assert "as soon as it has no active Pods and no bound PersistentVolumeClaims" in told(NAMESPACE, CASCADING)
    assert "as soon as it has no custom resources" in told(DEFINITION, CASCADING)
    assert "the deletion of single objects in it" in told(NAMESPACE)
    for kind in KINDS:
        assert ("its deletion as soon as" in told(kind, CASCADING)) is True
        assert "its deletion as soon as" not in told(kind)


def test_what_the_label_would_not_protect_is_said_with_what_to_do_instead() -> None:
    widget = of_any("example.dev", "Widget", plural="widgets", version="v1")
    policy = of_any("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", plural="", version="v1")
    for kind, controller, remedy in (
        (of_any("", "Endpoints", plural="endpoints", version="v1"), "", "protect the object that it belongs to"),
        (policy, "", "restrict its deletion with RBAC"),
        (widget, "Shop web", "protect Shop web instead"),
    ):
        refusal = unprotectable(kind, controller=controller)
        assert refusal
        assert refusal[1].startswith(remedy)
    assert unprotectable(widget) is None
    for kind in KINDS:
        assert unprotectable(kind, controller="Shop web") is None


def test_a_pod_can_be_evicted_all_the_same() -> None:
    assert "evictions" in told(of_any("", "Pod", plural="pods", version="v1"))


@pytest.mark.parametrize(
    ("policy", "phase", "warned"),
    [
        ("Delete", "Bound", True),
        ("Retain", "Bound", False),
        ("Delete", "Available", False),
        ("Recycle", "Bound", False),
    ],
)
def test_a_bound_volume_with_reclaim_policy_delete_is_warned_about(policy: str, phase: str, warned: bool) -> None:
    spec = {"persistentVolumeReclaimPolicy": policy, "claimRef": {"namespace": "shop", "name": "data"}}
    said = disk_warning({"spec": spec, "status": {"phase": phase}})
    assert ("deleting PersistentVolumeClaim shop/data deletes the disk" in said) is warned
    assert disk_warning({}) == ""
