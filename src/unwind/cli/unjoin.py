"""`unwind unjoin`: unjoin a member cluster and wait until it is gone."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from unwind.api.karmada import CLUSTERS, Cluster
from unwind.api.meta import find, is_true, ref_of
from unwind.api.names import FORCE_RELEASE_ANNOTATION, KARMADA_CLUSTER_NAMESPACE, ConditionType
from unwind.api.rights import HOME
from unwind.cli import console, ledger, plan, teardowns
from unwind.cli.arguments import Context, Flag, Home, Kubeconfig, Output
from unwind.cli.join import join_way
from unwind.cli.status import seconds_of
from unwind.cli.teardowns import TeardownFollower
from unwind.errors import TimedOutError, UnwindError
from unwind.install.running_managers import running_managers, start_manager
from unwind.karmada import join
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Named
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.preview.cluster_preview import foresee
from unwind.render.text import counted

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from unwind.api.unwind import Teardown
    from unwind.cli.ledger import LedgerRow

FORCED = "unwind unjoin --force"
"""The reason in the ledger of a member that was force-released by this command."""


class UnjoinResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of an unjoin, for JSON output."""

    cluster: str
    gone: bool
    """Whether its Cluster was verified absent."""
    strategy: str = ""
    teardown: str = ""
    phase: str = ""
    removed: str = ""
    why: str = ""
    """Why the member is not unjoined."""
    works: tuple[dict[str, Any], ...] = ()
    """The state of each Work."""
    blockers: tuple[dict[str, Any], ...] = ()
    """The first of the objects that block the unjoin."""
    left: tuple[dict[str, Any], ...] = ()
    """Objects left on the member, each with its reason."""
    credentials: tuple[str, ...] = ()
    """Credentials that were removed from the member."""


