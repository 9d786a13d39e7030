"""Generates the structural OpenAPI schemas of CRDs from the API types."""

from __future__ import annotations

import inspect
import types
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
_SIMPLE: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}


def schema_of(model: type[msgspec.Struct], *, keep_unknown: bool) -> Schema:
    """The schema of one struct.

    With `keep_unknown`, the API server keeps unknown fields at every level: users of other systems set them, and a
    pruned field is lost.
    """
    hints = get_type_hints(model, include_extras=True)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for field in msgspec.structs.fields(model):
        kind, meta = _unwrapped(hints[field.name])
        schema = _schema(kind, keep_unknown=keep_unknown)
        if meta:
            schema = {"description": meta.description, **schema, **(meta.extra_json_schema or {})}
            if meta.extra and meta.extra["required"]:
                required.append(field.encode_name)
        properties[field.encode_name] = schema
    whole: Schema = {"type": "object", "properties": properties}
    if required:
        whole["required"] = required
    if keep_unknown:
        whole[PRESERVE] = True
    return whole


def root_schema(model: type[msgspec.Struct], *, keep_unknown: bool, rules: list[Schema]) -> Schema:
    """The schema of an object. The API server has its own schema for apiVersion, kind and metadata."""
    whole = schema_of(model, keep_unknown=keep_unknown)
    whole.pop(PRESERVE, None)
    whole["description"] = inspect.cleandoc(model.__doc__ or "")
    own: Schema = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    whole["properties"] = {**whole["properties"], **own}
    if rules:
        # The API server refuses rules that might be expensive, and it does not know the maximum length of a name.
        own["metadata"]["properties"] = {"name": {"type": "string", "maxLength": 253}}
        whole["x-kubernetes-validations"] = rules
    return whole


def _schema(kind: Any, *, keep_unknown: bool) -> Schema:
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return schema_of(kind, keep_unknown=keep_unknown)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], keep_unknown=keep_unknown)}
    if origin is dict:
        if arguments[1] is Any:
            return {"type": "object", PRESERVE: True}
        return {"type": "object", "additionalProperties": _schema(arguments[1], keep_unknown=keep_unknown)}
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member not in (type(None), msgspec.UnsetType)]
        if set(members) == {int, str}:
            return {"x-kubernetes-int-or-string": True}
        if len(members) == 1:
            return _schema(members[0], keep_unknown=keep_unknown)
    raise TypeError(f"cannot generate a schema for {kind}")


def _unwrapped(hint: Any) -> tuple[Any, msgspec.Meta | None]:
    if get_origin(hint) is not Annotated:
        return hint, None
    kind, *extras = get_args(hint)
    return kind, next((extra for extra in extras if isinstance(extra, msgspec.Meta)), None)
