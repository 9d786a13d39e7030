"""What the rules at a hook say together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.hooks import LONGEST, HookContext, Wait
from unwind.plugins import Cancellation, described

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unwind.api.hooks import HookRequest
    from unwind.hooks import Rule
    from unwind.kube.client import Client

log = logs.get(__name__)

_TOLD = 500


async def ask(rules: Sequence[Rule], request: HookRequest, *, client: Client, within: float) -> list[Wait]:
    """What the cluster has to wait for, as these rules say. They are asked side by side, each for so many seconds.

    None of them can let a cluster go on by failing: whatever goes wrong is something to wait for.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_asked(rule, request, client, within)) for rule in rules]
    # A rule that cancels its own task has no result.
    said = [
        _broken(rule, "it was cancelled") if task.cancelled() else task.result()
        for rule, task in zip(rules, tasks, strict=True)
    ]
    return [one for one in said if one is not None]


def together(waits: Iterable[Wait]) -> Wait | None:
    """All of it as one: asked again as soon as the first of them may have changed, whatever the order they come in."""
    found = list(waits)
    if not found:
        return None
    return Wait("; ".join(sorted({one.why for one in found})), min(one.seconds for one in found))


async def _asked(rule: Rule, request: HookRequest, client: Client, within: float) -> Wait | None:
    try:
        settings: Any = request.settings
        if rule.settings is not None:
            settings = msgspec.convert(request.settings, rule.settings, strict=False)
    except BaseException as error:  # noqa: BLE001 - the type is of another package, and may raise anything
        return _broken(rule, f"its settings cannot be read: {described(error)}")
    cancellation = Cancellation()
    try:
        async with asyncio.timeout(within) as limit:
            said = await rule.decide(request, HookContext(client=client, settings=settings, remaining=within))
        cancellation.check()
        if limit.expired():  # a rule may have swallowed that
            raise TimeoutError
        return _bounded(rule, said)
    except TimeoutError:
        cancellation.check()
        return _broken(rule, "it gave no answer in time")
    except BaseException as error:  # a rule of another package may raise anything
        cancellation.check(error)
        if isinstance(error, asyncio.CancelledError):
            return _broken(rule, "it was cancelled")
        log.warning("a rule failed", rule=rule.name, source=rule.source, hook=rule.hook.value, exc_info=error)
        return _broken(rule, f"it failed: {type(error).__name__}: {error}")


def _bounded(rule: Rule, said: Wait | None) -> Wait | None:
    if said is None:
        return None
    if not isinstance(said, Wait):
        return _broken(rule, f"it answered {type(said).__name__}, which is neither None nor Wait")
    # 0 would mean to go on, and after less than that Cluster API never asks again.
    return Wait(str(said.why), min(LONGEST, max(1, int(said.seconds))))


def _broken(rule: Rule, why: str) -> Wait:
    told = " ".join(why.split())
    return Wait(f"the rule {rule.name} of {rule.source} holds it: {told[:_TOLD]}", LONGEST)
