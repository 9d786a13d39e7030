"""The records that people ask for by name: Teardowns, read and chosen."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.unwind import TEARDOWNS, Cause, Teardown
from unwind.cli import console
from unwind.errors import UnwindError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from cyclopts.completion import CompletionContext

    from unwind.api.resources import Resource
    from unwind.kube.client import Object

# Who presses TAB waits for it.
_PATIENCE = 5.0


async def listed(client: Client, resource: Resource, **selected: Any) -> list[Object]:
    """Every object of a kind of ours; raises an error with a way out where Unwind is not installed."""
    try:
        return await client.list(resource, **selected)
    except ApiError as error:
        if error.code == 404:
            raise UnwindError(
                f"this cluster does not know {resource.kind}s", remedy="`unwind install` puts Unwind into it"
            ) from error
        raise


def readable(found: Iterable[Object]) -> list[Teardown]:
    """Teardowns as values. One that cannot be read is told of, and stops nobody from seeing the others."""
    read = []
    for one in found:
        try:
            read.append(msgspec.convert(one, Teardown))
        except msgspec.ValidationError as error:
            name = one["metadata"]["name"]
            console.announce(f"Teardown {name} cannot be read ({error}): see `kubectl get teardown {name} -o yaml`")
    return read


def meant(ref: ObjectRef, wanted: str | None, namespace: str | None) -> bool:
    """Whether a person means this object: by its name, namespace/name, Kind/name or uid; None means any."""
    if namespace is not None and ref.namespace != namespace:
        return False
    if wanted is None:
        return True
    first, slash, name = wanted.rpartition("/")
    if not slash:
        return wanted in (ref.name, ref.uid)
    return name == ref.name and (first == ref.namespace or first.lower() == ref.kind.lower())


def chosen(all_: Iterable[Teardown], wanted: str | None, namespace: str | None) -> list[Teardown]:
    """Those of what a person means. One that the manager did not write is meant by its own name only."""
    return [
        one
        for one in all_
        if one.metadata.name == wanted or (meant(one.spec.target, wanted, namespace) and not is_set_aside(one))
    ]


def picked(found: Iterable[Object], wanted: str | None, namespace: str | None) -> list[Object]:
    """The same, as the server told of them."""
    return [
        one
        for one in found
        if one["metadata"]["name"] == wanted
        or (
            meant(msgspec.convert(one["spec"]["target"], ObjectRef), wanted, namespace)
            and SET_ASIDE_LABEL not in (one["metadata"].get("labels") or {})
        )
    ]


def is_set_aside(teardown: Teardown) -> bool:
    """Whether the manager ignores it, because the manager did not write it."""
    return SET_ASIDE_LABEL in teardown.metadata.labels


async def of_target(client: Client, uid: str) -> Teardown | None:
    """The manager's record of the target with this uid: named by it, unless that name was taken."""
    try:
        found = await client.get(TEARDOWNS, uid, type=Teardown)
    except NotFoundError:
        found = None
    if found and not is_set_aside(found):
        return found
    every = msgspec.convert(await client.list(TEARDOWNS, labels=f"!{SET_ASIDE_LABEL}"), list[Teardown])
    records = (one for one in every if one.spec.target.uid == uid and one.spec.cause != Cause.REQUESTED)
    return next(records, None)


def described(wanted: str | None, namespace: str | None) -> str:
    """What was asked for, in an error."""
    of = f" of {wanted!r}" if wanted else ""
    return f"{of} in namespace {namespace}" if namespace else of


def names(context: CompletionContext) -> list[tuple[str, str]]:
    """What can be typed for a target: the names of what is, or was, torn down, with how far each is."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        found = msgspec.convert(await client.list(TEARDOWNS), list[Teardown])
        return sorted({one.spec.target.name: f"{one.spec.target.kind}, {one.phase}" for one in found}.items())

    return completed(context, ask)


def completed(
    context: CompletionContext, ask: Callable[[Client], Awaitable[list[tuple[str, str]]]]
) -> list[tuple[str, str]]:
    """What a cluster answers while somebody types; nothing if it does not answer soon."""
    file, name = context.get("kubeconfig"), context.get("context")
    path = Path(file.raw).expanduser() if file and file.raw else None

    async def asked() -> list[tuple[str, str]]:
        connection = kubeconfigs.load(path, context=name.raw if name else None)
        async with asyncio.timeout(_PATIENCE), Client(connection, user_agent="unwind-completion") as client:
            return await ask(client)

    try:
        return asyncio.run(asked())
    except (UnwindError, TimeoutError, OSError, msgspec.ValidationError):
        return []  # there is nobody to tell: a person is in the middle of a line
