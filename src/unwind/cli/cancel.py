"""`unwind cancel`: stop a requested deletion, restore what was stopped for it, and show what is gone already."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from unwind.api.meta import ObjectRef
from unwind.api.names import CANCEL_REASON_ANNOTATION, CANCEL_REASON_BY_ANNOTATION
from unwind.api.unwind import REASON_LENGTH, TEARDOWNS, Cancellation, Cause, Phase, Teardown
from unwind.cli import console, teardowns
from unwind.cli.arguments import Context, Kubeconfig, Output
from unwind.cli.release import RELEASABLE
from unwind.cli.status import seconds_of
from unwind.errors import TimedOutError, UnwindError, UsageError
from unwind.kube import kubeconfig as kubeconfigs
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, ConflictError, NotFoundError, UnreachableError
from unwind.teardown import cancellation
from unwind.teardown.requests import whoami

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts.completion import CompletionContext

_RETRY = 0.2
_WHAT = {Cause.UNJOINED.value: "unjoin", Cause.WITHDRAWN.value: "withdrawal", Cause.PRUNED.value: "removal"}


class CancelResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result, for JSON output."""

    teardown: str
    target: ObjectRef
    phase: str
    kept: bool
    """Whether the target stays."""
    message: str
    cancelled: Cancellation | None = None
    """What the deletion had done; absent if it had not started."""


def _requests(context: CompletionContext) -> list[tuple[str, str]]:
    """The targets of requested deletions that are not finished."""

    async def ask(client: Client) -> list[tuple[str, str]]:
        found = msgspec.convert(await client.list(TEARDOWNS), list[Teardown])
        return sorted((item.metadata.name, item.spec.title) for item in found if can_be_cancelled(item))

    return teardowns.complete(context, ask)


