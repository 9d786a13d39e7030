"""`unwind release`: force-release a blocked cluster and record who did it and what is left behind."""

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
from unwind.api.names import FORCE_RELEASE_ANNOTATION, FORCE_RELEASE_BY_ANNOTATION, MEMBER_LABEL, RELEASE_FIELD_MANAGER
from unwind.api.resources import Resource
from unwind.api.unwind import TEARDOWNS, Cause, Phase, StepState, Teardown
from unwind.cli import console, teardowns
from unwind.cli import ledger as ledgers
from unwind.cli.arguments import Context, Kubeconfig, Yes
from unwind.cli.status import seconds_of
from unwind.errors import TimedOutError, UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.kube.object_watch import until
from unwind.render.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts.completion import CompletionContext

    from unwind.api.unwind import StepStatus
    from unwind.kube.client import Object

# Kinds that Unwind can block: by Cluster API's hook, or by our own finalizer.
_HELD = (capi.CLUSTERS, capi.CLUSTERS_V1BETA1, karmada.CLUSTERS)
RELEASABLE = (Cause.CLUSTER_DELETED.value, Cause.UNJOINED.value)
"""Causes of teardowns whose target can be released before everything is removed."""
_NAMED = 20


class ReleaseTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster object of any supported kind."""

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
        going = [cluster for cluster in await clusters(client) if cluster.metadata.terminating]
        return [(item.metadata.name, str(item)) for item in going]

    return teardowns.complete(context, ask)


async def release(
    cluster: Annotated[
        str,
        Parameter(name="CLUSTER", help="A cluster that is being deleted: NAME, or NAMESPACE/NAME.", completer=_leaving),
    ],
    /,
    *,
    reason: Annotated[str, Parameter(help="Why it is released; recorded in the ledger with your user name.")],
    namespace: Annotated[
        str | None, Parameter(name=["--namespace", "-n"], help="The namespace of the cluster.")
    ] = None,
    yes: Yes = False,
    timeout: Annotated[  # noqa: ASYNC109 - what a person types
        str, Parameter(help="How long to wait for the manager to release it, then exit with 3.")
    ] = "2m",
    output: Annotated[
        Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"], help="Output format of the ledger.")
    ] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Force-release a cluster whose deletion is blocked, and record what is left behind.

    Shows what would be left behind first. The manager releases the cluster and records in the ledger who did it, why,
    and each object that remains; see `unwind ledger CLUSTER`.
    """
    within = seconds_of(timeout, option="--timeout") or 0.0
    if not reason.strip():
        raise UsageError("--reason is empty", remedy="state why the cluster is released; it is recorded in the ledger")
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-release") as client:
        found = await _find(client, cluster, namespace)
        teardown = await held_teardown(client, found)
        left = await standing_objects(client, found, teardown, unreadable=console.announce)
        _warn(found, teardown, left)
        if not yes:
            console.confirm(
                f"Type the name of the cluster ({found.metadata.name}) to release it: ", expected=found.metadata.name
            )
        if remark := await request_release(client, found, reason.strip()):
            console.announce(remark)
        ended = await _ended(client, found, teardown.metadata.name, within)
        whole = await ledgers.read_ledger(client, found.metadata.uid, None)
    if output == "json":
        console.show_json(msgspec.to_builtins(whole))
        return
    if output == "yaml":
        console.show_objects([msgspec.to_builtins(whole)], "yaml")
        return
    console.show(Text.assemble((str(found), "bold"), f" is released: {ended.phase}."))
    if whole.left or whole.released:
        console.show(ledgers.ledger_table(whole))


async def clusters(client: Client) -> list[ReleaseTarget]:
    """All clusters of the kinds that Unwind can block."""
    found: dict[str, ReleaseTarget] = {}
    for resource in _HELD:
        try:
            objects = await client.list(resource)
        except ApiError as error:
            if error.code == 404:
                continue  # this kind or version is not installed
            raise
        for item in objects:
            metadata = msgspec.convert(item["metadata"], ObjectMeta)
            found.setdefault(metadata.uid, ReleaseTarget(resource=resource, metadata=metadata))
    return list(found.values())


