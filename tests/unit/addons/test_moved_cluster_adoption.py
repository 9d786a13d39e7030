"""Which former owners a Cluster that was moved names."""

from __future__ import annotations

import msgspec

from unwind.addons.moved_cluster_adoption import RecordedOwners, former_owners, recorded, to_record
from unwind.api.meta import ObjectRef
from unwind.api.names import OWNERS_ANNOTATION
from unwind.api.sveltos import ClusterType
from unwind.members.targets import AddonTarget


def cluster(uid: str, said: RecordedOwners | None = None) -> AddonTarget:
    ref = ObjectRef(kind="Cluster", namespace="ns", name="prod", uid=uid)
    annotations = {OWNERS_ANNOTATION: msgspec.json.encode(said).decode()} if said else {}
    return AddonTarget(type=ClusterType.CAPI, ref=ref, secret="", annotations=annotations)


def test_the_owners_of_a_cluster_that_stays_are_not_former() -> None:
    said = to_record(cluster("a"), {"web": "w1"})
    assert former_owners(cluster("a", said), "web") == frozenset()
    assert to_record(cluster("a", said), {"web": "w1"}) == said
    assert to_record(cluster("a", said), {}).former == {}


def test_the_owners_of_a_moved_cluster_are_former_until_it_is_moved_on() -> None:
    at_a = to_record(cluster("a"), {"web": "w1", "db": "d1"})
    assert former_owners(cluster("b", at_a), "web") == {"w1"}
    at_b = to_record(cluster("b", at_a), {"web": "w2"})
    assert former_owners(cluster("b", at_b), "web") == {"w1"}
    assert former_owners(cluster("b", at_b), "db") == {"d1"}
    assert former_owners(cluster("c", at_b), "web") == {"w2", "w1"}
    assert to_record(cluster("b", at_b), {"web": "w2"}) == at_b


def test_a_value_with_anything_but_uids_names_no_owner() -> None:
    # It becomes part of a label selector. Anyone who may patch the Cluster can write it.
    injected = "w1),app in (web"
    for said in (
        RecordedOwners(cluster="a", owners={"web": injected}),
        RecordedOwners(cluster="a", former={"web": ("w1", injected)}),
        RecordedOwners(cluster="a", owners={"web": "w1,w2"}),
        RecordedOwners(cluster="a", owners={"web": "w1\n"}),
    ):
        assert former_owners(cluster("b", said), "web") == frozenset()


def test_a_value_that_cannot_be_read_names_no_owner() -> None:
    for value in ("", "[]", "{", '{"owners": 1}'):
        assert recorded({OWNERS_ANNOTATION: value}) == RecordedOwners()
    assert former_owners(cluster("a"), "web") == frozenset()
