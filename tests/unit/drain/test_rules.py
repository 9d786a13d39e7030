"""What a drain takes from policies and from the objects of other steps."""

from __future__ import annotations

from datetime import timedelta

import pytest

from unwind.api.meta import ObjectMeta, ObjectRef, SelectorRequirement
from unwind.api.policies import (
    DrainedResource,
    DrainPhase,
    PolicyDrain,
    PolicySelector,
    TeardownPolicy,
    TeardownPolicySpec,
)
from unwind.companions import policy_merge
from unwind.drain import rules, serving_steps
from unwind.planning.drain_order import conflicts, placed


def policy(name: str, **drain: object) -> TeardownPolicy:
    spec = TeardownPolicySpec(drain=PolicyDrain(**drain))  # type: ignore[arg-type]
    return TeardownPolicy(metadata=ObjectMeta(name=name), spec=spec)


POOLS = DrainedResource(group="karpenter.sh", kind="NodePool", effort="Enforce", phase="Nodes")
RECORDS = DrainedResource(group="dns.example.dev", kind="Record", effort="Try", settle="2m")
ALL = rules.decisions([policy("all", load_balancers="Enforce", volumes="Enforce", resources=(POOLS, RECORDS))])


def ref(kind: str, name: str, group: str = "apps") -> ObjectRef:
    return ObjectRef(group=group, kind=kind, name=name)


@pytest.mark.parametrize(
    ("object", "served"),
    [
        (ref("Deployment", "aws-load-balancer-controller"), {"loadBalancers"}),
        (ref("DaemonSet", "openstack-cloud-controller-manager"), {"loadBalancers"}),
        (ref("Deployment", "external-dns"), {"loadBalancers"}),
        (ref("Deployment", "karpenter"), {"NodePool.karpenter.sh"}),
        (ref("Deployment", "ebs-csi-controller"), {"volumes"}),
        (ref("IngressClass", "anything", "networking.k8s.io"), {"loadBalancers"}),
        (ref("GatewayClass", "anything", "gateway.networking.k8s.io"), {"loadBalancers"}),
        (ref("CSIDriver", "disk.example.dev", "storage.k8s.io"), {"volumes"}),
        (
            ref("CustomResourceDefinition", "records.dns.example.dev", "apiextensions.k8s.io"),
            {"Record.dns.example.dev"},
        ),
        (ref("CustomResourceDefinition", "records.mydns.example.dev", "apiextensions.k8s.io"), set()),
        (ref("Deployment", "shop"), set()),
        (ref("ConfigMap", "external-dns", ""), set()),
    ],
)
def test_a_step_cleans_up_by_its_classes_its_crds_and_the_names_of_its_controllers(
    object: ObjectRef,  # noqa: A002
    served: set[str],
) -> None:
    assert serving_steps.serves([object], ALL.values()) == served


def test_only_steps_that_clean_up_for_something_that_is_drained_are_late() -> None:
    only = rules.decisions([policy("lb", load_balancers="Enforce")])
    drained = [decision for decision in only.values() if decision.drains]
    assert serving_steps.serves([ref("CSIDriver", "disk.example.dev", "storage.k8s.io")], drained) == set()


def test_the_phases_follow_each_other() -> None:
    needs = {name: set(rules.needs_of(decision, ALL.values())) for name, decision in ALL.items()}
    nodes, volumes = {"Drain/NodePool.karpenter.sh"}, {"Drain/volumes"}
    assert needs == {
        "loadBalancers": nodes | volumes,
        "Record.dns.example.dev": nodes | volumes,
        "volumes": nodes,
        "NodePool.karpenter.sh": set(),
    }


def test_the_latest_phase_and_the_longest_settle_count() -> None:
    early = DrainedResource(group="karpenter.sh", kind="NodePool", effort="Try", settle="5m")
    found = rules.decisions([policy("a", resources=(POOLS,)), policy("b", resources=(early,))])
    pools = found["NodePool.karpenter.sh"]
    assert (pools.phase, pools.settle) == (DrainPhase.NODES, timedelta(minutes=5))
    assert (pools.said.enforced_by, pools.said.tried_by) == (("a",), ("b",))