def _joined(context: CompletionContext) -> list[tuple[str, str]]:
    """Completions: the names of all members."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        found = msgspec.convert(await client.list(CLUSTERS), list[Cluster])
        return [(item.metadata.name, str(item.removal)) for item in found]

    return teardowns.complete(context, ask)


async def unjoin(
    name: Annotated[str, Parameter(name="NAME", help="The name of the member.", completer=_joined)],
    /,
    *,
    wait: Annotated[str, Parameter(help="How long to wait (60s, 10m); the unjoin continues afterwards.")] = "60s",
    force: Annotated[
        Flag, Parameter(help="Force-release it now with its objects in place; the ledger records each object.")
    ] = False,
    dry_run: Annotated[Flag, Parameter(help="Print what would be removed and what would be kept.")] = False,
    cluster_kubeconfig: Annotated[
        Path | None, Parameter(help="A kubeconfig file of the member, to remove Unwind's credentials from it.")
    ] = None,
    cluster_context: Annotated[
        str | None, Parameter(help="The context in --cluster-kubeconfig; default: its current context.")
    ] = None,
    output: Output = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    unwind_namespace: Home = HOME,
) -> None:
    """Unjoin a member according to its removeStrategy: keep its objects (Needless) or remove them first (Required).

    Objects that cannot be removed are listed with their Work and the reason, and removal is retried: the unjoin
    completes when the blockers are resolved. Exit codes: 0 the member is gone; 1 refused, or removal is blocked; 3
    timed out.
    """
    within = seconds_of(wait, option="--wait") or 0.0
    quiet = output == "json"
    here = kubeconfigs.load(kubeconfig, context=context)
    there = join_way(cluster_kubeconfig, cluster_context) if cluster_kubeconfig else None
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(here, user_agent="unwind-unjoin"))
        cluster = await _find(client, name)
        if dry_run:
            seen = await foresee(client, Named(resource=CLUSTERS, name=name, namespace=""), home=unwind_namespace)
            console.show_json(plan.preview_document(seen)) if quiet else console.show(
                plan.preview_table(seen, wide=True)
            )
            return
        member = await stack.enter_async_context(Client(there, user_agent="unwind-unjoin")) if there else None
        if member:
            await _recognise(member, cluster)
        if not await running_managers(client, unwind_namespace):
            raise UnwindError(
                f"cannot unjoin {name}: no manager is running in namespace {unwind_namespace}",
                remedy=start_manager(unwind_namespace),
            )
        teardown = await _carried_out(client, cluster, force=force, within=within, quiet=quiet)
        rows = (await ledger.read_ledger(client, cluster.metadata.uid, None)).left
        left = tuple(row for row in rows if not row.removed)
        taken = await _take_out(client, member, cluster, quiet=quiet)
    outcome = _outcome(cluster, teardown, gone=True, left=left, credentials=taken)
    console.show_json(outcome) if quiet else _conclude(outcome, left)
    _insist_on_ledger(cluster, teardown, left, force=force)


async def _find(client: Client, name: str) -> Cluster:
    try:
        return await client.get(CLUSTERS, name, type=Cluster)
    except NotFoundError:
        raise UnwindError(
            f"member {name!r} not found", remedy=f"list members with `kubectl get {CLUSTERS.plural}.{CLUSTERS.group}`"
        ) from None
    except ApiError as error:
        if error.code != 404:
            raise
        raise UnwindError(
            "the Karmada Cluster CRD is not installed", remedy="install it with `unwind install`"
        ) from error


async def _recognise(member: Client, cluster: Cluster) -> None:
    """Raise UnwindError before anything is done if --cluster-kubeconfig is not for this member."""
    try:
        found = await member.cluster_uid()
    except (ApiError, UnreachableError) as error:
        remedy = "fix it, or omit it: the credentials then remain in the member"
        raise UnwindError(
            f"cannot reach {cluster.metadata.name} with --cluster-kubeconfig: {error}", remedy=remedy
        ) from error
    if cluster.spec.id and found != cluster.spec.id:
        raise UnwindError(
            f"--cluster-kubeconfig is for cluster {found}, not for {cluster.metadata.name} ({cluster.spec.id})",
            remedy="use the kubeconfig of the member",
        )


async def _carried_out(client: Client, cluster: Cluster, *, force: bool, within: float, quiet: bool) -> Teardown | None:
    """Delete the Cluster and wait until it is gone; returns its Teardown."""
    ref = ref_of(CLUSTERS, cluster.metadata)
    following = TeardownFollower(client, target=ref.uid, title=str(ref), quiet=quiet)
    try:
        await following.until_absent(CLUSTERS, ref, ask=lambda: _ask_for(client, cluster, force=force), within=within)
    except TimeoutError:
        raise await _unfinished(client, cluster, within, quiet=quiet) from None
    return await teardowns.of_target(client, ref.uid) or following.teardown


async def _ask_for(client: Client, cluster: Cluster, *, force: bool) -> None:
    """DELETE this Cluster, with its uid as precondition."""
    meta = cluster.metadata

    async def annotate(value: str | None) -> None:
        patch = {"metadata": {"uid": meta.uid, "annotations": {FORCE_RELEASE_ANNOTATION: value}}}
        await client.patch(CLUSTERS, meta.name, patch, field_manager="unwind-unjoin")

    try:
        if force:  # first, so that nothing is removed from a force-released member
            await annotate(FORCED)
        if not meta.terminating:
            await client.delete(CLUSTERS, meta.name, uid=meta.uid)
    except NotFoundError:
        return  # already gone
    except ConflictError as error:
        raise UnwindError(
            f"cannot unjoin {meta.name}: it was recreated with another uid", remedy="check it and retry"
        ) from error
    except (ApiError, UnreachableError):
        if force and not meta.terminating:
            # The DELETE failed: take the annotation off, so that a later deletion does not skip the removal.
            await annotate(meta.annotations.get(FORCE_RELEASE_ANNOTATION))
        raise


async def _unfinished(client: Client, cluster: Cluster, within: float, *, quiet: bool) -> UnwindError:
    """Print the Works and blockers of a member that is not gone in time, and return the error to raise."""
    name = cluster.metadata.name
    try:
        now = await client.get(CLUSTERS, name, type=Cluster)
        teardown = await teardowns.of_target(client, cluster.metadata.uid)
    except NotFoundError:
        now, teardown = cluster, None
    failed = find(now.status.conditions, ConditionType.UNJOIN_FAILED)
    outcome = _outcome(now, teardown, gone=False, why=failed.message if failed else "")
    if quiet:
        console.show_json(outcome)
    else:
        for work in outcome.works:
            console.announce(f"Work {work['name']}: {work['state']}{_because(work)}")
        for blocker in teardown.status.blockers if teardown else ():
            actor = f" (must act: {blocker.actor})" if blocker.actor else ""
            named = str(blocker.object) in blocker.message
            what = blocker.message if named else f"{blocker.object}: {blocker.message}"
            console.announce(f"{_work(blocker.step)}: {what}{actor}")
    if failed and is_true(now.status.conditions, ConditionType.UNJOIN_FAILED):
        return UnwindError(
            f"cannot unjoin {name}: {failed.message}",
            remedy="the unjoin continues when this is fixed; --force releases it and records each object in the ledger",
        )
    return TimedOutError(
        f"timed out after {within:.0f}s; the unjoin of {name} continues in the background",
        remedy=f"see `unwind status {name}`",
    )


async def _take_out(client: Client, member: Client | None, cluster: Cluster, *, quiet: bool) -> tuple[str, ...]:
    """Remove Unwind's credentials from the member, using the given kubeconfig."""
    name, ref = cluster.metadata.name, cluster.spec.secret_ref
    namespace = ref.namespace if ref else KARMADA_CLUSTER_NAMESPACE
    if member is None:
        if not quiet:
            console.announce(
                f"Unwind's credentials remain in namespace {namespace} of the member; --cluster-kubeconfig removes them"
            )
        return ()
    taken = await join.take_out(member, name, namespace, joined_to=await client.cluster_uid())
    if not quiet and taken:
        console.announce(f"removed from the member: {', '.join(taken)}")
    return tuple(taken)


