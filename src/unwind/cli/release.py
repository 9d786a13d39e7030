"""`unwind release`: let a cluster go that is held, with a record of who did it and of all that is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter
from rich.text import Text

from unwind.api import capi, karmada
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.names import (
    FORCE_RELEASE_ANNOTATION,
    FORCE_RELEASE_BY_ANNOTATION,
    MEMBER_LABEL,
    RELEASE_FIELD_MANAGER,
)
from unwind.api.resources import Resource
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.cli import console, documents, records
from unwind.cli import ledger as ledgers
from unwind.cli.install import Context, Kubeconfig  # noqa: TC001 - cyclopts reads the annotations
from unwind.cli.status import span
from unwind.errors import TimedOutError, UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.local.waiting import until
from unwind.picturing.text import counted

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from unwind.kube.client import Object

# What can be held: by Cluster API, which asks our hook, or by our own finalizer.
_HELD = (capi.CLUSTERS, capi.CLUSTERS_V1BETA1, karmada.CLUSTERS)
_NAMED = 20


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that a person means."""

    resource: Resource
    metadata: ObjectMeta

    @property
    def ref(self) -> ObjectRef:
        return ref_of(self.resource, self.metadata)

    def __str__(self) -> str:
        return str(self.ref)


def _leaving(context: CompletionContext) -> list[tuple[str, str]]:
    """The names of clusters that are being deleted."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        going = [one for one in await clusters(client) if one.metadata.terminating]
        return [(one.metadata.name, str(one)) for one in going]

    return records.completed(context, ask)


async def release(
    cluster: Annotated[
        str,
        Parameter(name="CLUSTER", help="A cluster that is being deleted: NAME, or NAMESPACE/NAME.", completer=_leaving),
    ],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why it may go; it is written down with who you are.")],
    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"], help="The namespace it is in.")] = None,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask.")] = False,
    timeout: Annotated[  # noqa: ASYNC109 - what a person types
        str, Parameter(help="How long to wait for the manager to let it go; then exit with 3.")
    ] = "2m",
    output: Annotated[
        Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"], help="How to print the ledger.")
    ] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Let a cluster go now that is being deleted and held, and name everything that is left behind.

    What would be left is shown before. The manager lets the cluster go, and writes into the ledger who did it, why, and
    each object that stays: `unwind ledger CLUSTER` shows it later.
    """
    within = span(timeout, option="--timeout") or 0.0
    if not reason.strip():
        raise UsageError("--reason says nothing", remedy="say why it may go: it goes into the ledger")
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-release") as client:
        found = await _find(client, cluster, namespace)
        teardown = await _held(client, found)
        left = await _standing(client, found)
        _warn(found, teardown, left)
        if not yes:
            console.ask(f"Type its name to let it go: {found.metadata.name} ? ", expected=found.metadata.name)
        await _let_go(client, found, reason.strip())
        ended = await _ended(client, found, teardown.metadata.name, within)
        whole = await ledgers.read(client, found.metadata.uid, None)
    if output == "json":
        console.show_json(msgspec.to_builtins(whole))
        return
    if output == "yaml":
        documents.show([msgspec.to_builtins(whole)], "yaml")
        return
    console.show(Text.assemble((str(found), "bold"), f" is free to go: {ended.phase}."))
    if whole.left or whole.released:
        console.show(ledgers.table(whole))


async def clusters(client: Client) -> list[Found]:
    """Every cluster that Unwind could hold."""
    found: dict[str, Found] = {}
    for resource in _HELD:
        try:
            objects = await client.list(resource)
        except ApiError as error:
            if error.code == 404:
                continue  # this system is not here, or not in this version
            raise
        for one in objects:
            metadata = msgspec.convert(one["metadata"], ObjectMeta)
            found.setdefault(metadata.uid, Found(resource=resource, metadata=metadata))
    return list(found.values())


async def _find(client: Client, wanted: str, namespace: str | None) -> Found:
    """The one cluster that is meant, and that is being deleted."""
    every = [one for one in await clusters(client) if records.meant(one.ref, wanted, namespace)]
    where = records.described(wanted, namespace)
    if not every:
        raise UnwindError(f"there is no cluster{where}", remedy="`kubectl get clusters -A` lists them")
    # Two systems may have a cluster of the same name; who is not being deleted is not meant.
    going = [one for one in every if one.metadata.terminating]
    if not going:
        one = every[0]
        raise UnwindError(
            f"{one} is not being deleted, so nothing holds it",
            remedy=f"`{_deletion(one)}` begins with it",
        )
    if len(going) > 1:
        listed = ", ".join(f"{one.metadata.namespace or one.resource.group}/{one.metadata.name}" for one in going)
        raise UnwindError(f"several clusters{where} are being deleted: {listed}", remedy="say which, with --namespace")
    return going[0]


