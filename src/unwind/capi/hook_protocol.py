"""The wire protocol of Cluster API's lifecycle hooks: paths, Discovery, requests and responses (pure)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from unwind.api.capi import CLUSTERS, CLUSTERS_V1BETA1, ExtensionHandler, FailurePolicy, RequestHook
from unwind.api.fields import Model
from unwind.api.hooks import API_VERSION, REQUESTS, DiscoveryRequest, Hook, HookRequest
from unwind.errors import UnwindError
from unwind.server.routes import Response

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

T = TypeVar("T")

DISCOVERY_PATH = f"/{API_VERSION}/discovery"
TIMEOUT = 10
"""Cluster API's timeout of a hook, in seconds."""

_SUCCESS = "Success"
_CLUSTERS = {(item.api_version, item.kind) for item in (CLUSTERS, CLUSTERS_V1BETA1)}
_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z])")
# The API server's format of names and uids. Both become part of paths and selectors, so nothing else is accepted.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?")


# A faulty rule blocks all clusters, so the other hooks are announced only if enabled. BeforeClusterDelete cannot be
# disabled: users would expect clusters to wait, and they would not.
ALWAYS = (Hook.AFTER_CONTROL_PLANE_INITIALIZED, Hook.BEFORE_CLUSTER_DELETE)


class MalformedError(UnwindError):
    """The body is not a request of this hook."""


class _Handler(ExtensionHandler, frozen=True, kw_only=True, omit_defaults=False):
    """Encoded with all fields: Cluster API would fill in its own defaults."""


class _DiscoveryResponse(Model, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = API_VERSION
    kind: str = "DiscoveryResponse"
    status: str = _SUCCESS
    message: str = ""
    handlers: tuple[_Handler, ...] = ()


class _Told(Model, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = API_VERSION
    kind: str
    status: str = _SUCCESS
    """Always Success: after anything else Cluster API backs off before the next call, up to 1000 s."""
    message: str = ""


class _Answer(_Told, frozen=True, kw_only=True, omit_defaults=False):
    retry_after_seconds: int = 0


class _Uid(msgspec.Struct, frozen=True, gc=False):
    uid: str


class _Cluster(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    api_version: str
    kind: str
    metadata: _Uid


class _Glance(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    api_version: str
    kind: str
    cluster: _Cluster


_glance = msgspec.json.Decoder(_Glance)
_discovery = msgspec.json.Decoder(DiscoveryRequest)
_requests = {hook: msgspec.json.Decoder(type_) for hook, type_ in REQUESTS.items()}
_kinds = {hook: f"{hook.value}Request" for hook in Hook}


def switched_on(features: Mapping[str, bool]) -> tuple[Hook, ...]:
    """The hooks announced to Cluster API."""
    return tuple(hook for hook in Hook if hook in ALWAYS or features.get(hook.value, False))


def handler(hook: Hook) -> str:
    """The handler name of a hook: `before-cluster-delete`."""
    return _CAPITALS.sub("-", hook.value).lower()


def path(hook: Hook) -> str:
    """The path of a hook."""
    return f"/{API_VERSION}/{hook.value.lower()}/{handler(hook)}"


def discovered(body: bytes, hooks: Iterable[Hook]) -> Response:
    """The Discovery response. Raises MalformedError if the body is not a DiscoveryRequest."""
    asked = _read(_discovery, body, "DiscoveryRequest")
    _check(asked, "DiscoveryRequest")
    handlers = tuple(
        _Handler(
            name=handler(hook),
            request_hook=RequestHook(api_version=API_VERSION, hook=hook.value),
            timeout_seconds=TIMEOUT,
            # With Ignore, clusters would be deleted whenever Unwind is down.
            failure_policy=FailurePolicy.FAIL.value,
        )
        for hook in hooks
    )
    return Response(msgspec.json.encode(_DiscoveryResponse(handlers=handlers)))


def hook_request(hook: Hook, body: bytes) -> HookRequest:
    """The decoded request. Raises MalformedError if the body is not a request of this hook."""
    kind = _kinds[hook]
    request = _read(_requests[hook], body, kind)
    _check(request, kind)
    cluster = request.cluster
    if (cluster.api_version, cluster.kind) not in _CLUSTERS:
        raise MalformedError(
            f"unsupported cluster kind {cluster.kind!r} (apiVersion {cluster.api_version!r})",
            remedy=f"use a version of Unwind that supports it: this one supports {CLUSTERS.api_version} and"
            f" {CLUSTERS_V1BETA1.api_version}",
        )
    meta = cluster.metadata
    for what, text, shape in (
        ("name", meta.name, _NAME),
        ("namespace", meta.namespace, _NAME),
        ("uid", meta.uid, _UID),
    ):
        if not shape.fullmatch(text):
            raise MalformedError(
                f"invalid cluster {what} {text[:100]!r}",
                remedy="check that this version of Unwind supports this version of Cluster API",
            )
    return request


def glance(hook: Hook, body: bytes) -> str:
    """The cluster uid of a request; empty if it needs full decoding.

    Full decoding takes three times as long, and most requests are about clusters that wait.
    """
    try:
        seen = _glance.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""  # full decoding reports the error
    cluster = seen.cluster
    understood = (
        seen.kind == _kinds[hook]
        and seen.api_version == API_VERSION
        and (cluster.api_version, cluster.kind) in _CLUSTERS
    )
    return cluster.metadata.uid if understood else ""


def go_on(hook: Hook) -> Response:
    """The response that lets the cluster proceed."""
    return _encoded(_Answer(kind=_response(hook)) if hook.blocks else _Told(kind=_response(hook)))


def wait(hook: Hook, message: str, seconds: int) -> Response:
    """The response that makes the cluster wait; Cluster API calls again after so many seconds. A non-blocking hook only
    gets the message."""
    if not hook.blocks:
        return _encoded(_Told(kind=_response(hook), message=message))
    # 0 would mean proceed, and after less than that Cluster API never calls again.
    return _encoded(_Answer(kind=_response(hook), message=message, retry_after_seconds=max(1, seconds)))


def _encoded(answer: _Told) -> Response:
    return Response(msgspec.json.encode(answer))


def _response(hook: Hook) -> str:
    return f"{hook.value}Response"


def _read(decoder: msgspec.json.Decoder[T], body: bytes, kind: str) -> T:
    try:
        return decoder.decode(body)
    # Too deep nesting and invalid UTF-8 are not DecodeErrors.
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedError(
            f"cannot decode the {kind}: {error}; check that this version of Unwind supports this version of Cluster API"
        ) from None


def _check(request: DiscoveryRequest | HookRequest, kind: str) -> None:
    if (request.api_version, request.kind) != (API_VERSION, kind):
        found = f"{request.kind[:100]!r} of {request.api_version[:100]!r}"
        raise MalformedError(
            f"unexpected request {found} instead of {kind!r} of {API_VERSION!r}",
            remedy="check that this version of Unwind supports this version of Cluster API",
        )
