"""What a profile says of clusters that Cluster API would take apart without asking."""

from __future__ import annotations

from datetime import UTC, datetime

from unwind.addons import validation
from unwind.addons.gate_conditions import unarmed, unavailable
from unwind.api.fields import Unknown
from unwind.api.meta import Condition, ObjectRef, find
from unwind.api.names import ConditionType, Reason
from unwind.api.sveltos import ClusterType
from unwind.members.targets import AddonTarget
from unwind.teardown.deletion_gate import GateFault

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEFT_OUT = GateFault(Reason.NAMESPACE_NOT_SELECTED, "it is left out")
GONE = GateFault(Reason.NOT_REGISTERED, "there is none")


def cluster(
    name: str, namespace: str = "a", type_: ClusterType = ClusterType.CAPI, *, has_class: bool = True
) -> AddonTarget:
    ref = ObjectRef(kind="Cluster", namespace=namespace, name=name, uid=name)
    return AddonTarget(type=type_, ref=ref, secret="", has_class=has_class)


def faults(namespace: str) -> GateFault | None:
    return {"a": LEFT_OUT, "b": GONE}.get(namespace)


def test_the_first_cluster_is_named_for_each_reason_whatever_order_they_come_in() -> None:
    clusters = [cluster("z"), cluster("y", "b"), cluster("x"), cluster("w", "armed")]
    said = unarmed(clusters, faults)
    assert said == unarmed(clusters[::-1], faults)
    assert said == GateFault(
        Reason.NAMESPACE_NOT_SELECTED,
        "Cluster API does not wait for the removal from a/x and 1 more: it is left out; "
        "Cluster API does not wait for the removal from b/y: there is none",
    )


def test_nothing_is_said_of_clusters_about_which_nobody_is_ever_asked() -> None:
    assert unarmed([cluster("x", has_class=False), cluster("y", type_=ClusterType.SVELTOS)], faults) is None
    assert unarmed([cluster("x", "armed")], faults) is None
    assert unarmed([], faults) is None


def test_clusters_that_no_hook_is_called_for_are_named_by_reason() -> None:
    plain, registered = cluster("x", has_class=False), cluster("y", type_=ClusterType.SVELTOS, has_class=False)
    assert unavailable([cluster("z")]) is None
    assert unavailable([plain, cluster("w", has_class=False), cluster("z")]) == GateFault(
        Reason.NO_CLUSTER_CLASS,
        "the deletion of a/w and 1 more does not wait for the removal: "
        "Cluster API calls no hooks for a Cluster without a ClusterClass; choose a gate for it in a TeardownPolicy",
    )
    both = unavailable([plain, registered])
    assert both == unavailable([registered, plain])
    assert both
    assert "a/x" in both.message
    assert "the deletion of a/y does not wait for the removal: deleting a SveltosCluster" in both.message


def conditions(before: tuple[Condition, ...], said: GateFault | Unknown | None) -> tuple[Condition, ...]:
    return validation.profile_conditions(
        before, None, (), unarmed=said, served=True, reason=Reason.UNKNOWN_VALUE, generation=1, now=NOW
    )


def test_the_condition_comes_and_goes_and_stays_while_nothing_is_known() -> None:
    armed = conditions((), None)
    assert find(armed, ConditionType.GATE_NOT_ARMED) is None
    said = conditions(armed, GONE)
    found = find(said, ConditionType.GATE_NOT_ARMED)
    assert found
    assert (found.status, found.reason, found.message) == ("True", "NotRegistered", "there is none")
    assert conditions(said, Unknown("?")) is said
    assert conditions(armed, Unknown("?")) is armed
    assert find(conditions(said, None), ConditionType.GATE_NOT_ARMED) is None
