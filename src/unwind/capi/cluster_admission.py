"""The admission webhook of Clusters: records which user force-releases or deletes a cluster, or changes removeStrategy.

The rule about force-release is pure. A mutating webhook cannot change a DELETE, so the user is recorded by a write of
our own. The response to a DELETE has a warning: what is removed from the cluster, and how to follow it. The webhook
never denies a request, and never delays one by more than a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api import admission, karmada
from unwind.api.capi import CLUSTERS
from unwind.api.fields import Model
from unwind.api.meta import ObjectMeta
from unwind.api.names import (
    DELETION_REQUESTED_BY_ANNOTATION,
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    FORCE_RELEASE_GROUPS_ANNOTATION,
    REMOVE_STRATEGY_ANNOTATION,
    REMOVE_STRATEGY_BY_ANNOTATION,
)
from unwind.capi.manifests import CLUSTERS_PATH
from unwind.errors import UnwindError
from unwind.server.routes import Response, Route, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unwind.api.admission import Asked
    from unwind.api.resources import Resource
    from unwind.kube.client import Client
    from unwind.server.routes import Request

log = logs.get(__name__)

DeletionWarning = Callable[[bytes], str]
"""The warning for the deletion of a cluster, given as JSON; empty if there is none. Must not block."""

# Seconds, out of the API server's timeout of three. The user who deletes the cluster waits for this.
_WITHIN = 1.5


class _Spec(Model, frozen=True, kw_only=True):
    remove_strategy: str | None = None
    """Of a Karmada Cluster."""


class _Cluster(Model, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()


class _Preconditions(Model, frozen=True, kw_only=True):
    resource_version: str = ""


class _Options(Model, frozen=True, kw_only=True):
    preconditions: _Preconditions = _Preconditions()


_CLUSTER = msgspec.json.Decoder(_Cluster | None)
_OPTIONS = msgspec.json.Decoder(_Options | None)


def route(
    client: Client,
    clusters: Callable[[], Resource] = lambda: CLUSTERS,
    *,
    warnings: Mapping[str, DeletionWarning] = MappingProxyType({}),
) -> Route:
    """The route of the webhook. `clusters`: the served version of Clusters. `warnings`: by the API group of the
    cluster."""
    handler = partial(answer, client, clusters, warnings)
    return Route(path=CLUSTERS_PATH, handler=handler, name="clusters", timeout=3.0)


async def answer(
    client: Client,
    clusters: Callable[[], Resource],
    warnings: Mapping[str, DeletionWarning],
    body: bytes,
    request: Request,
) -> Response:
    """The response to a review, which always allows the request."""
    try:
        asked = admission.admission_request(body)
        new, old = _CLUSTER.decode(asked.object), _CLUSTER.decode(asked.old_object)
        options = _OPTIONS.decode(asked.options) or _Options()
    except msgspec.DecodeError as error:
        return refusal(400, f"cannot decode the Cluster: {error}")
    except ValueError as error:
        return refusal(400, str(error))
    if asked.operation == "UPDATE" and new and old:
        before, after, by = old.metadata.annotations, new.metadata.annotations, asked.user_info.username
        patch = released(before, after, by=by, groups=asked.user_info.groups)
        if asked.kind.group == karmada.CLUSTERS.group:
            strategies = (old.spec.remove_strategy, new.spec.remove_strategy)
            patch += restrategised(before, after, *strategies, by=by)
        return Response(admission.patched(asked, patch))
    if asked.operation != "DELETE" or old is None:
        return Response(admission.allowed(asked))
    if not asked.dry_run and not options.preconditions.resource_version:
        resource = karmada.CLUSTERS if asked.kind.group == karmada.CLUSTERS.group else clusters()
        await _note(client, resource, asked, old.metadata, within=min(_WITHIN, request.remaining / 2))
    return Response(admission.allowed(asked, warning=_warning(warnings, asked, old.metadata)))


def _warning(warnings: Mapping[str, DeletionWarning], asked: Asked, meta: ObjectMeta) -> str:
    """The warning for the user who deletes a cluster; empty if there is none, or it fails."""
    about = warnings.get(asked.kind.group)
    if about is None or meta.terminating:
        return ""
    try:
        return about(bytes(asked.old_object))
    except Exception as error:  # noqa: BLE001 - no deletion fails because of a warning
        log.warning("deletion warning failed", cluster=f"{meta.namespace}/{meta.name}", why=str(error))
        return ""


def released(
    old: Mapping[str, str], new: Mapping[str, str], *, by: str, groups: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The JSON patch that records which user force-releases a cluster, whatever the request itself claims.

    The groups are recorded because rights are often granted to them: TeardownPolicies are released only by users who
    may update them.
    """
    said = new.get(FORCE_RELEASE_ANNOTATION)
    names = (FORCE_RELEASE_BY_ANNOTATION, FORCE_RELEASE_GROUPS_ANNOTATION)
    wanted: dict[str, str | None] = dict.fromkeys(names)
    if said is not None and said != old.get(FORCE_RELEASE_ANNOTATION):
        wanted = dict(zip(names, (by, "\n".join(groups) or None), strict=True))
    elif said is not None:
        wanted = {name: old.get(name) for name in names}
    return [operation for name, value in wanted.items() for operation in _annotated(new, name, value)]


def restrategised(
    old: Mapping[str, str], new: Mapping[str, str], before: str | None, after: str | None, *, by: str
) -> list[dict[str, Any]]:
    """The JSON patch that records which user changed the removeStrategy of a member, and to what.

    `before`, `after`: the field; where it is not served, an annotation holds the same value.
    """
    was = before if before is not None else old.get(REMOVE_STRATEGY_ANNOTATION)
    now = after if after is not None else new.get(REMOVE_STRATEGY_ANNOTATION)
    wanted = old.get(REMOVE_STRATEGY_BY_ANNOTATION) if was == now else f"{now or 'nothing'} by {by}"
    return _annotated(new, REMOVE_STRATEGY_BY_ANNOTATION, wanted)


def _annotated(annotations: Mapping[str, str], name: str, wanted: str | None) -> list[dict[str, Any]]:
    """The JSON patch that sets or removes an annotation."""
    if annotations.get(name) == wanted:
        return []
    pointer = "/metadata/annotations/" + name.replace("/", "~1")
    if wanted is None:
        return [{"op": "remove", "path": pointer}]
    if not annotations:  # metadata.annotations may not exist
        return [{"op": "add", "path": "/metadata/annotations", "value": {name: wanted}}]
    return [{"op": "add", "path": pointer, "value": wanted}]


async def _note(client: Client, resource: Resource, asked: Asked, meta: ObjectMeta, *, within: float) -> None:
    """Record on a cluster which user requested its deletion. If that fails, the user stays unknown and the deletion
    goes on."""
    user = asked.user_info.username
    if meta.terminating or not user or meta.annotations.get(DELETION_REQUESTED_BY_ANNOTATION) == user:
        return
    # With the uid: a new cluster of the same name was not deleted.
    patch = {"metadata": {"uid": meta.uid, "annotations": {DELETION_REQUESTED_BY_ANNOTATION: user}}}
    try:
        async with asyncio.timeout(within):
            await client.patch(resource, meta.name, patch, namespace=meta.namespace or None)
    except (UnwindError, TimeoutError) as error:
        where = f"{meta.namespace}/{meta.name}"
        log.warning("deletion requester not recorded", cluster=where, why=str(error) or "timed out")
