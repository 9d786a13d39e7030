"""`unwind delete cluster/NAME --drain-only`: delete what TeardownPolicies drain from a Cluster, which stays."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from unwind.api.annotation_values import VolumePolicy
from unwind.api.capi import CLUSTERS
from unwind.api.names import DRAIN_RESOURCE, Reason
from unwind.api.unwind import Phase
from unwind.cli import console, plan
from unwind.cli.arguments import resolve_target
from unwind.cli.deletion_results import DeleteResult, check_manager, left_behind, outcome_of, refuse
from unwind.cli.teardowns import TeardownFollower
from unwind.errors import TimedOutError, UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.preview.cluster_preview import foresee_drain
from unwind.teardown import requests

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.api.unwind import Teardown
    from unwind.cli.ledger import LedgerRow
    from unwind.preview.object_preview import Foreseen

# Objects that exist, or may exist, although the drain has ended.
_NOT_DRAINED = (Reason.CREATED_AGAIN, Reason.APPEARED_LATE, Reason.GAVE_UP)


async def drain_cluster(
    target: str,
    *,
    namespace: str | None,
    dry_run: bool,
    yes: bool,
    max_objects: int | None,
    volumes: Literal["Delete", "Retain"],
    wait: bool,
    within: float | None,
    output: Literal["table", "json"],
    kubeconfig: Path | None,
    context: str | None,
    home: str,
) -> None:
    """Preview a drain, request it, and wait for its end. Raises UnwindError if it is refused or not complete."""
    if volumes != VolumePolicy.RETAIN.value:
        raise UsageError("--volumes does not apply to --drain-only", remedy="set drain.volumes in the TeardownPolicy")
    connection, quiet = kubeconfigs.load(kubeconfig, context=context), output == "json"
    async with Client(connection, user_agent="unwind-delete") as client:
        named = await resolve_target(
            client, Discovery(client), target, namespace=namespace, otherwise=connection.namespace
        )
        if (named.resource.group, named.resource.kind) != (CLUSTERS.group, CLUSTERS.kind):
            raise UsageError(f"cannot drain {named}", remedy="--drain-only is for Clusters of Cluster API")
        seen = await foresee_drain(client, named, home=home)
        if dry_run:
            plan.show_preview(seen, output)
        elif not quiet:
            console.show(plan.preview_table(seen))
        refuse(seen, max_objects, aim="drain")
        if dry_run:
            return
        await check_manager(client, home, f"drain {named}")
        if not yes:
            console.confirm(f"\nType the name of {seen.title} to drain it: ", expected=named.name)
        try:
            async with asyncio.timeout(within):
                outcome = await _requested(client, seen, max_objects=max_objects, wait=wait, home=home, quiet=quiet)
        except TimeoutError:
            raise TimedOutError(
                f"timed out waiting for {seen.title} to be drained; the drain continues",
                remedy=f"see `unwind status {named.name}`, or stop it with `unwind cancel {named.name}`",
            ) from None
    if quiet:
        console.show_json(outcome)
    _conclude(outcome, seen, wait=wait, quiet=quiet)


async def _requested(
    client: Client, seen: Foreseen, *, max_objects: int | None, wait: bool, home: str, quiet: bool
) -> DeleteResult:
    title = f"{seen.title} (drain only)"
    asked = await requests.request(
        client, seen.target, plural=DRAIN_RESOURCE, now=datetime.now(UTC), max_objects=max_objects, title=title
    )
    if not wait:
        return _outcome(seen, asked)
    ended = await TeardownFollower(client, name=asked.metadata.name, title=title, quiet=quiet).until_finished()
    return _outcome(seen, ended, left=await left_behind(client, home, ended))


def _preview_of(seen: Foreseen) -> str:
    return f"`unwind plan cluster/{seen.target.name} -n {seen.target.namespace}`"


def _outcome(seen: Foreseen, teardown: Teardown, *, left: tuple[LedgerRow, ...] = ()) -> DeleteResult:
    # The Cluster stays, also if everything is drained.
    return msgspec.structs.replace(outcome_of(seen, teardown, left=left), gone=False)


def _conclude(outcome: DeleteResult, seen: Foreseen, *, wait: bool, quiet: bool) -> None:
    """Print the outcome; raises UnwindError if something exists that should have been deleted."""
    if not wait:
        if not quiet:
            console.announce(f"{seen.title} is being drained, as Teardown {outcome.teardown}")
        return
    if outcome.refused:
        raise UnwindError(f"cannot drain {seen.title}: {outcome.refused}")
    if not quiet:
        for item in outcome.left:
            console.announce(f"left behind: {item.object}: {item.message}")
    there = [item for item in outcome.left if item.reason in _NOT_DRAINED]
    if there or outcome.phase != Phase.COMPLETE:
        why = there[0].message if there else f"its Teardown ended as {outcome.phase}"
        raise UnwindError(f"{seen.title} is not drained: {why}", remedy=f"see what is left: {_preview_of(seen)}")
    if not quiet:
        console.announce(f"{seen.title} is drained{f', {outcome.removed} objects removed' if outcome.removed else ''}")
