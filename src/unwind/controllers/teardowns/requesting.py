"""Asking for a teardown: the Teardown that a person writes, by way of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectMeta, manifest
from unwind.api.names import MAX_OBJECTS_ANNOTATION, REQUEST_PREFIX, RESOURCE_ANNOTATION, VOLUMES_ANNOTATION
from unwind.api.policies import VolumePolicy
from unwind.api.resources import Resource
from unwind.api.unwind import TEARDOWNS, Cause, Teardown, TeardownSpec
from unwind.kube.errors import AlreadyExistsError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Client

REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


async def request(
    client: Client,
    target: ObjectRef,
    *,
    plural: str,
    now: datetime,
    max_objects: int | None = None,
    volumes: VolumePolicy = VolumePolicy.RETAIN,
) -> Teardown:
    """The Teardown that has the target deleted: a new one, or one that somebody has asked for and is not finished.

    It has no plan yet. That is made by who carries it out, from what there is then.
    """
    by = await whoami(client)
    while True:
        found = msgspec.convert(await client.list(TEARDOWNS), list[Teardown])
        asked = [one for one in found if one.spec.cause == Cause.REQUESTED and one.spec.target.uid == target.uid]
        if under_way := next((one for one in asked if not one.finished), None):
            return under_way
        wanted = written(
            target,
            name=free_name(target.uid, asked),
            by=by,
            plural=plural,
            now=now,
            max_objects=max_objects,
            volumes=volumes,
        )
        try:
            return msgspec.convert(await client.create(TEARDOWNS, manifest(TEARDOWNS, wanted)), Teardown)
        except AlreadyExistsError:
            continue  # somebody else has asked for the same in this moment


def written(
    target: ObjectRef,
    *,
    name: str,
    by: str,
    plural: str,
    now: datetime,
    max_objects: int | None = None,
    volumes: VolumePolicy = VolumePolicy.RETAIN,
) -> Teardown:
    """The Teardown as it is written (pure)."""
    said = {} if max_objects is None else {MAX_OBJECTS_ANNOTATION: str(max_objects)}
    if volumes is not VolumePolicy.RETAIN:
        said[VOLUMES_ANNOTATION] = volumes.value
    return Teardown(
        metadata=ObjectMeta(name=name, annotations={RESOURCE_ANNOTATION: plural} | said),
        spec=TeardownSpec(
            title=str(target),
            target=target,
            cause=Cause.REQUESTED.value,
            requested_at=now.replace(microsecond=0),
            requested_by=by,
        ),
    )


def free_name(uid: str, finished: Iterable[Teardown]) -> str:
    """The name of a new request: after its target, and counted where there were some before (pure)."""
    taken = {one.metadata.name for one in finished}
    name, number = f"{REQUEST_PREFIX}{uid}", 1
    while name in taken:
        number += 1
        name = f"{REQUEST_PREFIX}{uid}-{number}"
    return name


async def whoami(client: Client) -> str:
    """Who the API server takes us for."""
    body = {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "metadata": {}}
    answer = await client.create(REVIEWS, body)
    name: str = answer.get("status", {}).get("userInfo", {}).get("username", "")
    return name
