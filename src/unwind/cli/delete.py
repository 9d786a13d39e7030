"""`unwind delete`: delete an object and its dependents in order, and wait until they are gone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, validators

from unwind.api.annotation_values import VolumePolicy
from unwind.api.capi import CLUSTERS
from unwind.api.names import DELETE_FIELD_MANAGER, PAUSED_ANNOTATION, PAUSED_BY_GATE
from unwind.api.rights import HOME
from unwind.api.sveltos import CLUSTER_SUMMARIES, ClusterSummary
from unwind.capi.admission_policies import DELETIONS
from unwind.cli import console, helm_release_target, plan
from unwind.cli.arguments import (
    Context,
    Flag,
    Home,
    Kubeconfig,
    Output,
    Place,
    Target,
    Volumes,
    check_volumes,
    resolve_target,
)
from unwind.cli.cluster_drains import drain_cluster
from unwind.cli.deletion_results import DeleteResult, check_manager, left_behind, outcome_of, refuse
from unwind.cli.status import seconds_of
from unwind.cli.teardowns import TeardownFollower
from unwind.concurrency import to_tell
from unwind.errors import TimedOutError, UnwindError, UsageError
from unwind.kube import decoding
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.discovery import Discovery
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.kube.informers import Informer
from unwind.preview.removal_forecast import PROFILES
from unwind.teardown import requests

if TYPE_CHECKING:
    from unwind.kube.cache import Change
    from unwind.kube.discovery import Named
    from unwind.preview.object_preview import Foreseen

_FORBIDDEN = 403


async def delete(
    target: Target,
    /,
    *,
    namespace: Place = None,
    cluster: helm_release_target.OnCluster = None,
    dry_run: Annotated[Flag, Parameter(help="Print the plan and whether it would be refused; delete nothing.")] = False,
    yes: Annotated[Flag, Parameter(name=["--yes", "-y"], help="Do not ask for confirmation.")] = False,
    max_objects: Annotated[
        int | None,
        Parameter(validator=validators.Number(gte=0), help="Refuse if more objects than this would be deleted."),
    ] = None,
    volumes: Volumes = "Retain",
    drain_only: Annotated[
        Flag,
        Parameter(help="Only for a Cluster of Cluster API, which stays: delete what TeardownPolicies drain from it."),
    ] = False,
    wait: Annotated[bool, Parameter(help="Wait until the target is gone.")] = True,
    timeout: Annotated[  # noqa: ASYNC109 - what a person types
        str | None, Parameter(help="How long to wait (90s, 10m), then exit with 3; the deletion continues.")
    ] = None,
    output: Output = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    unwind_namespace: Home = HOME,
) -> None:
    """Delete a target and its dependents in order. Requires a running manager.

    Shows the plan and asks for the name of the target first. A cluster, member or profile is deleted directly, and the
    manager removes its dependents; for any other object a Teardown is created, which the manager runs. A protected
    object refuses the request before anything is deleted. What a Kustomization or HelmRelease of Flux or a
    HelmReleaseProxy deployed is verified absent. A Helm release (release/NAME) is uninstalled by the command itself,
    with the rights of its user and without a manager. With --drain-only, a Cluster stays, and load balancers, volumes
    and other objects are deleted that the drain of its TeardownPolicies names.

    With --dry-run nothing is written, and no manager is needed. Exit codes: 0 the target is gone; 1 refused, failed or
    kept; 3 timed out; 4 only with --dry-run: something would be left behind, or that could not be known.
    """
    within = seconds_of(timeout, option="--timeout")
    if drain_only:
        await drain_cluster(
            target,
            namespace=namespace,
            dry_run=dry_run,
            yes=yes,
            max_objects=max_objects,
            volumes=volumes,
            wait=wait,
            within=within,
            output=output,
            kubeconfig=kubeconfig,
            context=context,
            home=unwind_namespace,
        )
        return
    if dry_run:
        seen = await plan.preview_target(
            target,
            namespace=namespace,
            cluster=cluster,
            volumes=volumes,
            kubeconfig=kubeconfig,
            context=context,
            home=unwind_namespace,
        )
        plan.show_preview(seen, output)
        refuse(seen, max_objects)
        plan.check_leaks(seen)
        return
    helm_release_target.check_cluster(target, cluster)
    if helm_release_target.release_name(target):
        async with helm_release_target.release_place(
            target,
            namespace=namespace,
            cluster=cluster,
            kubeconfig=kubeconfig,
            context=context,
            user_agent="unwind-delete",
        ) as place:
            if not wait:
                raise UsageError(
                    "--no-wait does not apply to a release",
                    remedy="leave it out: this command uninstalls the release itself",
                )
            await _delete_release(
                place, VolumePolicy(volumes), yes=yes, max_objects=max_objects, within=within, output=output
            )
        return
    connection = kubeconfigs.load(kubeconfig, context=context)
    async with Client(connection, user_agent="unwind-delete") as client:
        named = await resolve_target(
            client, Discovery(client), target, namespace=namespace, otherwise=connection.namespace
        )
        seen = await plan.preview_named(
            client, named, home=unwind_namespace, volumes=VolumePolicy(volumes), asked="delete"
        )
        if output == "table":
            console.show(plan.preview_table(seen))
        refuse(seen, max_objects)
        check_volumes(seen, volumes)
        await check_manager(client, unwind_namespace, f"delete {named}")
        if not yes:
            console.confirm(f"\nType the name of {seen.title} to delete it: ", expected=named.name)
        try:
            async with asyncio.timeout(within):
                outcome = await _carried_out(
                    client,
                    named,
                    seen,
                    wait=wait,
                    max_objects=max_objects,
                    volumes=VolumePolicy(volumes),
                    home=unwind_namespace,
                    quiet=output == "json",
                )
        except TimeoutError:
            raise TimedOutError(
                f"timed out waiting for {seen.title} to be deleted; the deletion continues",
                remedy=f"see `unwind status {named.name}`",
            ) from None
    if output == "json":
        console.show_json(outcome)
    _conclude(outcome, seen, wait=wait, quiet=output == "json")


async def _delete_release(
    place: helm_release_target.ReleasePlace,
    volumes: VolumePolicy,
    *,
    yes: bool,
    max_objects: int | None,
    within: float | None,
    output: Literal["table", "json"],
) -> None:
    seen = await place.foresee(volumes)
    if output == "table":
        console.show(plan.preview_table(seen))
    refuse(seen, max_objects)
    if not place.has_helm:
        raise UnwindError(f"cannot delete {seen.title}: the helm program is not installed", remedy="install Helm 3")
    if not yes:
        console.confirm(f"\nType the name of {seen.title} to delete it: ", expected=place.name.name)
    try:
        async with asyncio.timeout(within):
            left = await place.delete(seen.target, volumes, quiet=output == "json")
    except TimeoutError:
        raise TimedOutError(
            f"timed out waiting for {seen.title} to be deleted", remedy="run the command again to continue"
        ) from None
    outcome = DeleteResult(target=seen.target, objects=plan.total(seen), gone=True, left=left)
    if output == "json":
        console.show_json(outcome)
    _conclude(outcome, seen, wait=True, quiet=output == "json")


async def _carried_out(
    client: Client,
    named: Named,
    seen: Foreseen,
    *,
    wait: bool,
    max_objects: int | None,
    volumes: VolumePolicy,
    home: str,
    quiet: bool,
) -> DeleteResult:
    if seen.requested:
        asked = await requests.request(
            client,
            seen.target,
            plural=named.resource.plural,
            now=datetime.now(UTC),
            max_objects=max_objects,
            volumes=volumes,
        )
        name = asked.metadata.name
        if not wait:
            return outcome_of(seen, asked)
        ended = await TeardownFollower(client, name=name, title=seen.title, quiet=quiet).until_finished()
        return outcome_of(seen, ended, left=await left_behind(client, home, ended))
    uid = seen.target.uid

    async def ask() -> None:
        try:
            if (named.resource.group, named.resource.kind) == (CLUSTERS.group, CLUSTERS.kind):
                await _delete_cluster(client, named, uid)
            else:
                await client.delete(named.resource, named.name, uid=uid, namespace=named.where)
        except NotFoundError:
            pass  # already gone
        except ConflictError as error:
            raise UnwindError(
                f"cannot delete {seen.title}: the uid changed, it was recreated", remedy="check it and retry"
            ) from error

    if not wait:
        await ask()
        return outcome_of(seen, None)
    following = TeardownFollower(client, target=uid, title=seen.title, quiet=quiet)
    try:
        async with asyncio.TaskGroup() as group:
            withdrawing = group.create_task(_tell_withdrawn(client, seen, quiet=quiet))
            await following.until_absent(named.resource, seen.target, ask=ask)
            withdrawing.cancel()
    except ExceptionGroup as failures:
        raise to_tell(failures) from None
    record = following.teardown
    return outcome_of(seen, record, gone=True, left=await left_behind(client, home, record) if record else ())


async def _delete_cluster(client: Client, named: Named, uid: str) -> None:
    """Delete a Cluster. With the gate Admission the API server refuses that, unless Cluster API is paused for it; the
    manager continues it when its gate opens."""
    try:
        await client.delete(named.resource, named.name, uid=uid, namespace=named.where)
    except ApiError as error:
        if error.code != _FORBIDDEN or DELETIONS not in error.status.message:
            raise
    else:
        return
    found = await client.get(named.resource, named.name, namespace=named.where)
    if (found["metadata"].get("annotations") or {}).get(PAUSED_ANNOTATION, PAUSED_BY_GATE) != PAUSED_BY_GATE:
        raise UnwindError(
            f"cannot delete {named}: it is paused (annotation {PAUSED_ANNOTATION})", remedy="unpause it, and retry"
        )
    await _set_paused(client, named, uid, PAUSED_BY_GATE)
    try:
        await client.delete(named.resource, named.name, uid=uid, namespace=named.where)
    except ApiError:
        await _set_paused(client, named, uid, None)
        raise


async def _set_paused(client: Client, named: Named, uid: str, value: str | None) -> None:
    patch = {"metadata": {"uid": uid, "annotations": {PAUSED_ANNOTATION: value}}}
    await client.patch(named.resource, named.name, patch, namespace=named.where, field_manager=DELETE_FIELD_MANAGER)


async def _tell_withdrawn(client: Client, seen: Foreseen, *, quiet: bool) -> None:
    """Print each cluster that a profile was withdrawn from, until cancelled: a profile has no Teardown to report it."""
    if quiet or (seen.target.group, seen.target.kind) not in ((profile.group, profile.kind) for profile in PROFILES):
        return

    def tell(change: Change[ClusterSummary]) -> None:
        one = change.old
        if one and change.new is None and any(it.uid == seen.target.uid for it in one.metadata.owner_references):
            console.announce(f"{seen.title} withdrawn from {one.spec.cluster_namespace}/{one.spec.cluster_name}")

    informer = Informer(client, decoding.typed(CLUSTER_SUMMARIES, ClusterSummary))
    informer.subscribe(tell)
    await informer.run()


def _conclude(outcome: DeleteResult, seen: Foreseen, *, wait: bool, quiet: bool) -> None:
    """Print the outcome; raises UnwindError if the target still exists."""
    if not wait:
        if not quiet:
            named = f", as Teardown {outcome.teardown}" if outcome.teardown else ""
            console.announce(f"{seen.title} is being deleted{named}")
        return
    if outcome.refused:
        raise UnwindError(f"cannot delete {seen.title}: {outcome.refused}")
    if not quiet:
        for item in outcome.left:
            console.announce(f"left behind: {item.object}: {item.message}")
    if not outcome.gone:
        kept = [item.message for item in outcome.left if item.object.uid == seen.target.uid]
        why = kept[0] if kept else f"its Teardown ended as {outcome.phase}"
        raise UnwindError(f"{seen.title} was kept: {why}", remedy="list what is left with `unwind plan`")
    if not quiet:
        console.announce(f"{seen.title} is gone{f', {outcome.removed} objects removed' if outcome.removed else ''}")
