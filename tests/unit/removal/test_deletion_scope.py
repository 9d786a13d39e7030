"""What goes with an object, what goes along, and what stays."""

from __future__ import annotations

import msgspec

from tests.unit.removal.making import content
from unwind.api.meta import ObjectRef
from unwind.api.names import DELETE_POLICY_ANNOTATION, OWNER_LABEL, SVELTOS_OWNER_ANNOTATION, Reason
from unwind.api.unwind import Entry
from unwind.members.contents import Content
from unwind.preview.member_preview import BoundVolume, CloudResources
from unwind.preview.object_preview import foreseen, planned
from unwind.removal.deletion_scope import DeletionScope, divide


def namespace() -> Content:
    it = content("Namespace", "room")
    resource = msgspec.structs.replace(it.resource, plural="namespaces", namespaced=False)
    return Content(resource, msgspec.structs.replace(it.metadata, namespace=""))


def names(some: tuple[Content, ...]) -> list[str]:
    return [item.metadata.name for item in some]


def staying(blast: DeletionScope) -> dict[str, str]:
    return {told.object.name: told.why for told in blast.staying}


def test_all_that_is_in_a_namespace_goes_and_the_namespace_last() -> None:
    first = [content("ConfigMap", "a"), content("Secret", "b")]
    blast = divide(namespace(), first, first)
    assert names(blast.going) == ["a", "b", "room"]
    assert blast.along == ()


def test_what_belongs_to_something_that_goes_is_left_to_the_garbage_collector() -> None:
    first = [
        content("Pod", "pod", "set"),
        content("ReplicaSet", "set", "web", group="apps"),
        content("Deployment", "web", group="apps"),
    ]
    blast = divide(namespace(), first, first)
    assert names(blast.going) == ["web", "room"]
    assert sorted(names(blast.along)) == ["pod", "set"]


def test_what_another_owns_as_well_stays_with_that_one() -> None:
    target = content("Deployment", "web", group="apps")
    around = [content("ConfigMap", "mine", "web"), content("ConfigMap", "shared", "web", "other")]
    blast = divide(target, [], around)
    assert (names(blast.going), names(blast.along)) == (["web"], ["mine"])
    assert "it is also owned by" in staying(blast)["shared"]


def test_in_a_namespace_what_is_owned_from_outside_is_deleted_by_itself() -> None:
    first = [content("ConfigMap", "summary", "profile-elsewhere")]
    assert names(divide(namespace(), first, first).going) == ["summary", "room"]


def test_things_that_own_each_other_in_a_circle_do_not_wait_for_the_garbage_collector() -> None:
    first = [content("ConfigMap", "a", "b"), content("ConfigMap", "b", "a")]
    blast = divide(namespace(), first, first)
    assert names(blast.going) == ["a", "room"]
    assert names(blast.along) == ["b"]


def test_what_is_said_to_be_kept_stays_with_what_it_owns() -> None:
    kept = content("Deployment", "kept", group="apps", annotations={DELETE_POLICY_ANNOTATION: "skip"})
    first = [kept, content("ReplicaSet", "its", "kept", group="apps"), content("ConfigMap", "c")]
    blast = divide(namespace(), first, first)
    assert names(blast.going) == ["c", "room"]
    assert "its policy is skip" in staying(blast)["kept"]
    assert staying(blast)["its"] == "its owner stays"
    [entry] = blast.kept
    assert (entry.object.name, entry.kept, entry.left) == ("kept", True, True)
    assert entry.ledger
    assert (entry.ledger.reason, entry.ledger.by) == ("KeptByPolicy", f"the annotation {DELETE_POLICY_ANNOTATION}")


def test_what_an_add_on_put_there_stays_and_its_profile_is_named() -> None:
    marks = {f"{SVELTOS_OWNER_ANNOTATION}kind": "ClusterProfile", f"{SVELTOS_OWNER_ANNOTATION}name": "base"}
    first = [content("ConfigMap", "added", labels={OWNER_LABEL: "u-1"}, annotations=marks)]
    assert staying(divide(namespace(), first, first)) == {
        "added": "ClusterProfile base manages it and would deploy it again"
    }