def _outcome(
    cluster: Cluster,
    teardown: Teardown | None,
    *,
    gone: bool,
    left: tuple[LedgerRow, ...] = (),
    credentials: tuple[str, ...] = (),
    why: str = "",
) -> UnjoinResult:
    status = teardown.status if teardown else None
    blockers = status.blockers if status and not gone else ()
    return UnjoinResult(
        cluster=cluster.metadata.name,
        gone=gone,
        strategy=str(cluster.removal),
        teardown=teardown.metadata.name if teardown else "",
        phase=str(teardown.phase) if teardown else "",
        removed=status.removed if status else "",
        why=why,
        works=tuple(
            {"name": _work(step.name).removeprefix("Work "), "state": step.state, "message": step.message}
            for step in (status.steps if status else ())
        ),
        blockers=tuple(msgspec.to_builtins(blocker) for blocker in blockers),
        left=tuple(msgspec.to_builtins(row) for row in left),
        credentials=credentials,
    )


def _conclude(outcome: UnjoinResult, left: tuple[LedgerRow, ...]) -> None:
    if left:
        console.show(ledger.ledger_table(ledger.Ledger(left=left)))
    stays = f", {counted(len(left), 'object')} left behind" if left else ""
    removed = f", {outcome.removed} objects removed" if outcome.removed and not outcome.removed.startswith("0/") else ""
    console.announce(f"{outcome.cluster} unjoined{removed}{stays}")


def _insist_on_ledger(cluster: Cluster, teardown: Teardown | None, left: tuple[LedgerRow, ...], *, force: bool) -> None:
    """Raise UnwindError if a member was force-released and the ledger does not record all of its objects."""
    if not force:
        return
    name = cluster.metadata.name
    if teardown is None or not teardown.finished:
        raise UnwindError(
            f"{name} is gone, but there is no record of the objects left on it",
            remedy="look for them on the cluster itself",
        )
    if len(left) < teardown.status.left:
        raise UnwindError(
            f"{name} is gone with {teardown.status.left} objects left on it, but the ledger records {len(left)}",
            remedy=f"see `unwind ledger {name}`, and look for the others on the cluster itself",
        )


def _because(work: dict[str, Any]) -> str:
    return f" ({work['message']})" if work["message"] else ""


def _work(step: str) -> str:
    return step.replace("/", " ", 1)
