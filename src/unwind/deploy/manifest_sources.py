"""Parses manifests from YAML as Kubernetes does, and from ConfigMaps and Secrets (pure)."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import msgspec
import yaml
from yaml.constructor import ConstructorError

from unwind import safe_yaml
from unwind.api.resources import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unwind.kube.client import Object


# A few nested aliases expand a kilobyte to a gigabyte. Without aliases, a text has fewer values than characters.
_MOST_VALUES = 10_000
# Fields that the API server sets. The output of `kubectl get -o yaml` contains them, and with some a create fails.
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
    """One manifest and its position in the source."""

    body: dict[str, Any]
    place: str
    """The key and the document, for messages."""

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
    """The result of parsing a text."""

    manifests: list[Manifest] = []
    faults: list[str] = []
    """The errors, each with its position."""


class _FaultError(Exception):
    """An error in a document."""


def read_manifests(text: str, key: str, *, confidential: bool = False) -> Read:
    """The manifests in a text of one or many documents. An invalid document does not affect the others.

    `confidential`: errors must not quote the text.
    """
    manifests: list[Manifest] = []
    faults: list[str] = []
    number = 0
    try:
        safe_yaml.check_complexity(text)
    except safe_yaml.TooComplexError as error:
        return Read(faults=[f"key {key}: {error}"])
    loader, most = safe_yaml.KubernetesLoader(text), _MOST_VALUES + 2 * len(text)
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]
            number += 1
            place = f"key {key}, document {number}"
            try:
                manifests += [
                    Manifest(body, place) for body in _objects(safe_yaml.as_json(loader.get_data(), most=most))
                ]
            except (_FaultError, safe_yaml.NotJsonError) as fault:
                faults.append(f"{place}: {fault}")
            except ConstructorError as error:
                # For example an unknown tag: unlike invalid syntax, it does not hide the end of the document.
                faults.append(f"{place}: {_error_text(error, confidential=confidential)}")
            except (yaml.YAMLError, RecursionError) as error:
                faults.append(f"{place}: {_error_text(error, confidential=confidential)}")
                break
    except yaml.YAMLError as error:
        faults.append(f"key {key}, document {number + 1}: {_error_text(error, confidential=confidential)}")
    finally:
        loader.dispose()
    return Read(manifests, faults)


def numbered(number: int) -> str:
    """The position of a manifest in a list, as `gather` names it."""
    return f"manifests[{number}]"


def collect_manifests(bodies: Iterable[Any]) -> Read:
    """The manifests in a list of objects, each with its position. An invalid object does not affect the others."""
    manifests: list[Manifest] = []
    faults: list[str] = []
    for number, body in enumerate(bodies):
        place = numbered(number)
        try:
            manifests += [Manifest(item, place) for item in _objects(body)]
        except _FaultError as fault:
            faults.append(f"{place}: {fault}")
    return Read(manifests, faults)


def _error_text(error: Exception, *, confidential: bool) -> str:
    if isinstance(error, RecursionError):
        return "recursive or nested too deeply; simplify it"
    if not confidential:
        return f"invalid YAML ({' '.join(str(error).split())}); correct it"
    # PyYAML's messages quote the text.
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"invalid YAML{where}; correct it"


def _objects(found: Any) -> Iterator[dict[str, Any]]:
    if found is None:
        return  # an empty document, or comments only
    if not isinstance(found, dict):
        raise _FaultError("not an object; write a Kubernetes object")
    if isinstance(items := found.get("items"), list) and _is_list(found):
        # The items of a ConfigMapList need not have apiVersion and kind.
        kind: str = found["kind"].removesuffix("List")
        implied = {"apiVersion": found.get("apiVersion"), "kind": kind} if kind else {}
        for item in items:
            yield from _objects(implied | item if isinstance(item, dict) else item)
        return
    yield _checked(found)


def _is_list(found: dict[str, Any]) -> bool:
    kind, metadata = found.get("kind"), found.get("metadata")
    # A list has no name: with a name, it is an object of a kind whose name ends with List.
    named = isinstance(metadata, dict) and metadata.get("name")
    return isinstance(kind, str) and kind.endswith("List") and not named


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    for field in ("apiVersion", "kind"):
        if not isinstance(body.get(field), str) or not body[field]:
            raise _FaultError(f"{field} is required")
    metadata = body.get("metadata")
    if not isinstance(metadata, dict):
        raise _FaultError("metadata is required")
    if metadata.get("generateName") and not metadata.get("name"):
        raise _FaultError("metadata.name is required: with generateName, each deployment would create another object")
    for field in ("name", "namespace"):
        value = metadata.get(field)
        if (value is None and field == "name") or not isinstance(value, str | None) or value == "":
            raise _FaultError(
                f"metadata.{field} is required" if field == "name" else f"metadata.{field} is not a string"
            )
    for field in ("labels", "annotations"):
        values = metadata.get(field)
        if values is not None and not isinstance(values, dict):
            raise _FaultError(f"metadata.{field} is not a mapping")
    kept = {key: value for key, value in metadata.items() if key not in _SET_BY_THE_SERVER and value is not None}
    return body | {"metadata": kept}


# Manifests by the ConfigMap, Secret or Work that holds them (pure).


class ManifestSource(msgspec.Struct, frozen=True, kw_only=True):
    """One policyRef and its manifests."""

    kind: str
    namespace: str
    name: str
    order: int = 0
    """Its position among the sources of the profile."""
    local: bool = False
    """Whether it is deployed to the management cluster."""
    tier: int = 100
    """If two sources of the same profile contain an object, the lower tier wins."""
    manifests: tuple[Manifest, ...] = ()
    faults: tuple[str, ...] = ()
    """The errors. With errors, the full content is unknown, so nothing may be pruned."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def parse_source(source: ManifestSource, held: Object) -> ManifestSource:
    """A source with the manifests of its ConfigMap or Secret (pure)."""
    confidential = source.kind == SECRETS.kind
    found: list[Manifest] = []
    faults: list[str] = []
    # All data of a Secret is base64-encoded, and binaryData of a ConfigMap.
    fields = {"data": confidential, "binaryData": True}
    for field, encoded in fields.items():
        for key, value in sorted((held.get(field) or {}).items()):
            try:
                text = base64.b64decode(value, validate=True).decode() if encoded else value
            except (binascii.Error, UnicodeDecodeError):
                faults.append(f"key {key}: not valid UTF-8 text; correct its encoding")
                continue
            read = read_manifests(text, key, confidential=confidential)
            found += read.manifests
            faults += read.faults
    return msgspec.structs.replace(
        source,
        manifests=tuple(found),
        faults=tuple(f"{source}, {fault}" for fault in faults),
    )
