"""What is in a namespace, and what becomes of it."""

from __future__ import annotations

import pytest

from tests.unit.removal.making import content, ref
from unwind.api.names import OWNER_LABEL
from unwind.members.contents import Content, descendants, first_names, made_by_the_server, orphans
from unwind.removal.foreign_content import sort

OF_DEFAULT = {"kubernetes.io/service-account.name": "default"}
OF_ANOTHER = {"kubernetes.io/service-account.name": "another"}


@pytest.mark.parametrize(
    ("it", "is_made_by_the_server"),
    [
        (content("ServiceAccount", "default"), True),
        (content("ServiceAccount", "mine"), False),
        (content("ConfigMap", "kube-root-ca.crt"), True),
        (content("ConfigMap", "default"), False),
        (content("Event", "any"), True),
        (content("Event", "any", group="events.k8s.io"), True),
        (content("Event", "any", group="example.dev"), False),
        (content("ServiceAccount", "default", group="example.dev"), False),
        (content("Secret", "default-token", annotations=OF_DEFAULT), True),
        (content("Secret", "another-token", annotations=OF_ANOTHER), False),
    ],
)
def test_what_kubernetes_puts_into_every_namespace_is_known(it: Content, is_made_by_the_server: bool) -> None:
    assert made_by_the_server(it) is is_made_by_the_server


def test_descendants_are_found_through_others_and_in_circles() -> None:
    replicas = content("ReplicaSet", "rs", "deployment")
    pod = content("Pod", "pod", "rs")
    lonely = content("Pod", "lonely")
    one, other = content("Gadget", "one", "other"), content("Gadget", "other", "one", "pod")
    found = descendants([pod, lonely, replicas, one, other], ["deployment"])
    assert {it.metadata.uid for it in found} == {"rs", "pod", "one", "other"}
    assert descendants([pod, lonely, replicas], ["nobody"]) == []


def test_an_orphan_is_what_belonged_only_to_what_is_nowhere() -> None:
    kinds = {("apps", "ReplicaSet")}
    orphan = content("Pod", "orphan", "gone")
    shared = content("Pod", "shared", "gone", "there")
    there = content("ReplicaSet", "there", group="apps")
    # What is cluster-wide is not among what a namespace holds, so that nobody knows.
    of_a_node = content("Pod", "mirror", "node-1", owner_kind="v1/Node")
    assert orphans([orphan, shared, there, of_a_node, content("ConfigMap", "free")], kinds) == [orphan]


def test_what_belongs_to_something_removed_neither_stays_nor_is_waited_for() -> None:
    removed = {"deployment": ref("Deployment", "deployment", group="apps"), "web": ref("Service", "web")}
    account = {"kubernetes.io/service-account.uid": "deployment"}
    held = [
        content("ReplicaSet", "rs", "deployment", group="apps"),
        content("Pod", "pod", "rs"),
        content("Endpoints", "web", uid="of-the-endpoints"),
        content("Secret", "token", annotations=account),
        content("ConfigMap", "kube-root-ca.crt"),
    ]
    assert sort(held, removed=removed) == sort([], removed={})


def test_what_another_object_owns_as_well_stays_unless_that_one_goes_or_is_known_to_be_gone() -> None:
    removed = {"ours": ref("Gadget", "ours")}
    living = content("Gadget", "living")
    shared = content("ConfigMap", "shared", "ours", "living")
    of_the_shared = content("ConfigMap", "of-the-shared", "shared")
    half_dead = content("ConfigMap", "half-dead", "ours", "gone")
    of_a_node = content("ConfigMap", "of-a-node", "ours", "node-1", owner_kind="v1/Node")
    held = [living, shared, of_the_shared, half_dead, of_a_node]
    found = sort(held, removed=removed, kinds={("apps", "ReplicaSet")})
    assert found.going == ()
    assert found.staying == (living, shared, of_the_shared, of_a_node)
    leaving = content("Gadget", "leaving", deletion_timestamp="2026-01-01T00:00:00Z")
    also = content("ConfigMap", "also", "leaving", "living")
    together = content("ConfigMap", "together", "leaving", "ours")
    found = sort([living, leaving, also, together], removed=removed)
    assert found.going == (leaving, together)
    assert found.staying == (living, also)


def test_what_goes_anyway_is_waited_for_and_what_is_somebodys_stays() -> None:
    beside = content("Deployment", "beside", group="apps", labels={OWNER_LABEL: "other-step"})
    its_set = content("ReplicaSet", "its-set", "beside", group="apps")
    its_pod = content("Pod", "its-pod", "its-set")
    terminating = content("ConfigMap", "terminating", deletion_timestamp="2026-01-01T00:00:00Z")
    orphan = content("Pod", "orphan", "gone")
    theirs = content("ConfigMap", "theirs", labels={OWNER_LABEL: "unrelated"})
    endpoints = content("Endpoints", "theirs")
    held = [beside, its_set, its_pod, terminating, orphan, theirs, endpoints]
    found = sort(held, removed={}, going=["other-step"], kinds={("apps", "ReplicaSet")})
    assert found.going == (beside, its_set, its_pod, terminating, orphan)
    assert found.staying == (theirs, endpoints)


def test_many_are_named_by_the_first_few() -> None:
    many = [content("ConfigMap", f"c-{number}") for number in range(7)]
    told = first_names(many, shown=2)
    assert told == "ConfigMap room/c-0, ConfigMap room/c-1 and 5 more"
