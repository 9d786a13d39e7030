"""Manifests out of YAML, as Kubernetes reads it (pure)."""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from yaml.constructor import ConstructorError

from unwind import safe_yaml
from unwind.api.resources import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unwind.kube.client import Object


# A few aliases of aliases make a gigabyte out of a kilobyte. Without any, a text has fewer values than characters.
_MOST_VALUES = 10_000
# What an API server sets. Who writes down what `kubectl get -o yaml` shows has them in it; with some, no create works.
_SET_BY_THE_SERVER = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)


class Manifest(msgspec.Struct, frozen=True):
    """One object that shall be, and where it is written."""

    body: dict[str, Any]
    place: str
    """For people: the key and the document."""

    @property
    def group(self) -> str:
        group, slash, _ = self.body["apiVersion"].partition("/")
        return group if slash else ""

    @property
    def version(self) -> str:
        version: str = self.body["apiVersion"].rpartition("/")[2]
        return version

    @property
    def kind(self) -> str:
        kind: str = self.body["kind"]
        return kind

    @property
    def name(self) -> str:
        name: str = self.body["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        return self.body["metadata"].get("namespace") or ""


class Read(msgspec.Struct, frozen=True):
    """What a text holds."""

    manifests: list[Manifest] = []
    faults: list[str] = []
    """What is wrong with it, each with its place."""


class _FaultError(Exception):
    """What is wrong with a document."""


def read_manifests(text: str, key: str, *, confidential: bool = False) -> Read:
    """The manifests in a text of one or many documents. One that is wrong does not spoil the others.

    `confidential`: nothing of the text may show in what is said of it.
    """
    manifests: list[Manifest] = []
    faults: list[str] = []
    number = 0
    try:
        safe_yaml.check(text)
    except safe_yaml.TooComplexError as error:
        return Read(faults=[f"key {key}: {error}"])
    loader = _Loader(text)
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]
            number += 1
            place = f"key {key}, document {number}"
            most = [_MOST_VALUES + 2 * len(text)]
            try:
                manifests += [Manifest(body, place) for body in _objects(_plain(loader.get_data(), most))]
            except _FaultError as fault:
                faults.append(f"{place}: {fault}")
            except ConstructorError as error:
                # A tag that nobody knows, say: unlike broken syntax, it does not hide where the document ends.
                faults.append(f"{place}: {_told(error, confidential=confidential)}")
            except (yaml.YAMLError, RecursionError) as error:
                faults.append(f"{place}: {_told(error, confidential=confidential)}")
                break
    except yaml.YAMLError as error:
        faults.append(f"key {key}, document {number + 1}: {_told(error, confidential=confidential)}")
    finally:
        loader.dispose()
    return Read(manifests, faults)


def numbered(number: int) -> str:
    """The place of one among several, as `gather` calls it."""
    return f"manifests[{number}]"


def gather(bodies: Iterable[Any]) -> Read:
    """The manifests among objects that are there as such, each with its place. One that is wrong does not spoil the
    others."""
    manifests: list[Manifest] = []
    faults: list[str] = []
    for number, body in enumerate(bodies):
        place = numbered(number)
        try:
            manifests += [Manifest(item, place) for item in _objects(body)]
        except _FaultError as fault:
            faults.append(f"{place}: {fault}")
    return Read(manifests, faults)


def _told(error: Exception, *, confidential: bool) -> str:
    if isinstance(error, RecursionError):
        return "it has no end, or is nested too deeply"
    if not confidential:
        return f"it is not YAML ({' '.join(str(error).split())})"
    # PyYAML's own words have a part of the text in them.
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"it is not YAML{where}"


def _objects(found: Any) -> Iterator[dict[str, Any]]:
    if found is None:
        return  # nothing between two separators, or comments only
    if not isinstance(found, dict):
        raise _FaultError("it is no object")
    if isinstance(items := found.get("items"), list) and _is_list(found):
        # Those in a ConfigMapList need not say that they are ConfigMaps.
        kind: str = found["kind"].removesuffix("List")
        implied = {"apiVersion": found.get("apiVersion"), "kind": kind} if kind else {}
        for item in items:
            yield from _objects(implied | item if isinstance(item, dict) else item)
        return
    yield _checked(found)


