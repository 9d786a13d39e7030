"""List and select Teardowns by the name of their target."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.names import SET_ASIDE_LABEL
from unwind.api.unwind import TEARDOWNS, Cause, Phase, Teardown
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

# Kept short: shell completion waits for it.
_PATIENCE = 5.0


async def listed(client: Client, resource: Resource, **selected: Any) -> list[Object]:
    """All objects of one of Unwind's kinds; raises UnwindError if the CRD is not installed."""
    try:
        return await client.list(resource, **selected)
    except ApiError as error:
        if error.code == 404:
            raise UnwindError(
                f"the CRD of {resource.kind} is not installed", remedy="install it with `unwind install`"
            ) from error
        raise


def readable(found: Iterable[Object]) -> list[Teardown]:
    """Decoded Teardowns. One that cannot be decoded is reported and skipped."""
    read = []
    for obj in found:
        try:
            read.append(msgspec.convert(obj, Teardown))
        except msgspec.ValidationError as error:
            name = obj["metadata"]["name"]
            console.announce(f"cannot read Teardown {name}: {error}; see `kubectl get teardown {name} -o yaml`")
    return read


def meant(ref: ObjectRef, wanted: str | None, namespace: str | None) -> bool:
    """Whether `wanted` selects this object: name, namespace/name, Kind/name or uid; None selects any."""
    if namespace is not None and ref.namespace != namespace:
        return False
    if wanted is None:
        return True
    first, slash, name = wanted.rpartition("/")
    if not slash:
        return wanted in (ref.name, ref.uid)
    return name == ref.name and (first == ref.namespace or first.lower() == ref.kind.lower())


def chosen(
    all_: Iterable[Teardown], wanted: str | None, namespace: str | None, *, finished: bool = True
) -> list[Teardown]:
    """The selected Teardowns: by their target, or by the cluster that their objects are on. One that the manager did
    not write is selected by its own name only. `finished`: also finished ones of that cluster."""
    return [
        teardown
        for teardown in all_
        if teardown.metadata.name == wanted
        or (
            not is_set_aside(teardown)
            and (
                meant(teardown.spec.target, wanted, namespace)
                or _is_on(teardown.spec.member, wanted, namespace, shown=finished or not teardown.finished)
            )
        )
    ]


def picked(found: Iterable[Object], wanted: str | None, namespace: str | None) -> list[Object]:
    """The same selection on undecoded objects, without finished ones of a cluster."""

    def selected(obj: Object) -> bool:
        spec = obj["spec"]
        target, member = (msgspec.convert(spec.get(field) or {}, ObjectRef) for field in ("target", "member"))
        phase = Phase.read((obj.get("status") or {}).get("phase") or "")
        ended = isinstance(phase, Phase) and phase.finished
        return meant(target, wanted, namespace) or _is_on(member, wanted, namespace, shown=not ended)

    return [
        obj
        for obj in found
        if obj["metadata"]["name"] == wanted
        or (SET_ASIDE_LABEL not in (obj["metadata"].get("labels") or {}) and selected(obj))
    ]


def _is_on(member: ObjectRef | None, wanted: str | None, namespace: str | None, *, shown: bool) -> bool:
    """Whether `wanted` selects the cluster that the objects of a withdrawal are on."""
    return shown and member is not None and bool(member.name) and meant(member, wanted, namespace)


def is_set_aside(teardown: Teardown) -> bool:
    """Whether the manager ignores this Teardown, because it did not write it."""
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
    records = (item for item in every if item.spec.target.uid == uid and item.spec.cause != Cause.REQUESTED)
    return next(records, None)


def described(wanted: str | None, namespace: str | None) -> str:
    """The selection as a suffix for messages."""
    of = f" of {wanted!r}" if wanted else ""
    return f"{of} in namespace {namespace}" if namespace else of


def names(context: CompletionContext) -> list[tuple[str, str]]:
    """Completions for a target: the names of torn-down targets, with their phases."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        found = msgspec.convert(await client.list(TEARDOWNS), list[Teardown])
        return sorted({item.spec.target.name: f"{item.spec.target.kind}, {item.phase}" for item in found}.items())

    return completed(context, ask)


def completed(
    context: CompletionContext, ask: Callable[[Client], Awaitable[list[tuple[str, str]]]]
) -> list[tuple[str, str]]:
    """Completions from the cluster; none if it does not answer quickly."""
    file, name = context.get("kubeconfig"), context.get("context")
    path = Path(file.raw).expanduser() if file and file.raw else None

    async def asked() -> list[tuple[str, str]]:
        connection = kubeconfigs.load(path, context=name.raw if name else None)
        async with asyncio.timeout(_PATIENCE), Client(connection, user_agent="unwind-completion") as client:
            return await ask(client)

    try:
        return asyncio.run(asked())
    except (UnwindError, TimeoutError, OSError, msgspec.ValidationError):
        return []  # an error message would disturb the line that is being typed
