"""What blocks an object, and who must act."""

from __future__ import annotations

import datetime as dt

import pytest

from unwind.api.meta import Condition, ObjectRef
from unwind.api.names import Finalizer
from unwind.api.unwind import Blocker
from unwind.why.blocker_causes import blockers, cause
from unwind.why.facts import ControllerWorkload, ObjectFacts, StepWait, object_facts, workload
from unwind.why.finalizers import serving

NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
EARLIER = dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC)
GADGET = ObjectRef(group="example.dev", version="v1", kind="Gadget", namespace="room", name="one", uid="u-1")
SPACE = ObjectRef(version="v1", kind="Namespace", name="room", uid="u-2")
POD = ObjectRef(version="v1", kind="Pod", namespace="room", name="web-1", uid="u-3")
OPERATOR = ObjectRef(group="apps", version="v1", kind="Deployment", namespace="room", name="example-operator", uid="o")


def held(*finalizers: str) -> ObjectFacts:
    return ObjectFacts(deleted_at=EARLIER, finalizers=finalizers)


def told(ref: ObjectRef = GADGET) -> StepWait:
    return StepWait(object=ref, message=f"{ref} waits")


def operator(
    name: str = "example-operator", *, running: bool = True, domains: tuple[str, ...] = ()
) -> ControllerWorkload:
    ref = ObjectRef(group="apps", version="v1", kind="Deployment", namespace="room", name=name, uid=name)
    return ControllerWorkload(object=ref, running=running, domains=domains)


@pytest.mark.parametrize(
    ("finalizer", "reason", "actor"),
    [
        ("foregroundDeletion", "OwnsOthers", "Kubernetes (garbage collector)"),
        ("orphan", "OwnsOthers", "Kubernetes (garbage collector)"),
        ("kubernetes.io/pvc-protection", "InUse", "the owner of the Pods that use it"),
        ("kubernetes.io/pv-protection", "InUse", "the owner of its PersistentVolumeClaim"),
        ("service.kubernetes.io/load-balancer-cleanup", "Finalizer", "the cloud controller manager of the cluster"),
        ("external-provisioner.volume.kubernetes.io/finalizer", "Finalizer", "the CSI driver of the volume"),
        ("external-attacher/csi-example-dev", "Finalizer", "the CSI driver of the volume"),
        ("customresourcecleanup.apiextensions.k8s.io", "HoldsOthers", "Kubernetes (API server)"),
        ("kubernetes", "HoldsOthers", "Kubernetes (namespace controller)"),
        *((finalizer, "Finalizer", "unwind") for finalizer in Finalizer),
        ("unwind.dev/of-a-later-version", "Finalizer", "unwind"),
        ("clusterprofilefinalizer.projectsveltos.io", "Finalizer", "Sveltos"),
        ("profilefinalizer.projectsveltos.io", "Finalizer", "Sveltos"),
        ("clustersummaryfinalizer.projectsveltos.io", "Finalizer", "Sveltos"),
        ("anything.projectsveltos.io", "Finalizer", "Sveltos"),
        ("karmada.io/cluster-controller", "Finalizer", "Karmada"),
        ("karmada.io/execution-controller", "Finalizer", "Karmada"),
        ("cluster.cluster.x-k8s.io", "Finalizer", "Cluster API"),
        ("machinedeployment.topology.cluster.x-k8s.io", "Finalizer", "Cluster API"),
        ("serviceoperator.azure.com/finalizer", "Finalizer", "Azure Service Operator"),
        ("example.dev/hold", "Finalizer", "the controller of example.dev"),
        ("finalizer.example.dev", "Finalizer", "the controller of finalizer.example.dev"),
        ("notkarmada.io/x", "Finalizer", "the controller of notkarmada.io"),
    ],
)
def test_each_finalizer_has_somebody_who_serves_it(finalizer: str, reason: str, actor: str) -> None:
    found = cause(told(), held(finalizer))
    assert (found.reason, found.actor) == (reason, actor)
    assert found.message.startswith(f"Gadget room/one: blocked by finalizer {finalizer} (")


@pytest.mark.parametrize(
    ("finalizer", "workloads", "reason", "actor"),
    [
        ("example.dev/hold", [operator()], "Finalizer", "Deployment room/example-operator"),
        (
            "example.dev/hold",
            [operator(running=False)],
            "FinalizerNotServed",
            "the owner of Deployment room/example-operator",
        ),
        # By the API groups of its custom resources.
        ("gadgets.acme.dev/x", [operator("manager", domains=("acme.dev",))], "Finalizer", "Deployment room/manager"),
        ("acme.dev/x", [operator("manager", domains=("gadgets.acme.dev",))], "Finalizer", "Deployment room/manager"),
        ("acme.dev/x", [operator("manager", domains=("notacme.dev",))], "Finalizer", "the controller of acme.dev"),
        # A running one is preferred.
        (
            "example.dev/hold",
            [operator(running=False), operator("example")],
            "Finalizer",
            "Deployment room/example",
        ),
        # Known to belong to another system, whatever runs.
        ("karmada.io/cluster-controller", [operator("karmada", running=False)], "Finalizer", "Karmada"),
    ],
)
def test_whether_the_operator_runs_that_a_finalizer_waits_for(
    finalizer: str, workloads: list[ControllerWorkload], reason: str, actor: str
) -> None:
    found = cause(told(), held(finalizer), workloads)
    assert (found.reason, found.actor) == (reason, actor)