def _is_list(found: dict[str, Any]) -> bool:
    kind, metadata = found.get("kind"), found.get("metadata")
    # A list has no name: with one, it is an object of a kind that happens to be called so.
    named = isinstance(metadata, dict) and metadata.get("name")
    return isinstance(kind, str) and kind.endswith("List") and not named


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    for field in ("apiVersion", "kind"):
        if not isinstance(body.get(field), str) or not body[field]:
            raise _FaultError(f"it has no {field}")
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        raise _FaultError("it has no metadata")
    if metadata.get("generateName") and not metadata.get("name"):
        raise _FaultError("it has no name: with generateName, each deployment would make another object")
    for field in ("name", "namespace"):
        value = metadata.get(field)
        if (value is None and field == "name") or not isinstance(value, str | None) or value == "":
            raise _FaultError(f"it has no {field}" if field == "name" else "its namespace is no text")
    for field in ("labels", "annotations"):
        values = metadata.get(field)
        if values is not None and not isinstance(values, dict):
            raise _FaultError(f"its {field} are no mapping")
    kept = {key: value for key, value in metadata.items() if key not in _SET_BY_THE_SERVER and value is not None}
    return body | {"metadata": kept}


def _plain(value: Any, most: list[int]) -> Any:
    """The value as JSON has it. `most`: how many more there may be."""
    most[0] -= 1
    if most[0] < 0:
        raise _FaultError("its aliases make far too many values of it")
    if isinstance(value, dict):
        return {_as_key(key): _plain(one, most) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(item, most) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise _FaultError(f"{value} is no number in JSON")
    if not isinstance(value, str | int | float | bool | bytes | None):
        raise _FaultError(f"a {type(value).__name__} is nothing that JSON knows")
    return value


def _as_key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise _FaultError("a key in it is no text")


class _Loader(yaml.CSafeLoader):
    """YAML as kubectl takes it: without dates, times and numbers to the base of sixty, which stay texts."""

    # PyYAML reads 2026-01-01 as a date and 22:30 as a number; an annotation that says so is a text.
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own is one
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.rpartition(":")[2] not in ("timestamp", "int", "float", "value")
        ]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


# Manifests by the ConfigMap, Secret or Work that holds them (pure).


class ManifestSource(msgspec.Struct, frozen=True, kw_only=True):
    """One policyRef and the manifests that it holds."""

    kind: str
    namespace: str
    name: str
    order: int = 0
    """Its place among the sources of the profile."""
    local: bool = False
    """Whether it goes to the management cluster."""
    tier: int = 100
    """Which of two sources of the same profile wins an object that is in both: the lower one."""
    manifests: tuple[Manifest, ...] = ()
    faults: tuple[str, ...] = ()
    """What is wrong with it. What it holds beyond that is not known: nothing may be pruned because of it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def parse(source: ManifestSource, held: Object) -> ManifestSource:
    """A source with the manifests that its object holds (pure)."""
    confidential = source.kind == SECRETS.kind
    found: list[Manifest] = []
    faults: list[str] = []
    # Of a Secret all is encoded, of a ConfigMap what is not text.
    fields = {"data": confidential, "binaryData": True}
    for field, encoded in fields.items():
        for key, value in sorted((held.get(field) or {}).items()):
            try:
                text = base64.b64decode(value, validate=True).decode() if encoded else value
            except (binascii.Error, UnicodeDecodeError):
                faults.append(f"key {key}: it is not text")
                continue
            read = read_manifests(text, key, confidential=confidential)
            found += read.manifests
            faults += read.faults
    return msgspec.structs.replace(
        source,
        manifests=tuple(found),
        faults=tuple(f"{source}, {fault}" for fault in faults),
    )
