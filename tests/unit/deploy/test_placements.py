"""Which objects the sources make."""

from __future__ import annotations

from typing import Any

from unwind.api.resources import CLUSTER_ROLES, CONFIG_MAPS, CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Resource
from unwind.api.sveltos import CLUSTER_SUMMARIES
from unwind.api.unwind import TEARDOWNS, EntryState
from unwind.deploy.manifest_sources import Manifest, ManifestSource
from unwind.deploy.placements import implied, inventory_key, place, stages

SERVED = [CONFIG_MAPS, NAMESPACES, CLUSTER_ROLES, CUSTOM_RESOURCE_DEFINITIONS]


def manifest(name: str, *, namespace: str = "", resource: Resource = CONFIG_MAPS, **more: Any) -> Manifest:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return Manifest(
        {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, **more}, f"document {name}"
    )


def source(*manifests: Manifest, order: int = 0, tier: int = 100) -> ManifestSource:
    return ManifestSource(
        kind="ConfigMap", namespace="fleet", name=f"s{order}", order=order, tier=tier, manifests=manifests
    )


def test_an_object_without_a_namespace_goes_to_default() -> None:
    [one] = place([source(manifest("a"))], SERVED).objects.values()
    assert one.ref.namespace == one.body["metadata"]["namespace"] == "default"


def test_a_namespace_on_what_has_none_is_dropped() -> None:
    [one] = place([source(manifest("a", namespace="b", resource=CLUSTER_ROLES))], SERVED).objects.values()
    assert (one.ref.namespace, one.body["metadata"]) == ("", {"name": "a"})


def test_a_kind_that_is_not_served_is_told() -> None:
    [one] = place([source(manifest("a"))], []).misplaced
    assert one.unserved
    assert one.why == "the cluster does not serve ConfigMap of v1 (document a); install its CRD there"


def test_a_kind_that_the_sources_define_is_known() -> None:
    spec = {
        "group": "example.dev",
        "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": True}, {"name": "v0", "served": False}],
    }
    definition = manifest("things.example.dev", resource=CUSTOM_RESOURCE_DEFINITIONS, spec=spec)
    things = [Resource("example.dev", version, "things", "Thing", namespaced=False) for version in ("v1", "v0")]
    found = place([source(definition, *(manifest(item.version, resource=item) for item in things))], SERVED)
    assert [item.ref.name for item in found.objects.values()] == ["things.example.dev", "v1"]
    assert [item.ref.name for item in found.misplaced] == ["v0"]


def test_a_definition_that_is_broken_is_left_to_the_api_server() -> None:
    broken = manifest("a", resource=CUSTOM_RESOURCE_DEFINITIONS, spec={"versions": "all"})
    assert len(place([source(broken)], SERVED).objects) == 1


def test_what_is_written_twice_is_an_error_that_names_both_places_and_neither_is_deployed() -> None:
    found = place([source(manifest("a", namespace="default")), source(manifest("a"), manifest("b"), order=1)], SERVED)
    [one] = found.misplaced
    places = "in ConfigMap fleet/s0, document a, and in ConfigMap fleet/s1, document a"
    assert one.why == f"defined twice: {places}"
    assert [item.ref.name for item in found.objects.values()] == ["b"]


def test_of_two_sources_with_the_same_object_the_lower_tier_wins() -> None:
    for tiers in ((100, 50), (50, 100)):
        found = place([source(manifest("a"), order=n, tier=tier) for n, tier in enumerate(tiers)], SERVED)
        assert found.misplaced == []
        assert [item.source.tier for item in found.objects.values()] == [50]


def test_what_may_only_be_in_one_namespace_is_kept_there() -> None:
    inside, outside = manifest("a", namespace="mine"), manifest("b", namespace="theirs")
    role = manifest("c", resource=CLUSTER_ROLES)
    found = place([source(inside, outside, role)], SERVED, within="mine")
    assert [item.ref.name for item in found.objects.values()] == ["a"]
    assert [item.ref.name for item in found.misplaced] == ["b", "c"]


def test_namespaces_that_are_needed_are_implied_once() -> None:
    manifests = [manifest(name, namespace=f"n-{name}") for name in "abc"]
    more = [manifest("d", namespace="n-a"), manifest("n-b", resource=NAMESPACES)]
    placement = place([source(*manifests, *more)], SERVED)
    [made] = implied(placement, ["n-c"]).values()
    assert (made.ref.kind, made.ref.name, made.implied) == ("Namespace", "n-a", True)


def test_namespaces_go_first_then_definitions_then_source_by_source() -> None:
    one = source(manifest("late"), manifest("ns", resource=NAMESPACES), order=1)
    two = source(manifest("early"), manifest("crd", resource=CUSTOM_RESOURCE_DEFINITIONS), manifest("too"))
    found = [[it.ref.name for it in stage] for stage in stages(place([one, two], SERVED).objects.values())]
    assert found == [["ns"], ["crd"], ["early", "too"], ["late"]]


def test_keys_are_short_the_same_each_time_and_tell_objects_apart() -> None:
    key = inventory_key("apps", "Deployment", "web", "a")
    assert key == inventory_key("apps", "Deployment", "web", "a")
    assert len(key) == 24
    assert (
        len({inventory_key(*parts) for parts in (("", "A", "b", "c"), ("", "A", "c", "b"), ("A", "", "b", "c"))}) == 3
    )


def test_an_entry_says_where_an_object_came_from() -> None:
    [one] = place([source(manifest("a"), order=3)], SERVED).objects.values()
    entry = one.entry(EntryState.CONFIRMED, uid="u")
    assert (entry.object.uid, entry.source, entry.order, entry.resource) == ("u", "ConfigMap fleet/s3", 3, "configmaps")


def test_nothing_of_unwind_is_put_on_the_management_cluster() -> None:
    found = place(
        [
            source(
                manifest("ours", namespace="unwind-system"),
                manifest("unwind-system", resource=NAMESPACES),
                manifest("role", resource=CLUSTER_ROLES),
                manifest("forged", resource=TEARDOWNS),
                manifest("summary", namespace="fleet", resource=CLUSTER_SUMMARIES),
                manifest("theirs", namespace="fleet"),
            )
        ],
        [*SERVED, TEARDOWNS, CLUSTER_SUMMARIES],
        reserved="unwind-system",
    )
    assert [item.ref.name for item in found.objects.values()] == ["theirs"]
    assert {item.why for item in found.misplaced} == {
        "a profile may not deploy objects of Unwind to the management cluster"
    }


def test_on_a_member_all_of_them_are_ordinary_objects() -> None:
    sources = [source(manifest("role", resource=CLUSTER_ROLES), manifest("ours", namespace="unwind-system"))]
    assert len(place(sources, SERVED).objects) == 2
