"""What the account may delete that Flux impersonates (`spec.serviceAccountName`): Unwind does no more in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unwind.api.resources import SUBJECT_ACCESS_REVIEWS
from unwind.concurrency import gather_limited
from unwind.deploy.helm_install import parts_of
from unwind.errors import UnwindError
from unwind.kube.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.resources import Resource
    from unwind.helm.release_secrets import ChartManifest
    from unwind.kube.client import Client
    from unwind.members.contents import Content
    from unwind.members.member import Member

_AT_ONCE = 8


class Account(NamedTuple):
    """A ServiceAccount."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"


async def forbidden(client: Client, account: Account, those: Iterable[Content]) -> list[Content]:
    """The objects that an account may not delete. Raises UnwindError if that is unknown."""
    places: dict[tuple[Resource, str], list[Content]] = {}
    for content in those:
        places.setdefault((content.resource, content.metadata.namespace), []).append(content)
    found: list[Content] = []

    async def ask(content: Content) -> None:
        if not await may_delete(client, account, content.resource, content.metadata.namespace, content.metadata.name):
            found.append(content)

    async def look(resource: Resource, namespace: str, some: list[Content]) -> None:
        # Most accounts may delete a whole kind.
        if len(some) == 1 or not await may_delete(client, account, resource, namespace):
            await gather_limited(map(ask, some), limit=_AT_ONCE)

    await gather_limited((look(*place, some) for place, some in places.items()), limit=_AT_ONCE)
    return sorted(found, key=str)


async def may_delete(client: Client, account: Account, resource: Resource, namespace: str, name: str = "") -> bool:
    """Whether an account may delete an object; without a name, all of its kind in the namespace. Raises UnwindError if
    that is unknown."""
    return await may(client, account, "delete", resource, namespace, name)


async def forbidden_hooks(
    member: Member, account: Account, hooks: Iterable[ChartManifest], namespace: str
) -> list[str]:
    """The hooks of an uninstall that an account may not run: Helm creates and deletes them. Raises UnwindError if that
    is unknown. `namespace`: of the release."""
    running = [it for it in hooks if it.on_delete]
    served = {id(part.manifest): part for part in await parts_of(member, running, namespace=namespace)}
    denied: list[str] = []
    for it in running:
        part = served.get(id(it))
        # Of a kind that is not served, nothing can be asked, or run.
        if part is None or not all(
            [
                await may(member.client, account, "create", part.resource, part.namespace),
                await may(member.client, account, "delete", part.resource, part.namespace, it.name),
            ]
        ):
            denied.append(f"{it.kind} {it.name}")
    return denied


async def may(client: Client, account: Account, verb: str, resource: Resource, namespace: str, name: str = "") -> bool:
    """Whether an account has a right. Raises UnwindError if that is unknown."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{account.namespace}", "system:authenticated"]
    attributes = {
        "group": resource.group,
        "version": resource.version,
        "resource": resource.plural,
        "namespace": namespace,
        "name": name,
        "verb": verb,
    }
    body = {
        "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SUBJECT_ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"user": str(account), "groups": groups, "resourceAttributes": attributes},
    }
    try:
        decided = await client.create(SUBJECT_ACCESS_REVIEWS, body)
    except ApiError as error:
        what = f"{resource.kind} {namespace}/{name}"
        raise UnwindError(f"cannot determine whether {account} may {verb} {what}: {error}; will retry") from error
    return (decided.get("status") or {}).get("allowed") is True
