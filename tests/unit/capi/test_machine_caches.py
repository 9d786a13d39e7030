"""Which Machines hold a Cluster."""

from __future__ import annotations

from unwind.api.names import MACHINE_GATE_ANNOTATION, Reason
from unwind.capi.machine_caches import shape_of
from unwind.kube.decoding import Metadata


def machine(name: str, *, armed: bool = True, leaving: bool = False) -> Metadata:
    return Metadata(
        name,
        uid=name,
        resource_version="1",
        deletion_timestamp="2026-01-01T00:00:00Z" if leaving else None,
        annotations={MACHINE_GATE_ANNOTATION: "unwind"} if armed else None,
    )


def test_a_cluster_is_held_if_all_of_its_machines_are_armed_and_it_has_no_pool() -> None:
    found = shape_of([machine("a"), machine("b")], 0)
    assert str(found) == "2/2 Machines armed"
    assert found.fault is None


def test_a_machine_that_was_let_go_of_does_not_count() -> None:
    assert str(shape_of([machine("a"), machine("b", armed=False, leaving=True)], 0)) == "1/1 Machines armed"
    assert str(shape_of([machine("a", leaving=True)], 0)) == "1/1 Machines armed"


def test_a_shape_that_does_not_hold_says_why() -> None:
    faults = {
        Reason.NO_MACHINES: shape_of([], 0),
        Reason.MACHINE_POOLS: shape_of([machine("a")], 2),
        Reason.MACHINES_NOT_ARMED: shape_of([machine("a"), machine("b", armed=False)], 0),
    }
    for reason, shape in faults.items():
        assert shape.fault
        assert shape.fault.reason is reason
    assert str(shape_of([machine("a")], 1).fault) == (
        "1/1 Machines armed; the Cluster has 1 MachinePool, whose infrastructure Cluster API deletes at once: choose"
        " another"
        " gate in the TeardownPolicy"
    )