async def cancel(
    teardown: Annotated[
        str,
        Parameter(
            name="TEARDOWN",
            help="A requested deletion: the name of its Teardown, or its target as NAME, NAMESPACE/NAME or KIND/NAME.",
            completer=_requests,
        ),
    ],
    /,
    *,
    reason: Annotated[
        str | None,
        Parameter(help="Why it is cancelled; recorded with your user name. Requires the right to patch Teardowns."),
    ] = None,
    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"], help="The namespace of the target.")] = None,
    timeout: Annotated[  # noqa: ASYNC109 - what a person types
        str, Parameter(help="How long to wait for the manager to stop the deletion, then exit with 3.")
    ] = "2m",
    output: Output = "table",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Cancel a deletion that was requested with `unwind delete`, and show what is gone already.

    Deletes the Teardown, as `kubectl delete teardown` does. The manager sends no further DELETE, and restores workloads
    that it scaled to zero. The deletion of a cluster, the unjoin of a member and the withdrawal of a profile cannot be
    cancelled. Exit codes: 0 the target stays; 1 it cannot be cancelled, or the target is gone or being deleted; 3 timed
    out.
    """
    within = seconds_of(timeout, option="--timeout") or 0.0
    if reason is not None and not 0 < len(reason.strip()) <= REASON_LENGTH:
        raise UsageError(
            f"--reason is empty or longer than {REASON_LENGTH} characters", remedy="state why the deletion is cancelled"
        )
    async with Client(kubeconfigs.load(kubeconfig, context=context), user_agent="unwind-cancel") as client:
        every = teardowns.readable(await teardowns.list_kind(client, TEARDOWNS))
        found = _pick(teardowns.chosen(every, teardown, namespace), teardown, namespace)
        try:
            async with asyncio.timeout(within):
                if remark := await request_cancellation(client, found, (reason or "").strip()):
                    console.announce(remark)
                last = await _until_deleted(client, found)
        except TimeoutError:
            raise TimedOutError(
                f"timed out after {within:.0f}s waiting for the manager to stop the deletion of {found.spec.title};"
                " the request remains",
                remedy="check that a manager is running with `unwind version`",
            ) from None
    result = outcome(last)
    if output == "json":
        console.show_json(msgspec.to_builtins(result))
    if not result.kept:
        raise UnwindError(
            f"too late to keep {last.spec.title}: {result.message}", remedy="see `unwind ledger` for what is left"
        )
    if output == "table":
        console.announce(f"deletion of {last.spec.title} cancelled: {result.message}")


def can_be_cancelled(one: Teardown) -> bool:
    """Whether a Teardown is a requested deletion that can still be stopped (pure)."""
    return one.spec.cause == Cause.REQUESTED and not one.finished


def _pick(found: Sequence[Teardown], wanted: str, namespace: str | None) -> Teardown:
    """The one Teardown to cancel; raises UnwindError if there is not exactly one."""
    possible = [item for item in found if can_be_cancelled(item)]
    if len(possible) > 1:
        names = ", ".join(f"{item.metadata.name} ({item.spec.title})" for item in possible)
        raise UnwindError(f"cannot cancel {wanted!r}: several deletions match: {names}", remedy="use the name of one")
    if possible:
        return possible[0]
    running = [item for item in found if not item.finished]
    for item in running or found:
        title = f"cannot cancel the {_WHAT.get(item.spec.cause, 'deletion')} of {item.spec.title}"
        if item.finished:
            raise UnwindError(f"{title}: it is finished ({item.phase})", remedy="see `unwind ledger` for what is left")
        raise UnwindError(
            f"{title}: Kubernetes cannot undo a deletion, so it is completed",
            remedy=f"follow it with `unwind status {item.spec.target.name}`"
            + (", or leave the rest with `unwind release`" if item.spec.cause in RELEASABLE else ""),
        )
    raise UnwindError(
        f"no teardown{teardowns.selection_suffix(wanted, namespace)} found", remedy="list them with `unwind status`"
    )


async def request_cancellation(client: Client, teardown: Teardown, reason: str = "") -> str:
    """Delete the Teardown of a requested deletion: the manager stops it. Returns why the reason is not recorded, if it
    is not."""
    meta = teardown.metadata
    remark = await _record_reason(client, teardown, reason) if reason else ""
    with suppress(NotFoundError):  # another client was faster
        try:
            await client.delete(TEARDOWNS, meta.name, uid=meta.uid)
        except ConflictError as error:
            raise UnwindError(
                f"cannot cancel Teardown {meta.name}: another Teardown has this name now",
                remedy="look at it with `unwind status`, then run `unwind cancel` again",
            ) from error
    return remark


async def _record_reason(client: Client, teardown: Teardown, reason: str) -> str:
    """Write the reason into the Teardown; return why that failed, if it did."""
    meta = teardown.metadata
    try:
        written = {CANCEL_REASON_ANNOTATION: reason, CANCEL_REASON_BY_ANNOTATION: await whoami(client)}
        # With its uid: another Teardown of that name is not changed.
        await client.patch(TEARDOWNS, meta.name, {"metadata": {"uid": meta.uid, "annotations": written}})
    except NotFoundError:
        pass  # another client was faster
    except UnwindError as error:
        # Stopping the deletion is more important than its record.
        return f"the reason is not recorded: {error}; the deletion is cancelled without it"
    return ""


async def _until_deleted(client: Client, teardown: Teardown) -> Teardown:
    """The last state of a Teardown that is being deleted, when it is gone."""
    meta = teardown.metadata
    # From before the DELETE: no state in between is missed.
    last, since = teardown, meta.resource_version
    while True:
        try:
            events = client.watch(TEARDOWNS, name=meta.name, since=since)
            async with aclosing(events):
                async for event in events:
                    if event.type not in ("ADDED", "MODIFIED", "DELETED"):
                        break
                    seen = msgspec.convert(event.object, Teardown)
                    if seen.metadata.uid != meta.uid:
                        return last
                    last, since = seen, seen.metadata.resource_version
                    if event.type == "DELETED":
                        return last
        except (ApiError, UnreachableError):
            pass  # the server was not available, or has forgotten this version
        try:
            last = await client.get(TEARDOWNS, meta.name, type=Teardown)
        except NotFoundError:
            return last
        except (ApiError, UnreachableError):
            pass
        if last.metadata.uid != meta.uid:
            return teardown
        since = last.metadata.resource_version
        await asyncio.sleep(_RETRY)


def outcome(last: Teardown) -> CancelResult:
    """What was cancelled, from the last state of the Teardown (pure)."""
    done, target = last.status.cancelled, last.spec.target
    if done:
        lost = {ref.uid for ref in (*done.removed_objects, *done.deleting_objects)}
        kept, message = target.uid not in lost, cancellation.message(done)
    elif last.finished:
        kept, message = last.phase is not Phase.COMPLETE, f"it was finished before ({last.phase})"
    elif last.spec.plan is None:
        kept, message = True, "nothing was deleted"
    else:
        kept, message = True, "what is gone is not known; list what is left with `unwind plan`"
    return CancelResult(
        teardown=last.metadata.name,
        target=target,
        phase=str(last.phase if last.finished else Phase.CANCELLED),
        kept=kept,
        message=message,
        cancelled=done,
    )
