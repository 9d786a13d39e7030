"""`unwind unjoin`: have a member leave, and see it through."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from cyclopts import Parameter

from unwind.api.conditions import find, is_true
from unwind.api.karmada import CLUSTERS, Cluster
from unwind.api.meta import ref_of
from unwind.api.names import FORCE_RELEASE_ANNOTATION, KARMADA_CLUSTER_NAMESPACE, ConditionType
from unwind.api.rights import HOME
from unwind.cli import console, foreseen, ledger, records
from unwind.cli.following import Following
from unwind.cli.install import Context, Kubeconfig  # noqa: TC001 - cyclopts reads the annotations
from unwind.cli.join import way_to
from unwind.cli.status import span
from unwind.cli.targets import Home  # noqa: TC001 - cyclopts reads the annotations
from unwind.controllers.foreseeing import foresee
from unwind.errors import TimedOutError, UnwindError
from unwind.fleet import joining
from unwind.installing import managers
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.kube.naming import Named
from unwind.picturing.text import counted

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

    from unwind.api.unwind import Teardown
    from unwind.cli.ledger import Left

FORCED = "unwind unjoin --force"
"""What the ledger says of a member that was let go like this."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What became of a member, for machines."""

    cluster: str
    gone: bool
    """Whether its Cluster was seen to be absent."""
    strategy: str = ""
    teardown: str = ""
    phase: str = ""
    removed: str = ""
    why: str = ""
    """Why it is still there."""
    works: tuple[dict[str, Any], ...] = ()
    """Each Work, and how far it has come."""
    blockers: tuple[dict[str, Any], ...] = ()
    """Each object that is waited for; the first of them."""
    left: tuple[dict[str, Any], ...] = ()
    """What stays on the member, each with why."""
    credentials: tuple[str, ...] = ()
    """What was taken out of the member."""