@pytest.mark.parametrize(
    ("finalizers", "found"),
    [
        (["service.kubernetes.io/load-balancer-cleanup"], "service.kubernetes.io/load-balancer-cleanup"),
        (["foregroundDeletion", "ingress.k8s.aws/resources"], "ingress.k8s.aws/resources"),
        (["foregroundDeletion", "unwind.dev/external"], ""),
        (["kubernetes.io/pvc-protection"], ""),
        (None, ""),
    ],
)
def test_only_a_finalizer_of_a_controller_proves_a_cleanup(finalizers: list[str] | None, found: str) -> None:
    assert rules.cleanup_finalizer(finalizers) == found


@pytest.mark.parametrize(
    ("drain", "word"),
    [
        ({"load_balancers": "Enforced"}, "effort of drain loadBalancers"),
        ({"settle": "soon"}, "settle of drain"),
        (
            {"resources": (DrainedResource(group="a.dev", kind="A", effort="Try", phase="Soon"),)},
            "phase of drain A.a.dev",
        ),
        ({"resources": (DrainedResource(group="", kind="Namespace", effort="Enforce"),)}, "built-in kinds"),
        ({"resources": (DrainedResource(group="apps", kind="Deployment", effort="Try"),)}, "built-in kinds"),
    ],
)
def test_values_that_are_not_known_hold(drain: dict[str, object], word: str) -> None:
    [found] = policy_merge.unknown_words(policy("wrong", **drain))
    assert word in found


def test_a_serving_step_with_load_balancers_goes_before_the_others_and_a_contradiction_is_named() -> None:
    needs = {"drain": (), "app": (), "nginx": (), "ccm": ()}
    serving, having = {"nginx": {"lb"}, "ccm": {"lb"}}, {"nginx": {"lb"}}
    found = placed(needs, {"drain"}, serving, having)
    assert found == {"drain": ("ccm", "nginx"), "app": ("drain",), "nginx": ("ccm",), "ccm": ()}
    assert conflicts(needs, serving, having) == []
    [why] = conflicts({**needs, "ccm": ("nginx",)}, serving, having)
    assert why.startswith("ccm cleans up for lb and depends on nginx")


def test_an_object_that_one_policy_excludes_and_another_enforces_holds() -> None:
    keep = PolicySelector(match_labels={"keep": "yes"})
    both = [policy("a", load_balancers="Enforce"), policy("b", load_balancers="Try", exclude=keep)]
    found = rules.excluded(both, rules.decisions(both)["loadBalancers"], {"keep": "yes"})
    assert found
    assert (found.by, found.enforced_by) == (("b",), ("a",))
    assert "enforced by TeardownPolicy a, but excluded by TeardownPolicy b:" in found.conflict
    alone = [policy("a", load_balancers="Enforce", exclude=keep)]
    found = rules.excluded(alone, rules.decisions(alone)["loadBalancers"], {"keep": "yes"})
    assert found
    assert not found.conflict
    assert rules.excluded(alone, rules.decisions(alone)["loadBalancers"], {"keep": "no"}) is None
    # Which objects are kept is not known, so nothing is deleted by mistake.
    typo = PolicySelector(match_expressions=(SelectorRequirement(key="keep", operator="in", values=("yes",)),))
    unclear = [policy("a", load_balancers="Enforce", exclude=typo)]
    assert rules.excluded(unclear, rules.decisions(unclear)["loadBalancers"], {})
    # A policy that does not drain load balancers has no say about them.
    others = [policy("a", load_balancers="Enforce"), policy("b", volumes="Enforce", exclude=keep)]
    assert rules.excluded(others, rules.decisions(others)["loadBalancers"], {"keep": "yes"}) is None
