"""The mutating webhook of Clusters: records which user force-releases or deletes a cluster, or changes removeStrategy.

It never denies a request, and never delays one by more than a moment: what is refused, `admission_policies` refuses. It
cannot change a DELETE, so the user of one is recorded by a write of our own. The response to a DELETE has a warning:
what is removed from the cluster, and how to follow it. The rule about force-release is in `teardown/force_release.py`.

Where TeardownPolicies say that a DELETE of a Cluster with the gate Admission is the request for its teardown, the same
write pauses Cluster API for the Cluster, as `unwind delete` does. The API server finds the object changed, reads it
again, and the admission policy that refuses the DELETE no longer does. So the DELETE stays that of its user, and the
manager needs no right to delete Clusters. An API server that does not read it again refuses this DELETE, and accepts
the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api import admission, karmada
from unwind.api.capi import CLUSTERS, Cluster
from unwind.api.fields import Model
from unwind.api.meta import ObjectMeta
from unwind.api.names import (
    DELETE_FIELD_MANAGER,
    DELETE_PROTECTION_LABEL,
    DELETION_REQUESTED_BY_ANNOTATION,
    FIELD_MANAGER,
    PAUSED_ANNOTATION,
    PAUSED_BY_GATE,
    REMOVE_STRATEGY_ANNOTATION,
    REMOVE_STRATEGY_BY_ANNOTATION,
)
from unwind.capi.manifests import CLUSTERS_PATH
from unwind.errors import UnwindError
from unwind.members import targets
from unwind.members.targets import AddonTarget
from unwind.server.routes import Response, Route, refusal
from unwind.teardown import force_release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unwind.api.admission import Asked
    from unwind.api.resources import Resource
    from unwind.kube.client import Client
    from unwind.server.routes import Request

log = logs.get(__name__)

DeletionWarning = Callable[[bytes], str]
"""The warning for the deletion of a cluster, given as JSON; empty if there is none. Must not block."""

DeletionRequests = Callable[[AddonTarget], Awaitable[tuple[str, ...]]]
"""The TeardownPolicies by which a DELETE of a Cluster starts its teardown, read from the API server."""

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
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None


_CLUSTER = msgspec.json.Decoder(_Cluster | None)
_CAPI_CLUSTER = msgspec.json.Decoder(Cluster)
_OPTIONS = msgspec.json.Decoder(_Options | None)


def route(
    client: Client,
    clusters: Callable[[], Resource] = lambda: CLUSTERS,
    *,
    warnings: Mapping[str, DeletionWarning] = MappingProxyType({}),
    requests: DeletionRequests | None = None,
) -> Route:
    """The route of the webhook. `clusters`: the served version of Clusters. `warnings`: by the API group of the
    cluster. `requests`: which policies take a DELETE as the request for a teardown."""
    handler = partial(answer, client, clusters, warnings, requests=requests)
    return Route(path=CLUSTERS_PATH, handler=handler, name="clusters", timeout=3.0)


async def answer(
    client: Client,
    clusters: Callable[[], Resource],
    warnings: Mapping[str, DeletionWarning],
    body: bytes,
    request: Request,
    *,
    requests: DeletionRequests | None = None,
) -> Response:
    """The response to a review, which always allows the request."""
    try:
        asked = admission.admission_request(body)
        new, old = _CLUSTER.decode(asked.object), _CLUSTER.decode(asked.old_object)
        options = _OPTIONS.decode(asked.options) or _Options()
    except msgspec.DecodeError as error:
        return refusal(400, f"cannot decode the Cluster: {error}; the request goes on unrecorded")
    except ValueError as error:
        return refusal(400, str(error))
    if asked.operation == "UPDATE" and new and old:
        before, after, by = old.metadata.annotations, new.metadata.annotations, asked.user_info.username
        patch = force_release.user_patch(before, after, by=by, groups=asked.user_info.groups)
        if asked.kind.group == karmada.CLUSTERS.group:
            strategies = (old.spec.remove_strategy, new.spec.remove_strategy)
            patch += restrategised(before, after, *strategies, by=by)
        return Response(admission.patched(asked, patch))
    if asked.operation != "DELETE" or old is None:
        return Response(admission.allowed(asked))
    warning = _warning(warnings, asked, old.metadata)
    if not asked.dry_run and not options.preconditions.resource_version:
        within = min(_WITHIN, request.remaining / 3)
        of_karmada = asked.kind.group == karmada.CLUSTERS.group
        resource = karmada.CLUSTERS if of_karmada else clusters()
        policies: tuple[str, ...] = ()
        if requests and not of_karmada:
            policies = await _requested_by(requests, asked, options, within=within)
        noted = await _note(client, resource, asked, old.metadata, pause=bool(policies), within=within)
        if noted and policies:
            warning = _started(old.metadata, policies)
    return Response(admission.allowed(asked, warning=warning))


async def _requested_by(
    requests: DeletionRequests, asked: Asked, options: _Options, *, within: float
) -> tuple[str, ...]:
    """The policies by which this DELETE starts the teardown of a Cluster; empty if it does not, or that is not known:
    then the admission policy refuses it."""
    try:
        cluster = _CAPI_CLUSTER.decode(asked.old_object)
        if not is_request(cluster, foreground=_is_foreground(options, cluster.metadata)):
            return ()
        async with asyncio.timeout(within):
            return await requests(targets.of_capi(cluster))
    except (UnwindError, TimeoutError, msgspec.DecodeError) as error:
        log.warning(
            "deletion not taken as a request, the admission policy refuses it: retry",
            namespace=asked.namespace,
            why=str(error) or "timed out",
        )
        return ()


def is_request(cluster: Cluster, *, foreground: bool) -> bool:
    """Whether the DELETE of a Cluster can start its teardown (pure): not one that is refused for another reason, and
    not if a user has paused the Cluster."""
    meta = cluster.metadata
    return not (
        meta.terminating or cluster.held or cluster.paused or foreground or DELETE_PROTECTION_LABEL in meta.labels
    )


def _is_foreground(options: _Options, meta: ObjectMeta) -> bool:
    # As in the API server: if the request does not say, an existing finalizer decides.
    if options.propagation_policy is not None:
        return options.propagation_policy == "Foreground"
    return options.orphan_dependents is None and "foregroundDeletion" in meta.finalizers


def _started(meta: ObjectMeta, by: Sequence[str]) -> str:
    return (
        f"TeardownPolicy {', '.join(by)} holds Cluster {meta.namespace}/{meta.name}: Unwind first removes what must be"
        f" removed from it, then Cluster API deletes it; follow it with: unwind status {meta.name}"
    )


def _warning(warnings: Mapping[str, DeletionWarning], asked: Asked, meta: ObjectMeta) -> str:
    """The warning for the user who deletes a cluster; empty if there is none, or it fails."""
    about = warnings.get(asked.kind.group)
    # The API server asks once more after our own write, which records this user.
    repeated = meta.annotations.get(DELETION_REQUESTED_BY_ANNOTATION) == asked.user_info.username != ""
    if about is None or meta.terminating or repeated:
        return ""
    try:
        return about(bytes(asked.old_object))
    except Exception as error:  # noqa: BLE001 - no deletion fails because of a warning
        log.warning("deletion warning failed", cluster=f"{meta.namespace}/{meta.name}", why=str(error))
        return ""


def restrategised(
    old: Mapping[str, str], new: Mapping[str, str], before: str | None, after: str | None, *, by: str
) -> list[dict[str, Any]]:
    """The JSON patch that records which user changed the removeStrategy of a member, and to what.

    `before`, `after`: the field; where it is not served, an annotation holds the same value.
    """
    was = before if before is not None else old.get(REMOVE_STRATEGY_ANNOTATION)
    now = after if after is not None else new.get(REMOVE_STRATEGY_ANNOTATION)
    wanted = old.get(REMOVE_STRATEGY_BY_ANNOTATION) if was == now else f"{now or 'nothing'} by {by}"
    return admission.annotation_patch(new, REMOVE_STRATEGY_BY_ANNOTATION, wanted)


async def _note(
    client: Client, resource: Resource, asked: Asked, meta: ObjectMeta, *, pause: bool, within: float
) -> bool:
    """Record on a cluster which user requested its deletion; `pause`: and pause Cluster API for it. Whether that was
    written. If it fails, the user stays unknown and the request goes on."""
    user = asked.user_info.username
    if meta.terminating or not user:
        return False
    if meta.annotations.get(DELETION_REQUESTED_BY_ANNOTATION) == user and not pause:
        return False
    wanted = {DELETION_REQUESTED_BY_ANNOTATION: user} | ({PAUSED_ANNOTATION: PAUSED_BY_GATE} if pause else {})
    # With the uid: a new cluster of the same name was not deleted.
    patch = {"metadata": {"uid": meta.uid, "annotations": wanted}}
    by = DELETE_FIELD_MANAGER if pause else FIELD_MANAGER
    try:
        async with asyncio.timeout(within):
            await client.patch(resource, meta.name, patch, namespace=meta.namespace or None, field_manager=by)
    except (UnwindError, TimeoutError) as error:
        where = f"{meta.namespace}/{meta.name}"
        log.warning(
            "deletion requester not recorded, see the audit log for it", cluster=where, why=str(error) or "timed out"
        )
        return False
    return True