@pytest.mark.parametrize(
    ("finalizer", "name", "fits"),
    [
        ("acme.cert-manager.io", "cert-manager", True),
        ("acme.cert-manager.io/finalizer", "cert-manager-webhook", True),
        ("finalizer.example.dev", "finalizer-checker", False),
        ("example.dev/x", "exampleoperator", False),
        ("foo.dev/x", "foo", False),
        ("controller.io/x", "controller-manager", False),
    ],
)
def test_an_operator_is_known_by_the_domain_of_the_finalizer(finalizer: str, name: str, fits: bool) -> None:
    assert (serving(finalizer, [operator(name)]) is not None) is fits


def condition(type_: str, message: str, status: str = "True") -> Condition:
    return Condition(type=type_, status=status, message=message)


CONTENT = (
    "Some resources are remaining: gadgets.example.dev has 1 resource instances, configmaps. has 2 resource instances"
)
FINALIZERS = "Some content in the namespace has finalizers remaining: example.dev/hold in 2 resource instances"
DISCOVERY = "Discovery failed for some groups, 1 failing: metrics.k8s.io/v1beta1: stale GroupVersion discovery"


@pytest.mark.parametrize(
    ("conditions", "reason", "says", "actor"),
    [
        ([], "HoldsOthers", "waiting for its contents to be deleted", "Kubernetes (namespace controller)"),
        (
            [condition("NamespaceDeletionDiscoveryFailure", DISCOVERY)],
            "ApiNotServed",
            DISCOVERY,
            "the owner of that API server or its APIService",
        ),
        (
            [condition("NamespaceContentRemaining", CONTENT), condition("NamespaceFinalizersRemaining", FINALIZERS)],
            "Finalizer",
            "an object in Namespace room: blocked by finalizer example.dev/hold",
            "the controller of example.dev",
        ),
        (
            [condition("NamespaceContentRemaining", CONTENT)],
            "HoldsOthers",
            "Namespace room still contains configmaps, gadgets.example.dev",
            "Kubernetes (namespace controller)",
        ),
        (
            [condition("NamespaceDeletionContentFailure", "refused by x")],
            "HoldsOthers",
            "Namespace room: an object in it cannot be deleted: refused by x",
            "the owner of the webhook or policy that denies it",
        ),
        (
            [condition("NamespaceDeletionDiscoveryFailure", "", "False"), condition("Other", "hello")],
            "HoldsOthers",
            "waiting for its contents to be deleted",
            "Kubernetes (namespace controller)",
        ),
    ],
)
def test_a_namespace_says_itself_what_it_waits_for(
    conditions: list[Condition], reason: str, says: str, actor: str
) -> None:
    facts = ObjectFacts(deleted_at=EARLIER, finalizers=("kubernetes",), conditions=tuple(conditions))
    found = cause(told(SPACE), facts)
    assert (found.reason, found.actor) == (reason, actor)
    assert says in found.message


def test_the_counts_in_a_namespaces_words_do_not_flap() -> None:
    def of(count: int) -> str:
        said = condition("NamespaceFinalizersRemaining", FINALIZERS.replace("2", str(count)))
        return cause(told(SPACE), ObjectFacts(deleted_at=NOW, finalizers=("kubernetes",), conditions=(said,))).message

    assert of(2) == of(17)


def test_of_several_finalizers_the_one_that_a_person_must_know_comes_first() -> None:
    found = cause(told(), held("foregroundDeletion", "example.dev/hold"), [operator(running=False)])
    assert found.reason == "FinalizerNotServed"
    assert found.message == (
        "Gadget room/one: blocked by finalizer example.dev/hold (its controller seems to be Deployment "
        "room/example-operator, which is not running) (also: finalizer foregroundDeletion)"
    )


def test_a_finalizer_that_nothing_serves_comes_before_one_that_an_operator_works_on() -> None:
    finalizers = ("example.dev/hold", "backup.other.dev/last-backup")
    for order in (finalizers, tuple(reversed(finalizers))):
        found = cause(told(), held(*order), [operator(running=True)])
        assert found.actor == "the controller of backup.other.dev"
        assert found.message == (
            "Gadget room/one: blocked by finalizer backup.other.dev/last-backup (no controller found)"
            " (also: finalizer example.dev/hold)"
        )


def test_a_blocker_that_needs_a_person_comes_first() -> None:
    refs = [ObjectRef(version="v1", kind="ConfigMap", namespace="a", name=name, uid=name) for name in ("1", "2", "3")]
    seen = {refs[0]: held(), refs[1]: held("example.dev/hold"), refs[2]: held("backup.other.dev/last-backup")}
    found = blockers([told(ref) for ref in refs], seen=seen, workloads=[operator(running=True)], now=NOW)
    assert [item.object.name for item in found] == ["3", "2", "1"]