def test_a_word_that_is_not_known_holds_and_so_does_a_target_that_is_to_be_kept() -> None:
    typo = content("ConfigMap", "typo", annotations={DELETE_POLICY_ANNOTATION: "skipp"})
    blast = divide(namespace(), [typo], [typo])
    assert [(told.object.name, "not known" in told.why, told.reason) for told in blast.held] == [
        ("typo", True, Reason.UNKNOWN_VALUE)
    ]
    target = content("ConfigMap", "kept", annotations={DELETE_POLICY_ANNOTATION: "skip"})
    assert [told.object.name for told in divide(target, [], []).held] == ["kept"]
    assert divide(content("ConfigMap", "c"), [], [], namespace={DELETE_POLICY_ANNOTATION: "skip"}).held


def test_what_kubernetes_takes_away_by_itself_is_not_deleted_before_its_service() -> None:
    first = [content("Service", "web"), content("Endpoints", "web-endpoints"), content("Endpoints", "lonely")]
    first[1] = Content(first[1].resource, msgspec.structs.replace(first[1].metadata, name="web"))
    blast = divide(namespace(), first, first)
    assert [item.metadata.uid for item in blast.going] == ["web", "lonely", "room"]


def test_the_order_is_custom_resources_load_balancers_workloads_the_rest_and_the_namespace() -> None:
    first = [
        content("ConfigMap", "c"),
        content("Deployment", "web", group="apps"),
        content("Service", "lb"),
        content("Gadget", "g", group="example.dev"),
    ]
    blast = divide(namespace(), first, first)
    plan, objects = planned(blast, CloudResources(balancers=frozenset({"lb"})))
    assert [step.name for step in plan.steps] == [
        "custom objects",
        "load balancers",
        "workloads",
        "the rest",
        "namespaces",
    ]
    assert [step.wave for step in plan.steps] == [1, 2, 3, 4, 5]
    assert plan.steps[0].needs == ("load balancers",)
    assert [ref.name for ref in objects["the rest"]] == ["c"]


def test_what_is_foreseen_counts_all_and_warns_of_what_stays() -> None:
    kept = content("ConfigMap", "kept", annotations={DELETE_POLICY_ANNOTATION: "skip"})
    release = content("Secret", "sh.helm.release.v1.web.v1", labels={"owner": "helm", "name": "web"})
    first = [kept, content("ConfigMap", "c"), content("ConfigMap", "along", "c"), release]
    blast = divide(namespace(), first, first)
    claim = blast.entries[0].object
    volumes = (BoundVolume(name="pv-1", claim=claim, goes=True), BoundVolume(name="pv-2", claim=claim, goes=False))
    seen = foreseen(blast, CloudResources(volumes=volumes))
    assert seen.radius.objects == 3
    assert any("web is a Helm release" in line for line in seen.warnings)
    assert [told.object.name for told in seen.staying] == ["room", "kept", "pv-2"]
    assert any("Namespace room stays, because" in line for line in seen.warnings)
    assert seen.critical_path == ("the rest",)


def test_claims_that_are_retained_stay_and_are_named_wherever_they_are() -> None:
    claim, stateful_set = content("PersistentVolumeClaim", "data-db-0"), content("StatefulSet", "db", group="apps")
    ref = ObjectRef(version="v1", kind="PersistentVolumeClaim", name="data-db-0", uid=claim.metadata.uid)
    kept = [Entry(object=ref, source="StatefulSet db", kept=True)]
    alone = divide(stateful_set, [], [claim, stateful_set], retained=kept)
    in_namespace = divide(namespace(), [claim, stateful_set], [claim, stateful_set], retained=kept)
    for blast, going in ((alone, ["db"]), (in_namespace, ["db", "room"])):
        assert names(blast.going) == going
        assert "unwind.dev/volumes" in staying(blast)["data-db-0"]
        assert list(blast.retained) == kept
