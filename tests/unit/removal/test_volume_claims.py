"""Which claims of a StatefulSet are deleted after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unwind.api.annotation_values import VolumePolicy, volume_policy
from unwind.api.fields import Unknown
from unwind.api.meta import ObjectRef
from unwind.api.names import VOLUMES_ANNOTATION
from unwind.api.unwind import Entry
from unwind.deleters.outcomes import TransientError
from unwind.removal import volume_claims

if TYPE_CHECKING:
    from unwind.kube.client import Object

RETAIN, DELETE = VolumePolicy.RETAIN, VolumePolicy.DELETE


def stateful_set(when_deleted: str | None) -> Object:
    spec: Object = {"selector": {"matchLabels": {"app": "db"}}}
    if when_deleted:
        spec["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": when_deleted, "whenScaled": "Delete"}
    return {"metadata": {"name": "db", "uid": "set"}, "spec": spec}


def claim(*owners: str, labels: dict[str, str] | None = None) -> Object:
    return {
        "metadata": {
            "name": "data-db-0",
            "labels": {"app": "db"} if labels is None else labels,
            "ownerReferences": [{"uid": uid} for uid in owners],
        }
    }


@pytest.mark.parametrize(
    ("it", "when_deleted", "policy", "goes"),
    [
        (claim(), None, RETAIN, False),
        (claim(), "Retain", RETAIN, False),
        (claim("set"), "Retain", RETAIN, False),
        (claim("pod"), "Delete", RETAIN, False),
        (claim(), "Delete", RETAIN, False),
        (claim("set"), "delete", RETAIN, False),
        (claim("set"), "Delete", RETAIN, True),
        (claim(), None, DELETE, True),
        (claim(), "Retain", DELETE, True),
        (claim(labels={}), "Retain", DELETE, False),
        (claim("set", labels={}), "Delete", DELETE, True),
    ],
)
def test_a_claim_goes_only_if_the_set_owns_it_by_its_policy_or_if_it_is_asked_for(
    *, it: Object, when_deleted: str | None, policy: VolumePolicy, goes: bool
) -> None:
    assert volume_claims.goes(it, stateful_set(when_deleted), policy) is goes


def test_the_policy_is_read_from_annotations_and_an_unknown_word_holds() -> None:
    assert volume_policy(None) is volume_policy({}) is volume_policy({VOLUMES_ANNOTATION: "Retain"}) is RETAIN
    assert volume_policy({VOLUMES_ANNOTATION: "Delete"}) is DELETE
    for word in ("delete", "", "true"):
        policy = volume_policy({VOLUMES_ANNOTATION: word})
        assert isinstance(policy, Unknown)
        with pytest.raises(TransientError, match=f"nothing is deleted: annotation {VOLUMES_ANNOTATION}: "):
            volume_claims.known(policy)
    assert volume_claims.known(DELETE) is DELETE


def test_only_a_kept_claim_of_a_set_is_retained() -> None:
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", name="data-db-0")
    assert volume_claims.is_retained(Entry(object=ref, source="StatefulSet db", kept=True))
    assert not volume_claims.is_retained(Entry(object=ref, source="StatefulSet db"))
    assert not volume_claims.is_retained(Entry(object=ref, source="ConfigMap a/b", kept=True))


def kept(namespace: str, name: str, source: str) -> Entry:
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace=namespace, name=name)
    return Entry(object=ref, source=source, kept=True)


def test_a_plan_has_one_line_for_each_stateful_set_that_names_its_claims_and_why_they_stay() -> None:
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace="shop", name="data-db-2")
    lines = volume_claims.retained_warnings(
        [
            kept("shop", "data-db-1", "StatefulSet db"),
            kept("shop", "data-db-0", "StatefulSet db"),
            kept("other", "data-db-0", "StatefulSet db"),
            Entry(object=ref, source="StatefulSet db"),  # it is deleted
            kept("shop", "mine", "ConfigMap a/b"),
        ]
    )
    assert [line.partition(" stays: ")[0] for line in lines] == [
        "PersistentVolumeClaim other/data-db-0",
        "PersistentVolumeClaim shop/data-db-0, PersistentVolumeClaim shop/data-db-1",
    ]
    assert all(VOLUMES_ANNOTATION in line for line in lines)


def test_a_plan_does_not_grow_without_limit_by_the_claims_that_it_names() -> None:
    many = [kept("shop", f"data-db{i}-{j}", f"StatefulSet db{i}") for i in range(200) for j in range(200)]
    lines = volume_claims.retained_warnings(many)
    assert sum(map(len, lines)) < 40_000
    assert " and 180 more stays" in lines[0]
    assert lines[-1] == "claims of 180 more StatefulSets stay"
    assert volume_claims.retained_warnings([]) == []
