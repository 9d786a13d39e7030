"""Decodes what API servers send: responses, pages and events, and the views of objects in a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from unwind.api.meta import OwnerReference
from unwind.api.resources import Resource
from unwind.kube.errors import UnreadableError

T = TypeVar("T")

_JSON = "application/json"
_PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
Object = dict[str, Any]


class Key(NamedTuple):
    """Identifies an object within one cluster and resource. The namespace is empty for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Stamp(NamedTuple):
    """The identity and version of an object."""

    key: Key
    uid: str
    version: str


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of an object whose content does not matter.

    Fewer fields than ObjectMeta, and None instead of an empty dict: there may be a hundred thousand of these.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class RawObject(msgspec.Struct, frozen=True, gc=False):
    """An object as received, undecoded."""

    namespace: str
    name: str
    uid: str
    version: str
    body: bytes

    def decode(self) -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(self.body)
        return decoded


class View(msgspec.Struct, Generic[T], frozen=True):
    """How the objects of one resource are requested, decoded and identified."""

    resource: Resource
    decode: Callable[[msgspec.Raw], T]
    stamp: Callable[[T], Stamp]
    accept_list: str = _JSON
    accept_watch: str = _JSON


class _Head(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str
    namespace: str = ""


class _Headed(msgspec.Struct):
    metadata: _Head


class _Partial(msgspec.Struct):
    metadata: Metadata


_headed = msgspec.json.Decoder(_Headed).decode
_partial = msgspec.json.Decoder(_Partial).decode


def stamp_of(body: msgspec.Raw) -> Stamp:
    """The identity of an object, decoded from its metadata only."""
    head = _headed(body).metadata
    return Stamp(Key(sys.intern(head.namespace), head.name), head.uid, head.resource_version)


def raw(resource: Resource) -> View[RawObject]:
    """Objects as bytes: the least memory for content that is rarely read."""

    def decode(body: msgspec.Raw) -> RawObject:
        head = _headed(body).metadata
        # A copy: the received data is a slice of a page, and would keep all of it in memory.
        return RawObject(sys.intern(head.namespace), head.name, head.uid, head.resource_version, bytes(body))

    def stamp(obj: RawObject) -> Stamp:
        return Stamp(Key(obj.namespace, obj.name), obj.uid, obj.version)

    return View(resource, decode, stamp)


def metadata(resource: Resource) -> View[Metadata]:
    """Metadata only: the server omits the rest."""

    def decode(body: msgspec.Raw) -> Metadata:
        return _partial(body).metadata

    def stamp(obj: Metadata) -> Stamp:
        return Stamp(Key(sys.intern(obj.namespace), obj.name), obj.uid, obj.resource_version)

    return View(resource, decode, stamp, accept_list=_PARTIAL.format("List"), accept_watch=_PARTIAL.format(""))


def typed(resource: Resource, type_: type[T]) -> View[T]:
    """Objects as values of a model, which has a `metadata` with name, namespace, uid and resource_version."""
    decode = msgspec.json.Decoder(type_).decode

    def stamp(obj: Any) -> Stamp:
        head = obj.metadata
        return Stamp(Key(sys.intern(head.namespace or ""), head.name), head.uid, head.resource_version)

    return View(resource, decode, stamp)


class WatchEvent(msgspec.Struct, frozen=True):
    """One event of a watch."""

    type: str
    object: Object


class _ListMeta(
    msgspec.Struct,
    rename={
        "continue_": "continue",
        "resource_version": "resourceVersion",
        "remaining_item_count": "remainingItemCount",
    },
):
    resource_version: str = ""
    continue_: str = ""
    remaining_item_count: int = 0
    """Number of items on the following pages, if the server knows it: not with a selector."""


class Page(msgspec.Struct):
    """A page of a list, with undecoded items."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None
    kind: str = ""


def decode_response(body: bytes | msgspec.Raw, type_: Any, what: str) -> Any:
    """Decode a response. Raises UnreadableError, because a proxy may return anything."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(
            f"cannot decode the response of the API server to a request for {what} ({error})"
        ) from error


def object_of(body: bytes | msgspec.Raw, what: str, *, key: str = "uid") -> Object:
    """The object in a response, with this key in its metadata."""
    found: Object = decode_response(body, dict, what)
    metadata = found.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get(key), str):
        raise _not_an_object(what)
    return found


def model_of(body: bytes | msgspec.Raw, type_: type[T], what: str) -> T:
    """The object in a response as a value of a model that has a `metadata` with a name."""
    found: Any = decode_response(body, type_, what)
    if not found.metadata.name:
        raise _not_an_object(what)
    return found  # type: ignore[no-any-return]


def _not_an_object(what: str) -> UnreadableError:
    return UnreadableError(f"the response of the API server to a request for {what} is not a JSON object")
