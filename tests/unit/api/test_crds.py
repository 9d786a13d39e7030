"""CRD schemas are generated from the API types."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import pytest
import yaml

from unwind.api import sveltos, unwind
from unwind.api.crds import DEFINITIONS, PRESERVE, KindDefinition, api_groups, root_schema, schema_of
from unwind.api.fields import Model, Word, doc, list_map
from unwind.api.meta import Condition
from unwind.cli import console
from unwind.install.manifests import crds

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, Any]


class Colour(Word):
    RED = "Red"
    BLUE = "Blue"


class Inner(Model, frozen=True, kw_only=True):
    when: datetime | None = None


class Outer(Model, frozen=True, kw_only=True):
    """Something."""

    some_name: Annotated[str, doc("The name.", required=True, minLength=1)] = ""
    colour: Annotated[str | None, doc("The colour.", choice=Colour, default="Red")] = None
    share: int | str | None = None
    inner: Inner = Inner()
    many: Annotated[tuple[Condition, ...], doc("All of them.", **list_map("type"))] = ()
    words: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it
    anything: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it


def test_types_documents_and_limits_become_a_structural_schema() -> None:
    schema = schema_of(Outer, keep_unknown=False)
    properties = schema["properties"]
    assert properties["someName"] == {"description": "The name.", "type": "string", "minLength": 1}
    assert properties["colour"] == {
        "description": "The colour.",
        "type": "string",
        "enum": ["Red", "Blue"],
        "default": "Red",
    }
    assert properties["share"] == {"x-kubernetes-int-or-string": True}
    assert properties["inner"]["properties"]["when"] == {"type": "string", "format": "date-time"}
    assert properties["many"]["x-kubernetes-list-map-keys"] == ["type"]
    assert properties["words"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert properties["anything"] == {"type": "object", PRESERVE: True}
    assert schema["required"] == ["someName"]
    assert PRESERVE not in schema


class Brief(Model, frozen=True, kw_only=True):
    """Many of something."""

    all: Annotated[dict[str, Outer], doc("All of them.", brief=True, maxProperties=3)] = {}  # noqa: RUF012


def test_the_crd_has_only_the_required_fields_of_a_brief_map_and_the_documentation_has_all() -> None:
    found = schema_of(Brief, keep_unknown=False)["properties"]["all"]
    one = found["additionalProperties"]
    assert (list(one["properties"]), one["required"], one[PRESERVE]) == (["someName"], ["someName"], True)
    assert (found["description"], found["maxProperties"]) == ("All of them.", 3)
    whole = schema_of(Brief, keep_unknown=False, complete=True)["properties"]["all"]["additionalProperties"]
    assert whole == schema_of(Outer, keep_unknown=False)


def test_what_others_may_have_written_is_kept_at_every_level() -> None:
    schema = schema_of(Outer, keep_unknown=True)
    assert schema[PRESERVE]
    assert schema["properties"]["inner"][PRESERVE]
    assert schema["properties"]["many"]["items"][PRESERVE]


def test_the_api_servers_own_parts_are_left_to_it() -> None:
    schema = root_schema(Outer, keep_unknown=True, rules=[])
    assert schema["description"] == "Something."
    assert schema["properties"]["metadata"] == {"type": "object"}
    assert PRESERVE not in schema


def test_a_type_that_has_no_schema_is_an_error_and_not_a_hole() -> None:
    class Odd(Model, frozen=True, kw_only=True):
        number: float = 0.0

    with pytest.raises(TypeError, match="float"):
        schema_of(Odd, keep_unknown=False)


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def schema_in(definition: KindDefinition) -> Schema:
    crd = definition.custom_resource_definition()
    schema: Schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda it: it.name)
def test_every_field_is_explained_and_every_default_is_allowed(definition: KindDefinition) -> None:
    root = schema_in(definition)
    for path, schema in nodes(root):
        for name, child in schema.get("properties", {}).items():
            own = path == "" and name in ("apiVersion", "kind", "metadata")
            assert own or path == ".metadata" or child.get("description"), f"{path}.{name} says nothing"
            assert "default" not in child or child["default"] in child.get("enum", [child["default"]])
        assert set(schema.get("required", [])) <= set(schema.get("properties", []))


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda it: it.name)
def test_no_level_of_another_systems_kind_is_pruned(definition: KindDefinition) -> None:
    pruned = [
        path
        for path, schema in nodes(schema_in(definition))
        if schema.get("properties") and not schema.get(PRESERVE) and path not in ("", ".metadata")
    ]
    assert (pruned == []) is definition.foreign


def test_the_words_of_the_proposals_are_in_the_crds() -> None:
    by_name = {definition.name: schema_in(definition) for definition in DEFINITIONS}
    spec = by_name["clusterprofiles.config.projectsveltos.io"]["properties"]["spec"]["properties"]
    assert spec["clusterDeletionBehavior"]["enum"] == ["LeavePolicies", "RemovePolicies", "EnforceRemovePolicies"]
    assert spec["clusterDeletionBehavior"]["default"] == "RemovePolicies"
    assert spec["stopMatchingBehavior"]["enum"] == ["WithdrawPolicies", "RemovePolicies", "LeavePolicies"]
    assert spec["stopMatchingBehavior"]["default"] == "WithdrawPolicies"
    member = by_name["clusters.cluster.karmada.io"]["properties"]["spec"]["properties"]
    assert member["removeStrategy"]["enum"] == ["Needless", "Required"]
    assert member["removeStrategy"]["default"] == "Needless"


def test_cluster_apis_kinds_are_never_ours() -> None:
    assert not [group for group in api_groups() if group.endswith("cluster.x-k8s.io")]


def test_summaries_carry_the_whole_spec_of_their_profile() -> None:
    by_resource = {definition.resource: schema_in(definition) for definition in DEFINITIONS}
    profile = by_resource[sveltos.CLUSTER_PROFILES]["properties"]["spec"]["properties"]
    summary = by_resource[sveltos.CLUSTER_SUMMARIES]["properties"]["spec"]["properties"]["clusterProfileSpec"]
    assert summary["properties"] == profile


def test_scopes_are_those_of_the_design() -> None:
    scopes = {crd["spec"]["names"]["kind"]: crd["spec"]["scope"] for crd in crds(unwind.GROUP)}
    assert scopes == {"Teardown": "Cluster", "Inventory": "Namespaced", "TeardownPolicy": "Cluster"}


def test_the_crds_are_printed_the_same_each_time_and_without_anchors() -> None:
    printed = console.as_yaml(crds())
    assert printed == console.as_yaml(crds())
    assert "&id" not in printed
    assert list(yaml.load_all(printed, Loader=yaml.CSafeLoader)) == crds()