async def _find(client: Client, wanted: str, namespace: str | None) -> ReleaseTarget:
    """The selected cluster that is being deleted; raises UnwindError if it is not exactly one."""
    every = [cluster for cluster in await clusters(client) if teardowns.is_selected(cluster.ref, wanted, namespace)]
    where = f" in namespace {namespace}" if namespace else ""
    if not every:
        raise UnwindError(
            f"cannot release cluster {wanted!r}: not found{where}",
            remedy="list clusters with `kubectl get clusters -A`",
        )
    # Two systems may have a cluster of the same name; only the one being deleted is selected.
    going = [item for item in every if item.metadata.terminating]
    if not going:
        one = every[0]
        raise UnwindError(
            f"cannot release {one}: it is not being deleted",
            remedy=f"delete it first with `{_deletion(one)}`",
        )
    if len(going) > 1:
        listed = ", ".join(f"{item.metadata.namespace or item.resource.group}/{item.metadata.name}" for item in going)
        raise UnwindError(
            f"cannot release cluster {wanted!r}: several are being deleted{where}: {listed}", remedy="use --namespace"
        )
    return going[0]


def _deletion(one: ReleaseTarget) -> str:
    where = f" -n {one.metadata.namespace}" if one.metadata.namespace else ""
    return f"kubectl delete {one.resource.plural}.{one.resource.group}{where} {one.metadata.name}"


async def target_of(client: Client, teardown: Teardown) -> ReleaseTarget:
    """The cluster that a Teardown deletes, read now; raises UnwindError if it cannot be released.

    Users can create Teardowns that name any target: only the manager's record of a cluster leads to it.
    """
    ref = teardown.spec.target
    if not can_be_released(teardown):
        raise UnwindError(
            f"cannot release {teardown.spec.title}: its teardown is finished, or is not that of a cluster",
            remedy="see its page again",
        )
    for resource in _resources_of(ref):
        try:
            read = await client.get(resource, ref.name, namespace=ref.namespace or None)
        except NotFoundError:
            break
        except ApiError as error:
            if error.code == 404:
                continue  # this version is not installed
            raise
        found = ReleaseTarget(resource=resource, metadata=msgspec.convert(read["metadata"], ObjectMeta))
        if found.metadata.uid != ref.uid:
            break
        if not found.metadata.terminating:
            raise UnwindError(
                f"cannot release {found}: it is not being deleted", remedy=f"delete it first with `{_deletion(found)}`"
            )
        record = await held_teardown(client, found)
        if record.metadata.uid != teardown.metadata.uid:
            raise UnwindError(
                f"cannot release {found}: Teardown {teardown.metadata.name} is not its record",
                remedy=f"see Teardown {record.metadata.name}",
            )
        return found
    raise UnwindError(f"cannot release {ref}: it is gone, or was recreated", remedy="see `unwind ledger`")


def can_be_released(teardown: Teardown) -> bool:
    """Whether a Teardown holds a cluster that can be released before everything is removed (pure)."""
    spec = teardown.spec
    releasable = spec.cause in RELEASABLE and bool(_resources_of(spec.target))
    return releasable and not (teardown.finished or teardowns.is_set_aside(teardown))


def resource_of(ref: ObjectRef) -> Resource:
    """The resource of a cluster that Unwind can block (pure). Its version may not be served."""
    return _resources_of(ref)[0]


def _resources_of(ref: ObjectRef) -> list[Resource]:
    return [resource for resource in _HELD if (resource.group, resource.kind) == (ref.group, ref.kind)]


async def held_teardown(client: Client, found: ReleaseTarget) -> Teardown:
    """The unfinished Teardown that blocks the cluster."""
    teardown = await teardowns.of_target(client, found.metadata.uid)
    if teardown is None:
        raise UnwindError(
            f"cannot release {found}: it has no Teardown",
            remedy="Unwind does not block it, or no manager is running; see `unwind version` and `kubectl describe`",
        )
    if teardown.finished:
        raise UnwindError(
            f"cannot release {found}: its teardown is finished ({teardown.phase}), Unwind does not block it",
            remedy=f"see `unwind ledger {found.metadata.name}` and `unwind why` for what blocks it now",
        )
    return teardown


