"""Calls the rules of a hook, each with a time limit, and combines the answers: a rule that fails holds the cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.hooks import LONGEST, HookContext, Wait
from unwind.plugins import TaskCancellation, error_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.api.hooks import HookRequest
    from unwind.hooks import Rule
    from unwind.kube.client import Client

log = logs.get(__name__)

_TOLD = 500


async def ask_rules(rules: Sequence[Rule], request: HookRequest, *, client: Client, within: float) -> list[Wait]:
    """The waits of these rules. They run concurrently, each with a timeout of so many seconds.

    A rule that fails never lets a cluster proceed: every failure is a wait.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_asked(rule, request, client, within)) for rule in rules]
    # A rule that cancels its own task has no result.
    said = [
        _broken(rule, "cancelled") if task.cancelled() else task.result()
        for rule, task in zip(rules, tasks, strict=True)
    ]
    return [item for item in said if item is not None]


def together(waits: Iterable[Wait]) -> Wait | None:
    """All waits as one: retried after the shortest, with a message that does not depend on their order."""
    found = list(waits)
    if not found:
        return None
    return Wait("; ".join(sorted({item.why for item in found})), min(item.seconds for item in found))


async def _asked(rule: Rule, request: HookRequest, client: Client, within: float) -> Wait | None:
    try:
        settings: Any = request.settings
        if rule.settings is not None:
            settings = msgspec.convert(request.settings, rule.settings, strict=False)
    except BaseException as error:  # noqa: BLE001 - the type is of another package, and may raise anything
        return _broken(rule, f"cannot read its settings: {error_message(error)}; correct them in the ExtensionConfig")
    cancellation = TaskCancellation()
    try:
        async with asyncio.timeout(within) as limit:
            said = await rule.decide(request, HookContext(client=client, settings=settings, remaining=within))
        cancellation.check()
        if limit.expired():  # a rule may have swallowed the cancellation
            raise TimeoutError
        return _bounded(rule, said)
    except TimeoutError:
        cancellation.check()
        return _broken(rule, "timed out; it is called again")
    except BaseException as error:  # a rule of another package may raise anything
        cancellation.check(error)
        if isinstance(error, asyncio.CancelledError):
            return _broken(rule, "cancelled; it is called again")
        log.warning("hook rule failed", rule=rule.name, source=rule.source, hook=rule.hook.value, exc_info=error)
        return _broken(rule, f"failed: {type(error).__name__}: {error}; see the log of the manager")


def _bounded(rule: Rule, said: Wait | None) -> Wait | None:
    if said is None:
        return None
    if not isinstance(said, Wait):
        return _broken(
            rule, f"returned {type(said).__name__} instead of None or Wait; install a corrected version of it"
        )
    # 0 would mean proceed, and after less than that Cluster API never calls again.
    return Wait(str(said.why), min(LONGEST, max(1, int(said.seconds))))


def _broken(rule: Rule, why: str) -> Wait:
    told = " ".join(why.split())
    return Wait(f"hook rule {rule.name} of {rule.source} blocks the cluster: {told[:_TOLD]}", LONGEST)
