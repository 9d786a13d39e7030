from __future__ import annotations

from unwind.api.meta import ObjectRef
from unwind.api.unwind import Entry, EntryState, LedgerNote
from unwind.planning.blast_radius import AffectedCRD, KindCount, blast_radius


def entry(
    kind: str,
    name: str,
    namespace: str = "",
    *,
    group: str = "",
    resource: str = "",
    state: str = EntryState.CONFIRMED,
    adopted: bool = False,
    kept: bool = False,
    ledger: LedgerNote | None = None,
) -> Entry:
    ref = ObjectRef(group=group, version="v1", kind=kind, namespace=namespace, name=name)
    return Entry(object=ref, resource=resource, state=state, adopted=adopted, kept=kept, ledger=ledger)


def definition(name: str) -> Entry:
    return entry("CustomResourceDefinition", name, group="apiextensions.k8s.io", resource="customresourcedefinitions")


def test_objects_are_counted_by_kind_the_most_frequent_first() -> None:
    radius = blast_radius(
        [entry("Secret", "s", "web"), entry("ConfigMap", "a", "web"), entry("ConfigMap", "b", "db")],
        custom_resources={},
    )
    assert radius.kinds == (
        KindCount(group="", kind="ConfigMap", objects=2),
        KindCount(group="", kind="Secret", objects=1),
    )
    assert (radius.objects, radius.total) == (3, 3)


def test_namespaces_that_go_are_told_apart_from_those_that_lose_something() -> None:
    radius = blast_radius(
        [entry("Namespace", "web"), entry("ConfigMap", "a", "web"), entry("ConfigMap", "b", "kube-system")],
        custom_resources={},
    )
    assert radius.namespaces == ("web",)
    assert radius.within == ("kube-system",)


def test_a_crd_takes_along_the_custom_resources_that_others_made() -> None:
    mine = entry("Widget", "mine", "web", group="example.com", resource="widgets")
    radius = blast_radius([definition("widgets.example.com"), mine], custom_resources={"widgets.example.com": 120})
    assert radius.definitions == (AffectedCRD(name="widgets.example.com", resources=120, along=119),)
    assert (radius.objects, radius.along, radius.total) == (2, 119, 121)


def test_a_crd_that_nobody_counted_is_not_taken_for_an_empty_one() -> None:
    radius = blast_radius([definition("widgets.example.com")], custom_resources={})
    assert radius.definitions == (AffectedCRD(name="widgets.example.com", resources=None, along=None),)
    assert radius.uncounted == ("widgets.example.com",)


def test_custom_resources_of_a_crd_that_stays_do_not_count() -> None:
    assert blast_radius([entry("ConfigMap", "a", "web")], custom_resources={"widgets.example.com": 120}).along == 0


def test_only_services_with_a_load_balancer_are_named() -> None:
    radius = blast_radius(
        [entry("Service", "public", "web"), entry("Service", "inner", "web"), entry("ConfigMap", "public", "web")],
        custom_resources={},
        load_balancers={("web", "public")},
    )
    assert [str(ref) for ref in radius.load_balancers] == ["Service web/public"]


def test_a_knative_service_is_no_load_balancer() -> None:
    knative = entry("Service", "public", "web", group="serving.knative.dev")
    assert blast_radius([knative], custom_resources={}, load_balancers={("web", "public")}).load_balancers == ()


def test_what_was_taken_over_or_is_kept_or_left_stays() -> None:
    radius = blast_radius(
        [
            entry("ConfigMap", "adopted", "web", adopted=True),
            entry("ConfigMap", "kept", "web", kept=True),
            entry("ConfigMap", "left", "web", ledger=LedgerNote(reason="KeptByPolicy", by="unwind")),
            entry("ConfigMap", "goes", "web"),
        ],
        custom_resources={},
    )
    assert (radius.objects, radius.staying) == (1, 3)


def test_what_may_be_there_counts_and_what_was_seen_absent_does_not() -> None:
    radius = blast_radius(
        [
            entry("ConfigMap", "intended", "web", state=EntryState.INTENDED),
            entry("ConfigMap", "unknown", "web", state="Exploded"),
            entry("ConfigMap", "absent", "web", state=EntryState.REMOVED),
        ],
        custom_resources={},
    )
    assert (radius.objects, radius.staying) == (2, 0)