async def standing_objects(
    client: Client, found: ReleaseTarget, teardown: Teardown, *, unreadable: Callable[[str], None]
) -> list[ObjectRef]:
    """The objects that would be left behind now, from the inventories. `unreadable`: told about each Inventory that
    cannot be read."""
    left: list[ObjectRef] = []
    # The Inventories are written later than the status: their entries may still be there when a step is removed.
    removed = owners_of_removed_steps(teardown)
    labels = f"{MEMBER_LABEL}={found.metadata.uid}"
    async with aclosing(ledgers.inventories(client, labels=labels, unreadable=unreadable)) as every:
        async for inventory in every:
            if inventory.spec.owner.uid not in removed:
                left += ledgers.standing(inventory)
    return left


def owners_of_removed_steps(teardown: Teardown) -> set[str]:
    """The uids of the owners whose objects are all verified absent, by the status of a Teardown (pure)."""
    states = teardown.status.unambiguous_steps
    steps = teardown.spec.plan.steps if teardown.spec.plan else ()
    removed = {step.object.uid for step in steps if _is_removed(states.get(step.name))}
    return removed - {step.object.uid for step in steps if not _is_removed(states.get(step.name))}


def _is_removed(step: StepStatus | None) -> bool:
    return step is not None and StepState.read(step.state) is StepState.REMOVED


def _warn(found: ReleaseTarget, teardown: Teardown, left: list[ObjectRef]) -> None:
    said = console.announce
    said(f"{found} is {teardown.phase}; {teardown.status.removed or '0/0'} objects removed.")
    for blocker in teardown.status.blockers[:3]:
        said(f"  blocked: {blocker.message or blocker.object}")
    if not left:
        said("No recorded object would be left behind.")
        return
    kinds = Counter(ref.kind for ref in left)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items(), key=lambda one: (-one[1], one[0])))
    said(f"{counted(len(left), 'object')} would be left behind (not verified absent): {told}")
    for ref in left[:_NAMED]:
        said(f"  {ref}")
    if len(left) > _NAMED:
        said(f"  and {len(left) - _NAMED} more")


async def request_release(client: Client, found: ReleaseTarget, reason: str) -> str:
    """Annotate the cluster for force-release, with its uid as precondition: it may have been recreated. Returns why
    that was not needed, if it was not."""
    name, namespace = found.metadata.name, found.metadata.namespace or None
    while True:
        try:
            now = msgspec.convert((await client.get(found.resource, name, namespace=namespace))["metadata"], ObjectMeta)
        except NotFoundError:
            return f"{found} is already gone."
        if now.uid != found.metadata.uid:
            raise UnwindError(f"cannot release {found}: it was recreated with another uid", remedy="check it and retry")
        said = now.annotations.get(FORCE_RELEASE_ANNOTATION)
        if said is not None:
            # The first request is kept as it is, because the ledger names its author.
            by = now.annotations.get(FORCE_RELEASE_BY_ANNOTATION, "another user")
            return f"release already requested by {by}: {said}"
        guard = {"uid": now.uid, "resourceVersion": now.resource_version}
        patch = {"metadata": guard | {"annotations": {FORCE_RELEASE_ANNOTATION: reason}}}
        # On a concurrent write, which may itself be a release, read the cluster again.
        with suppress(ConflictError, NotFoundError):
            await client.patch(found.resource, name, patch, namespace=namespace, field_manager=RELEASE_FIELD_MANAGER)
            return ""


async def _ended(client: Client, found: ReleaseTarget, name: str, within: float) -> Teardown:
    """The finished Teardown of this name, waited for by watch."""

    def over(obj: Object | None) -> bool:
        return obj is not None and msgspec.convert(obj, Teardown).finished

    try:
        async with asyncio.timeout(within):
            ended = await until(client, TEARDOWNS, name, over, Phase.RELEASED, within=within + 60)
    except TimeoutError:
        raise TimedOutError(
            f"timed out after {within:.0f}s waiting for the manager to release {found}; the request remains",
            remedy="check that a manager is running with `unwind version`",
        ) from None
    return msgspec.convert(ended, Teardown)
