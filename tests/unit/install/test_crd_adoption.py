"""Adopting a CRD adds, and does nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unwind.api import names
from unwind.api.crds import PRESERVE
from unwind.errors import UnwindError
from unwind.install.crd_adoption import additions, adoption, with_additions

Schema = dict[str, Any]

NAMES = st.sampled_from(["spec", "items", "properties", "a", "b", "c"])
LEAVES = st.fixed_dictionaries(
    {"type": st.sampled_from(["string", "integer", "boolean"])},
    optional={"default": st.just("x"), "enum": st.just(["x", "y"])},
)


def grown(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={"required": st.just(["a"]), PRESERVE: st.just(True)},
    )
    return st.one_of(
        objects,
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"type": st.just("object"), "additionalProperties": inner}),
    )


SCHEMAS = st.recursive(LEAVES, grown, max_leaves=12)


def contained(smaller: Any, larger: Any) -> bool:
    """Whether everything of one is in the other, at the same place, with the same value."""
    if isinstance(smaller, dict):
        return isinstance(larger, dict) and all(
            key in larger and contained(value, larger[key]) for key, value in smaller.items()
        )
    return bool(smaller == larger)


def paths(schema: Schema, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Every place in a schema, down to the values."""
    found = {at}
    for key, value in schema.items():
        found |= paths(value, (*at, key)) if isinstance(value, dict) else {(*at, key)}
    return found


@given(theirs=SCHEMAS, ours=SCHEMAS)
def test_everything_of_theirs_stays_and_what_is_new_is_ours(theirs: Schema, ours: Schema) -> None:
    added = list(additions(theirs, ours))
    whole = with_additions(theirs, added)
    assert contained(theirs, whole)
    new = paths(whole) - paths(theirs)
    assert all(any(path[: len(item.path)] == item.path for item in added) for path in new)
    assert all(item.path[-2] == "properties" for item in added), "only fields are added"


@given(theirs=SCHEMAS, ours=SCHEMAS)
def test_adopting_twice_adds_nothing_the_second_time(theirs: Schema, ours: Schema) -> None:
    whole = with_additions(theirs, list(additions(theirs, ours)))
    assert list(additions(whole, ours)) == []


@given(schema=SCHEMAS)
def test_a_schema_lacks_nothing_of_itself(schema: Schema) -> None:
    assert list(additions(schema, schema)) == []


def text(**more: Any) -> Schema:
    return {"type": "string", **more}


def obj(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def test_fields_are_named_as_people_write_them() -> None:
    theirs = obj(spec=obj(refs=array(obj(name=text()))))
    ours = obj(spec=obj(behaviour=text(), refs=array(obj(name=text(), tier=text()))), status=obj(phase=text()))
    assert [addition.field for addition in additions(theirs, ours)] == ["spec.behaviour", "spec.refs[].tier", "status"]


@pytest.mark.parametrize(
    "theirs",
    [
        {"type": "object", PRESERVE: True},
        {"type": "object", PRESERVE: True, "properties": {"a": text()}},
        {"type": "object", "additionalProperties": text()},
        text(),
    ],
    ids=["anything", "open", "map", "another type"],
)
def test_where_something_else_may_stand_already_nothing_is_added(theirs: Schema) -> None:
    assert list(additions(theirs, obj(behaviour=text()))) == []


def test_a_field_that_is_there_keeps_its_own_type_and_words() -> None:
    theirs = obj(spec=obj(behaviour=text(enum=["Other"])))
    assert list(additions(theirs, obj(spec=obj(behaviour={"type": "integer"})))) == []


def crd(schema: Schema, **version: Any) -> Schema:
    return {
        "metadata": {"name": "things.example.io", "resourceVersion": "7"},
        "spec": {
            "versions": [
                {"name": "v1alpha1", "served": True, "schema": {"openAPIV3Schema": obj()}},
                {"name": "v1", "served": True, "schema": {"openAPIV3Schema": schema}, **version},
            ]
        },
    }


def ours(schema: Schema) -> Schema:
    return {"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}}


def test_the_patch_goes_to_the_version_it_was_made_for_and_notes_what_it_added() -> None:
    fields, patch = adoption(crd(obj(spec=obj(a=text()))), ours(obj(spec=obj(a=text(), b=text()))))
    assert fields == ["spec.b"]
    assert patch == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/unwind.dev~1adopted-fields", "value": "spec.b"},
        {
            "op": "add",
            "path": "/spec/versions/1/schema/openAPIV3Schema/properties/spec/properties/b",
            "value": text(),
        },
    ]


def test_what_was_noted_before_stays_noted() -> None:
    theirs = crd(obj(spec=obj(a=text(), b=text())))
    theirs["metadata"]["annotations"] = {names.ADOPTED_FIELDS_ANNOTATION: "spec.b", "other": "kept"}
    _, patch = adoption(theirs, ours(obj(spec=obj(a=text(), b=text(), c=text()))))
    assert patch[1]["value"] == "spec.b,spec.c"
    assert not [operation for operation in patch if operation["path"] == "/metadata/annotations"]


def test_a_crd_that_has_everything_is_not_written_to() -> None:
    assert adoption(crd(obj(a=text())), ours(obj(a=text()))) == ([], [])


def test_a_crd_that_does_not_serve_the_version_is_refused() -> None:
    with pytest.raises(UnwindError, match=r"things\.example\.io: it does not serve version v1"):
        adoption(crd(obj(a=text()), served=False), ours(obj(b=text())))
