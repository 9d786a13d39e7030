"""Reports outages of a member while a removal waits for objects on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.deleters.chain_attempt import Failed, attempt
from unwind.deleters.deletion import delay
from unwind.kube.errors import ApiError, UnreachableError
from unwind.kube.workqueue import JITTER
from unwind.members.member import unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.clock import Clock
    from unwind.members.member import Member


async def follow(member: Member, report: Callable[[Failed | None], None], *, clock: Clock) -> None:
    """Report when a member does not answer, and None when it does again. Runs until cancelled.

    Deletions wait for watches, and a watch that breaks only retries: without this they would go on to report what they
    waited for before. They stay subscribed: thousands of them would have to look at their objects again after each
    interruption.
    """
    while True:
        await member.watches.until_interrupted()
        failures = 0
        while isinstance(failed := await attempt(_check(member)), Failed):
            failures += 1
            report(failed)
            # One request at a time, however many removals wait for the same member.
            await member.watches.probe.until_answers()
            if failures > 1:
                # It answers, and refuses access.
                await clock.sleep(delay(failed, failures, JITTER))
        report(None)


async def _check(member: Member) -> None:
    try:
        await member.verify()
    except (ApiError, UnreachableError) as error:
        raise unreachable(member.ref, error) from error
