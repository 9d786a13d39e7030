"""The schema of Cluster API's runtime hooks, taken from the Go module that the tests build, and a validator for it."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.local import golang
from unwind.local.tools import CLUSTER_API_MANAGER

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM = Path(__file__).with_suffix(".go")
_API = "sigs.k8s.io/cluster-api/api"
_MARKED = (f"{_API}/runtime/hooks/v1alpha1", f"{_API}/core/v1beta2")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class Message(msgspec.Struct, frozen=True):
    """The request or the response of a hook."""

    kind: str
    schema: dict[str, Any]


class HookSchema(msgspec.Struct, frozen=True, rename="camel"):
    """One hook of Cluster API's catalog."""

    path: str
    api_version: str
    request: Message
    response: Message


class Schema(msgspec.Struct, frozen=True):
    """All hooks, with the types that they refer to by name."""

    hooks: dict[str, HookSchema]
    definitions: dict[str, dict[str, Any]]

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema itself, or the one that it refers to."""
        return self.definitions[schema["$ref"]] if "$ref" in schema else schema

    def violations(self, hook: str, message: Message, body: Any) -> list[str]:
        """What is wrong with a request or a response of a hook."""
        return [
            *(
                f"{field}: expected {expected!r}, found {body.get(field)!r}"
                for field, expected in (("apiVersion", self.hooks[hook].api_version), ("kind", message.kind))
                if body.get(field) != expected
            ),
            *self._violations(message.schema, body, ""),
        ]

    def _violations(self, schema: dict[str, Any], value: Any, where: str) -> Iterator[str]:
        schema = self.resolved(schema)
        if types := schema.get("type"):
            accepted = tuple(python for name in types for python in _TYPES[name])
            # A bool is an int in Python only.
            if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
                yield f"{where}: expected {' or '.join(types)}, found {value!r}"
                return
        if "enum" in schema and value not in schema["enum"]:
            yield f"{where}: expected one of {schema['enum']}, found {value!r}"
        if schema.get("format") == "int32" and not -(2**31) <= value < 2**31:
            yield f"{where}: {value} is not an int32"
        if isinstance(value, dict):
            yield from self._fields(schema, value, where)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._violations(schema.get("items", {}), item, f"{where}[{index}]")

    def _fields(self, schema: dict[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}.{name}: missing"
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, item in value.items():
            if name in properties:
                yield from self._violations(properties[name], item, f"{where}.{name}")
            elif others is False:
                yield f"{where}.{name}: unknown field"
            else:
                yield from self._violations(others, item, f"{where}.{name}")


@cache
def load() -> Schema:
    """The schema of the Cluster API that `make setup` builds. Go caches the program: only the first run compiles it."""
    directories = _go("list", "-mod=readonly", "-f", "{{.ImportPath}}={{.Dir}}", *_MARKED).split()
    printed = _go("run", *golang.FLAGS, str(_PROGRAM), *directories)
    return msgspec.json.decode(printed, type=Schema)


def _go(*arguments: str) -> str:
    done = subprocess.run(
        [golang.find_go(), *arguments],
        cwd=CLUSTER_API_MANAGER.module.directory,
        env=os.environ | golang.settings(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