def _joined(context: CompletionContext) -> list[tuple[str, str]]:
    """The names of all members."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        found = msgspec.convert(await client.list(CLUSTERS), list[Cluster])
        return [(one.metadata.name, str(one.removal)) for one in found]

    return records.completed(context, ask)


async def unjoin(
    name: Annotated[str, Parameter(name="NAME", help="The member.", completer=_joined)],
    /,
    *,
    wait: Annotated[str, Parameter(help="How long to stay (60s, 10m); it goes on afterwards.")] = "60s",
    force: Annotated[
        bool,
        Parameter(negative="", help="Let it go now, whatever is still on it: the ledger names each object."),
    ] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Print what would go, what would stay, and how.")] = False,
    cluster_kubeconfig: Annotated[
        Path | None, Parameter(help="A kubeconfig file of the member, to take our credentials out of it.")
    ] = None,
    cluster_context: Annotated[
        str | None, Parameter(help="The context in that one, instead of the current one.")
    ] = None,
    output: Annotated[Literal["table", "json"], Parameter(name=["--output", "-o"], help="How to print it.")] = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    unwind_namespace: Home = HOME,
) -> None:
    """Have a member leave, as its removeStrategy says: what is on it stays (Needless) or has to go before (Required).

    What cannot be removed is named, with its Work and why, and goes on being tried: the member leaves by itself when
    the obstacle is gone. Exits with 0 if the member is gone, 1 if it is refused or something cannot be removed, 3 if
    the time is over.
    """
    within = span(wait, option="--wait") or 0.0
    quiet = output == "json"
    here = kubeconfigs.load(kubeconfig, context=context)
    there = way_to(cluster_kubeconfig, cluster_context) if cluster_kubeconfig else None
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(here, user_agent="unwind-unjoin"))
        cluster = await _find(client, name)
        if dry_run:
            seen = await foresee(client, Named(resource=CLUSTERS, name=name, namespace=""), home=unwind_namespace)
            console.show_json(foreseen.document(seen)) if quiet else console.show(foreseen.table(seen, wide=True))
            return
        member = await stack.enter_async_context(Client(there, user_agent="unwind-unjoin")) if there else None
        if member:
            await _recognise(member, cluster)
        if not await managers.alive(client, unwind_namespace):
            raise UnwindError(
                f"no manager is running in {unwind_namespace}, so nobody would carry it out",
                remedy="start one with `unwind run`",
            )
        teardown = await _carried_out(client, cluster, force=force, within=within, quiet=quiet)
        left = (await ledger.read(client, cluster.metadata.uid, None)).left
        taken = await _take_out(client, member, cluster, quiet=quiet)
    outcome = _outcome(cluster, teardown, gone=True, left=left, credentials=taken)
    console.show_json(outcome) if quiet else _conclude(outcome, left)
    _insist_on_ledger(cluster, teardown, left, force=force)


async def _find(client: Client, name: str) -> Cluster:
    try:
        return await client.get(CLUSTERS, name, type=Cluster)
    except NotFoundError:
        raise UnwindError(
            f"there is no member {name!r}", remedy=f"`kubectl get {CLUSTERS.plural}.{CLUSTERS.group}` lists them"
        ) from None
    except ApiError as error:
        if error.code != 404:
            raise
        raise UnwindError("this cluster knows no members", remedy="`unwind install` puts Unwind into it") from error


async def _recognise(member: Client, cluster: Cluster) -> None:
    """Before anything is done: is this the member that leaves?"""
    try:
        found = await member.cluster_uid()
    except (ApiError, UnreachableError) as error:
        remedy = "mend it, or go without: its credentials stay in the member then"
        raise UnwindError(
            f"--cluster-kubeconfig does not lead to {cluster.metadata.name}: {error}", remedy=remedy
        ) from error
    if cluster.spec.id and found != cluster.spec.id:
        raise UnwindError(
            f"--cluster-kubeconfig leads to another cluster ({found}) than {cluster.metadata.name} ({cluster.spec.id})",
            remedy="name the member's own",
        )


async def _carried_out(client: Client, cluster: Cluster, *, force: bool, within: float, quiet: bool) -> Teardown | None:
    """Have it deleted, and stay until it is gone; the record of it."""
    ref = ref_of(CLUSTERS, cluster.metadata)
    following = Following(client, target=ref.uid, title=str(ref), quiet=quiet)
    try:
        await following.until_absent(CLUSTERS, ref, ask=lambda: _ask_for(client, cluster, force=force), within=within)
    except TimeoutError:
        raise await _unfinished(client, cluster, within, quiet=quiet) from None
    return await records.of_target(client, ref.uid) or following.teardown


async def _ask_for(client: Client, cluster: Cluster, *, force: bool) -> None:
    """Ask for the deletion of exactly this Cluster."""
    meta = cluster.metadata

    async def annotate(value: str | None) -> None:
        patch = {"metadata": {"uid": meta.uid, "annotations": {FORCE_RELEASE_ANNOTATION: value}}}
        await client.patch(CLUSTERS, meta.name, patch, field_manager="unwind-unjoin")

    try:
        if force:  # before: nothing shall be removed from a member that is let go
            await annotate(FORCED)
        if not meta.terminating:
            await client.delete(CLUSTERS, meta.name, uid=meta.uid)
    except NotFoundError:
        return  # it went meanwhile, as it should
    except ConflictError as error:
        raise UnwindError(f"{meta.name} is another member by now", remedy="look at it, and ask again") from error
    except (ApiError, UnreachableError):
        if force and not meta.terminating:
            # It is not deleted, so it must not go without a removal when it is one day.
            await annotate(meta.annotations.get(FORCE_RELEASE_ANNOTATION))
        raise


async def _unfinished(client: Client, cluster: Cluster, within: float, *, quiet: bool) -> UnwindError:
    """What to say of a member that is still there when the time is over: each Work and each object, and why."""
    name = cluster.metadata.name
    try:
        now = await client.get(CLUSTERS, name, type=Cluster)
        teardown = await records.of_target(client, cluster.metadata.uid)
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
            console.announce(f"{_work(blocker.step)}: {blocker.object}: {blocker.message}{actor}")
    if failed and is_true(now.status.conditions, ConditionType.UNJOIN_FAILED):
        return UnwindError(
            f"{name} is not unjoined: {failed.message}",
            remedy="it goes on when that is mended; --force lets it go, with each object named in the ledger",
        )
    return TimedOutError(
        f"{name} was not gone after {within:.0f} s, and goes on leaving",
        remedy=f"`unwind status {name}` says how far it is",
    )


async def _take_out(client: Client, member: Client | None, cluster: Cluster, *, quiet: bool) -> tuple[str, ...]:
    """Take our credentials out of the member, by another way in than those."""
    name, ref = cluster.metadata.name, cluster.spec.secret_ref
    namespace = ref.namespace if ref else KARMADA_CLUSTER_NAMESPACE
    if member is None:
        if not quiet:
            console.announce(
                f"our credentials stay in the member, in its namespace {namespace}: --cluster-kubeconfig takes them out"
            )
        return ()
    taken = await joining.take_out(member, name, namespace, joined_to=await client.cluster_uid())
    if not quiet and taken:
        console.announce(f"taken out of the member: {', '.join(taken)}")
    return tuple(taken)


def _outcome(
    cluster: Cluster,
    teardown: Teardown | None,
    *,
    gone: bool,
    left: tuple[Left, ...] = (),
    credentials: tuple[str, ...] = (),
    why: str = "",
) -> Outcome:
    status = teardown.status if teardown else None
    blockers = status.blockers if status and not gone else ()
    return Outcome(
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
        blockers=tuple(msgspec.to_builtins(one) for one in blockers),
        left=tuple(msgspec.to_builtins(one) for one in left),
        credentials=credentials,
    )


def _conclude(outcome: Outcome, left: tuple[Left, ...]) -> None:
    if left:
        console.show(ledger.table(ledger.Ledger(left=left)))
    stays = f", {counted(len(left), 'object')} left on it" if left else ""
    removed = f", {outcome.removed} objects removed" if outcome.removed and not outcome.removed.startswith("0/") else ""
    console.announce(f"{outcome.cluster} is unjoined{removed}{stays}")


def _insist_on_ledger(cluster: Cluster, teardown: Teardown | None, left: tuple[Left, ...], *, force: bool) -> None:
    """Raise UnwindError if a member was let go by force, and what is left on it is not written down."""
    if not force:
        return
    name = cluster.metadata.name
    if teardown is None or not teardown.finished:
        raise UnwindError(f"{name} is gone, and there is no record of what was left on it")
    if len(left) < teardown.status.left:
        raise UnwindError(
            f"{name} is gone with {teardown.status.left} objects left on it, of which the ledger names {len(left)}"
        )


def _because(work: dict[str, Any]) -> str:
    return f" ({work['message']})" if work["message"] else ""


def _work(step: str) -> str:
    return step.replace("/", " ", 1)