def test_a_cluster_that_does_not_answer_comes_before_what_was_known_of_its_objects() -> None:
    cluster = ObjectRef(kind="Cluster", namespace="fleet", name="prod", uid="prod")
    away = StepWait(object=cluster, message="no answer", failed=True, reason="Unreachable")
    held_up = ObjectRef(version="v1", kind="ConfigMap", namespace="a", name="1", uid="1")
    seen = {held_up: held("backup.other.dev/last-backup")}
    found = blockers([told(held_up), away], seen=seen, now=NOW)
    assert [item.reason for item in found] == ["Unreachable", "Finalizer"]


@pytest.mark.parametrize(
    ("wait", "facts", "reason", "message", "actor"),
    [
        (told(), None, "Deleting", "Gadget room/one waits", ""),
        (told(), ObjectFacts(), "Deleting", "Gadget room/one waits", "unwind"),
        (told(), held(), "Deleting", "Gadget room/one waits", "Kubernetes (API server)"),
        (told(POD), held(), "Deleting", "Pod room/web-1 is being stopped", "the kubelet of its node"),
        (
            StepWait(object=GADGET, message="no answer", failed=True, reason="Unreachable"),
            held("example.dev/hold"),
            "Unreachable",
            "no answer",
            "the administrator of the member cluster",
        ),
        (
            StepWait(object=GADGET, message="'Manage' is not known", failed=True, reason="UnknownValue"),
            None,
            "UnknownValue",
            "'Manage' is not known",
            "the author of that value",
        ),
        (
            StepWait(object=GADGET, message="denied", failed=True, reason="ApiError"),
            None,
            "ApiError",
            "denied",
            "the owner of the object; Unwind retries",
        ),
    ],
)
def test_without_a_finalizer_it_is_told_what_is_known(
    wait: StepWait, facts: ObjectFacts | None, reason: str, message: str, actor: str
) -> None:
    found = cause(wait, facts)
    assert (found.reason, found.message, found.actor) == (reason, message, actor)


def test_blockers_come_in_an_order_that_stays_and_the_first_of_them_only() -> None:
    refs = [
        ObjectRef(version="v1", kind=kind, namespace=space, name=name, uid=f"{space}{kind}{name}")
        for space in ("b", "a")
        for kind in ("Pod", "ConfigMap")
        for name in ("2", "1")
    ]
    found = blockers([told(ref) for ref in refs], seen={}, now=NOW)
    assert [(item.object.namespace, item.object.kind, item.object.name) for item in found] == sorted(
        (ref.namespace, ref.kind, ref.name) for ref in refs
    )
    assert blockers([told(ref) for ref in reversed(refs)], seen={}, now=NOW) == found
    assert blockers([told(ref) for ref in refs], seen={}, now=NOW, shown=3) == found[:3]


def test_since_is_when_its_deletion_was_asked_for_or_when_it_was_first_told_of() -> None:
    [by_deletion] = blockers([told()], seen={GADGET: held()}, now=NOW)
    assert by_deletion.since == EARLIER
    [first] = blockers([told()], seen={}, now=EARLIER)
    [again] = blockers([told()], seen={}, before=[first], now=NOW)
    assert again.since == EARLIER
    [of_another_step] = blockers([StepWait(object=GADGET, message="", step="b")], seen={}, before=[first], now=NOW)
    assert of_another_step == Blocker(object=GADGET, step="b", reason="Deleting", since=NOW)


def test_facts_are_read_from_objects_of_any_kind() -> None:
    namespace = {
        "kind": "Namespace",
        "metadata": {"name": "room", "deletionTimestamp": "2026-01-01T10:00:00Z", "finalizers": ["example.dev/x"]},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"conditions": [{"type": "NamespaceContentRemaining", "status": "True", "message": "some"}]},
    }
    found = object_facts(namespace)
    assert found.deleted_at == EARLIER
    assert found.finalizers == ("example.dev/x", "kubernetes")
    assert [item.type for item in found.conditions] == ["NamespaceContentRemaining"]
    odd = {"kind": "Gadget", "metadata": {}, "spec": {"finalizers": ["its-own"]}, "status": {"conditions": [1]}}
    assert object_facts(odd) == ObjectFacts()
    assert object_facts({"kind": "Gadget", "spec": "text", "status": "text"}) == ObjectFacts()


@pytest.mark.parametrize(
    ("obj", "running"),
    [
        (None, False),
        ({"status": {}}, False),
        ({"status": {"readyReplicas": 0}}, False),
        ({"status": {"readyReplicas": 2}}, True),
        ({"status": {"numberReady": 1}}, True),
    ],
)
def test_a_workload_runs_if_one_of_its_pods_is_ready(obj: dict[str, object] | None, running: bool) -> None:
    assert workload(OPERATOR, obj).running is running


def test_a_protected_object_is_for_the_user_who_protected_it_and_comes_first() -> None:
    waits = [told(POD), StepWait(object=GADGET, message="blocked by label", reason="Protected")]
    first, _ = blockers(waits, seen={}, now=NOW)
    assert (first.object, first.reason, first.actor) == (GADGET, "Protected", "the user who protected it")
    assert first.message == "blocked by label"
