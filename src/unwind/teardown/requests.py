"""Requests for deletion: creates requested Teardowns, and checks the manager's own delete rights for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.meta import ObjectMeta, manifest
from unwind.api.names import (
    AGGREGATE_LABEL,
    MAX_OBJECTS_ANNOTATION,
    REQUEST_PREFIX,
    RESOURCE_ANNOTATION,
    VOLUMES_ANNOTATION,
)
from unwind.api.resources import Resource
from unwind.api.rights import READ
from unwind.api.unwind import TEARDOWNS, Cause, Teardown, TeardownSpec
from unwind.concurrency import gather_limited
from unwind.kube.errors import AlreadyExistsError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.api.unwind import Entry
    from unwind.kube.client import Client
    from unwind.kube.errors import ApiError


ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
_VERBS = (*READ, "delete")
_AT_ONCE = 8
_SHOWN = 3


class Missing(msgspec.Struct, frozen=True, order=True):
    """An RBAC right that the manager does not have."""

    group: str
    resource: str
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.verbs)} {self.resource}.{self.group}".rstrip(".")


async def missing(client: Client, entries: Iterable[Entry], *, verbs: tuple[str, ...] = _VERBS) -> tuple[Missing, ...]:
    """The rights that the manager lacks to delete these objects and verify their absence."""
    wanted = {(entry.object.group, entry.resource) for entry in entries}
    found: list[Missing] = []

    async def look(group: str, resource: str) -> None:
        # Cluster-wide: objects that are waited for are watched in all namespaces.
        lacking = [verb for verb in verbs if not await _may(client, verb, group, resource)]
        if lacking:
            found.append(Missing(group, resource, tuple(lacking)))

    await gather_limited((look(*item) for item in sorted(wanted)), limit=_AT_ONCE)
    return tuple(sorted(found))


async def _may(client: Client, verb: str, group: str, resource: str) -> bool:
    asked = {"verb": verb, "group": group, "resource": resource}
    body = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": asked},
    }
    answer = await client.create(ACCESS_REVIEWS, body)
    return bool(answer.get("status", {}).get("allowed"))


def missing_right(error: ApiError) -> Missing:
    """The right that was missing for a read, from the answer of the API server (pure)."""
    about = error.status.details
    return Missing(about.group if about else "", about.kind if about and about.kind else "*", READ)


def told(lacking: Iterable[Missing]) -> str:
    """Which rights are missing and how to grant them (pure)."""
    some = list(lacking)
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return (
        f"the manager lacks the right to {'; '.join(map(str, some[:_SHOWN]))}{more}; create a ClusterRole with these"
        f' rights and the label {AGGREGATE_LABEL}: "true", then request the deletion again'
    )


# Creating a request: the Teardown that the command line creates for a user.

REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


async def request(
    client: Client,
    target: ObjectRef,
    *,
    plural: str,
    now: datetime,
    max_objects: int | None = None,
    volumes: VolumePolicy = VolumePolicy.RETAIN,
    title: str = "",
) -> Teardown:
    """The Teardown that deletes the target: a new one, or an existing request that is not finished or cancelled.

    It has no plan yet: the manager writes it. `title`: default is the target.
    """
    by = await whoami(client)
    while True:
        found = msgspec.convert(await client.list(TEARDOWNS), list[Teardown])
        asked = [item for item in found if item.spec.cause == Cause.REQUESTED and item.spec.target.uid == target.uid]
        # One that is being cancelled is not under way.
        if under_way := next((item for item in asked if not (item.finished or item.metadata.terminating)), None):
            return under_way
        wanted = request_manifest(
            target,
            name=free_name(target.uid, asked),
            by=by,
            plural=plural,
            now=now,
            max_objects=max_objects,
            volumes=volumes,
            title=title,
        )
        try:
            return msgspec.convert(await client.create(TEARDOWNS, manifest(TEARDOWNS, wanted)), Teardown)
        except AlreadyExistsError:
            continue  # the same was requested concurrently


def request_manifest(
    target: ObjectRef,
    *,
    name: str,
    by: str,
    plural: str,
    now: datetime,
    max_objects: int | None = None,
    volumes: VolumePolicy = VolumePolicy.RETAIN,
    title: str = "",
) -> Teardown:
    """The manifest of a requested Teardown (pure)."""
    options = {} if max_objects is None else {MAX_OBJECTS_ANNOTATION: str(max_objects)}
    if volumes is not VolumePolicy.RETAIN:
        options[VOLUMES_ANNOTATION] = volumes.value
    return Teardown(
        metadata=ObjectMeta(name=name, annotations={RESOURCE_ANNOTATION: plural} | options),
        spec=TeardownSpec(
            title=title or str(target),
            target=target,
            cause=Cause.REQUESTED.value,
            requested_at=now.replace(microsecond=0),
            requested_by=by,
        ),
    )


def free_name(uid: str, finished: Iterable[Teardown]) -> str:
    """The name of a new request: from the uid of its target, with a number if there were requests before (pure)."""
    taken = {teardown.metadata.name for teardown in finished}
    name, number = f"{REQUEST_PREFIX}{uid}", 1
    while name in taken:
        number += 1
        name = f"{REQUEST_PREFIX}{uid}-{number}"
    return name


async def whoami(client: Client) -> str:
    """The user name by which the API server knows this client."""
    body = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "metadata": {}}
    answer = await client.create(REVIEWS, body)
    name: str = answer.get("status", {}).get("userInfo", {}).get("username", "")
    return name