def _deletion(one: Found) -> str:
    where = f" -n {one.metadata.namespace}" if one.metadata.namespace else ""
    return f"kubectl delete {one.resource.plural}.{one.resource.group}{where} {one.metadata.name}"


async def _held(client: Client, found: Found) -> Teardown:
    """The Teardown that holds it."""
    teardown = await records.of_target(client, found.metadata.uid)
    if teardown is None:
        raise UnwindError(
            f"{found} is being deleted, and there is no Teardown of it",
            remedy="either Unwind does not hold it, or no manager runs: see `kubectl describe` of it",
        )
    if teardown.finished:
        raise UnwindError(
            f"the teardown of {found} is finished ({teardown.phase}): Unwind does not hold it",
            remedy=f"`unwind ledger {found.metadata.name}` shows what was left, `kubectl describe` what holds it now",
        )
    return teardown


async def _standing(client: Client, found: Found) -> list[ObjectRef]:
    """What would be left if it went now, as far as it is written down."""
    left: list[ObjectRef] = []
    async with aclosing(ledgers.inventories(client, labels=f"{MEMBER_LABEL}={found.metadata.uid}")) as every:
        async for inventory in every:
            left += ledgers.standing(inventory)
    return left


def _warn(found: Found, teardown: Teardown, left: list[ObjectRef]) -> None:
    said = console.announce
    said(f"{found} is {teardown.phase}; {teardown.status.removed or '0/0'} objects were seen to be gone.")
    for blocker in teardown.status.blockers[:3]:
        said(f"  it waits: {blocker.message or blocker.object}")
    if not left:
        said("Nothing that is written down would be left.")
        return
    kinds = Counter(ref.kind for ref in left)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda one: (-one[1], one[0])))
    said(f"{counted(len(left), 'object')} would be left (what is not known to be gone): {told}")
    for ref in left[:_NAMED]:
        said(f"  {ref}")
    if len(left) > _NAMED:
        said(f"  and {len(left) - _NAMED} more")


async def _let_go(client: Client, found: Found, reason: str) -> None:
    """Say on the cluster that it may go: on this one, and not on another that got its name meanwhile."""
    name, namespace = found.metadata.name, found.metadata.namespace or None
    while True:
        try:
            now = msgspec.convert((await client.get(found.resource, name, namespace=namespace))["metadata"], ObjectMeta)
        except NotFoundError:
            console.announce(f"{found} is gone meanwhile.")
            return
        if now.uid != found.metadata.uid:
            raise UnwindError(f"{found} is another one meanwhile", remedy="look at it again, and decide anew")
        said = now.annotations.get(FORCE_RELEASE_ANNOTATION)
        if said is not None:
            # What they said stays as it is: who was first is in the ledger.
            by = now.annotations.get(FORCE_RELEASE_BY_ANNOTATION, "somebody")
            console.announce(f"{by} has let it go already, and said: {said}")
            return
        guard = {"uid": now.uid, "resourceVersion": now.resource_version}
        patch = {"metadata": guard | {"annotations": {FORCE_RELEASE_ANNOTATION: reason}}}
        # Somebody may write to it at the same time, and even let it go: then it is looked at anew.
        with suppress(ConflictError, NotFoundError):
            await client.patch(found.resource, name, patch, namespace=namespace, field_manager=RELEASE_FIELD_MANAGER)
            return


async def _ended(client: Client, found: Found, name: str, within: float) -> Teardown:
    """The Teardown of this name at its end; told by watch."""

    def over(obj: Object | None) -> bool:
        return obj is not None and msgspec.convert(obj, Teardown).finished

    try:
        async with asyncio.timeout(within):
            ended = await until(client, TEARDOWNS, name, over, Phase.RELEASED, within=within + 60)
    except TimeoutError:
        raise TimedOutError(
            f"{found} was told that it may go, and no manager has let it go in {within:.0f} s",
            remedy="see that one runs (`unwind version` tells); it does so as soon as it does",
        ) from None
    return msgspec.convert(ended, Teardown)
