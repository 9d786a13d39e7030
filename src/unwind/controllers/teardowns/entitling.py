"""Whether the manager may delete what somebody asked for: that right is not given to it when it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import AGGREGATE_LABEL
from unwind.api.resources import Resource
from unwind.api.rights import READ
from unwind.concurrency import side_by_side

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """A right that the manager does not have."""

    group: str
    resource: str
    verbs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.verbs)} {self.resource}.{self.group}".rstrip(".")


async def missing(client: Client, entries: Iterable[Entry]) -> tuple[Missing, ...]:
    """The rights that it would take to delete these, and to see that they are gone, as far as they are not there."""
    wanted = {(entry.object.group, entry.resource) for entry in entries}
    found: list[Missing] = []

    async def look(group: str, resource: str) -> None:
        # Everywhere: what is waited for is watched in the whole cluster.
        lacking = [verb for verb in _VERBS if not await _may(client, verb, group, resource)]
        if lacking:
            found.append(Missing(group, resource, tuple(lacking)))

    await side_by_side((look(*one) for one in sorted(wanted)), limit=_AT_ONCE)
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


def unread(error: ApiError) -> Missing:
    """The right that was missing to see what there is, from what the API server answered (pure)."""
    about = error.status.details
    return Missing(about.group if about else "", about.kind if about and about.kind else "*", READ)


def told(lacking: Iterable[Missing]) -> str:
    """Which rights are missing, and how to give them, for people (pure)."""
    some = list(lacking)
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return (
        f"the manager may not {'; '.join(map(str, some[:_SHOWN]))}{more}. It is not given such rights when it is"
        f' installed: make a ClusterRole with them that has the label {AGGREGATE_LABEL}: "true", and ask again'
    )
