"""Azure's end of the chain, against a fake over HTTPS: each pass has only the memo of the previous one."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.external.azure.scenes import CACHE, CACHES, Azure, made
from unwind.api.names import AZURE_RESOURCE_ID_ANNOTATION, Reason
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Gone, Pace, Severity
from unwind.external.azure.resource_deletion import PATIENCE, ArmEnd
from unwind.kube.absence import Presence
from unwind.testing.arm import Style
from unwind.testing.contexts import context

OBJ = made(CACHES, CACHE)
GONE = Gone("Azure reports that it does not exist (ResourceNotFound)")
POLL = "/operations/1"


async def test_a_deletion_that_is_done_at_once_is_confirmed_by_looking(azure: Azure) -> None:
    azure.arm.resource(CACHE)
    assert await azure.enter(OBJ) == GONE
    assert [(request.method, request.path) for request in azure.arm.requests[1:]] == [("DELETE", CACHE), ("GET", CACHE)]


async def test_what_is_not_there_is_gone(azure: Azure) -> None:
    assert await azure.enter(OBJ) == GONE


async def test_what_was_never_created_is_gone_without_asking(azure: Azure) -> None:
    obj = {"apiVersion": CACHES.api_version, "kind": "Redis", "metadata": {"name": "new", "uid": "uid-1"}}
    outcome = await azure.enter(obj)
    assert isinstance(outcome, Gone)
    assert "never created" in outcome.why
    assert azure.arm.requests == []


@pytest.mark.parametrize("style", [Style.STATUS, Style.LOCATION])
async def test_a_long_deletion_is_polled_once_an_entry_and_sent_once(azure: Azure, style: Style) -> None:
    azure.arm.retry_after = 17
    azure.arm.resource(CACHE, takes=3, style=style)
    for _ in range(4):
        waiting = await azure.enter(OBJ)
        assert isinstance(waiting, Waiting)
        assert waiting.after == 17
        assert "in progress at Azure" in waiting.reason
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE]
    assert azure.arm.sent("GET") == [POLL] * 4 + [CACHE]


async def test_without_a_place_to_ask_the_resource_itself_is_looked_at(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=3, style=Style.NOWHERE)
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert isinstance(await azure.enter(OBJ), Waiting)
    azure.clock.advance(10 * PATIENCE.total_seconds())
    assert isinstance(await azure.enter(OBJ), Waiting), "it says itself that it is being deleted"
    azure.arm.forget_operations()
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE]


async def test_where_nothing_is_said_it_is_asked_again_in_ten_seconds(azure: Azure) -> None:
    azure.arm.retry_after = None
    azure.arm.resource(CACHE, takes=1)
    waiting = await azure.enter(OBJ)
    assert isinstance(waiting, Waiting)
    assert waiting.after == 10


async def test_what_is_remembered_is_plain_json(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=1)
    await azure.enter(OBJ)
    assert msgspec.json.decode(azure.memo["arm.target"]) == {"id": CACHE, "api_version": "2023-04-01"}
    assert msgspec.json.decode(azure.memo["arm.operation"])["url"].startswith(f"{azure.arm.url}{POLL}?")


async def test_throttling_is_told_with_its_patience_and_nothing_is_lost(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=1)
    azure.arm.fail_next(429, "TooManyRequests", method="DELETE", retry_after=21)
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert (failed.severity, failed.pace, failed.retry_after) == (Severity.WARNING, Pace.FAST, 21)
    assert isinstance(await azure.enter(OBJ), Waiting)
    azure.arm.fail_next(503, "ServiceUnavailable", path=POLL, retry_after=5)
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert failed.retry_after == 5
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE, CACHE]  # the first was refused


async def test_a_lock_holds_very_slowly_until_somebody_takes_it_away(azure: Azure) -> None:
    cache = azure.arm.resource(CACHE)
    cache.locked = True
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.severity, failed.pace) == ("ScopeLocked", Severity.WARNING, Pace.VERY_SLOW)
    assert "remove the lock" in failed.message
    cache.locked = False
    assert await azure.enter(OBJ) == GONE


async def test_after_an_operation_that_fails_the_deletion_is_sent_again(azure: Azure) -> None:
    azure.arm.resource(CACHE, fails="ScopeLocked")
    assert isinstance(await azure.enter(OBJ), Waiting)
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.pace) == ("ScopeLocked", Pace.VERY_SLOW)
    assert "arm.operation" not in azure.memo
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE, CACHE]


async def test_an_operation_that_is_forgotten_is_judged_by_the_resource(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=5)
    await azure.enter(OBJ)
    azure.arm.forget_operations()
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE]


@pytest.mark.parametrize(("status", "code"), [(404, "NotFound"), (410, "Gone"), (403, "AuthorizationFailed")])
async def test_an_operation_that_cannot_be_asked_for_goes_on_under_our_eyes(
    azure: Azure, status: int, code: str
) -> None:
    azure.arm.resource(CACHE, takes=5)
    await azure.enter(OBJ)
    azure.arm.fail_next(status, code, path=POLL)
    assert isinstance(await azure.enter(OBJ), Waiting)
    azure.arm.forget_operations()
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE]
    assert azure.arm.sent("GET").count(POLL) == 1


async def test_the_404_of_a_proxy_in_the_middle_of_it_says_nothing(azure: Azure) -> None:
    azure.arm.resource(CACHE)
    azure.arm.fail_next(404, method="GET", path=CACHE, page="<html>Not Found</html>")
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert "cannot determine whether" in failed.message
    assert await azure.enter(OBJ) == GONE


@pytest.mark.parametrize("code", ["SubscriptionNotFound", "InvalidResourceType"])
async def test_a_404_that_is_not_about_the_resource_says_nothing(azure: Azure, code: str) -> None:
    azure.arm.fail_next(404, code, method="DELETE")
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.pace) == (code, Pace.VERY_SLOW)


async def test_what_azure_still_shows_after_its_deletion_is_waited_for(azure: Azure) -> None:
    azure.arm.resource(CACHE, lingers=2)
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE]


async def test_what_stays_for_too_long_after_its_deletion_is_deleted_again(azure: Azure) -> None:
    azure.arm.resource(CACHE, lingers=3)
    assert isinstance(await azure.enter(OBJ), Waiting)
    azure.clock.advance(PATIENCE.total_seconds())
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert "will retry: it is sent again" in failed.message
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert azure.arm.sent("DELETE") == [CACHE, CACHE]


async def test_a_place_to_ask_on_another_host_is_refused(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=5)
    await azure.enter(OBJ)
    azure.memo["arm.operation"] = azure.memo["arm.operation"].replace(azure.arm.url, "https://thief.example")
    before = len(azure.arm.requests)
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.severity) == (Reason.HELD, Severity.ERROR)
    assert "thief.example" in failed.message
    assert len(azure.arm.requests) == before


async def test_an_operation_that_says_it_is_elsewhere_is_followed_by_the_resource(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=1)
    home, azure.arm.url = azure.arm.url, "https://elsewhere.example"
    assert isinstance(await azure.enter(OBJ), Waiting)
    azure.arm.url = home
    assert "url" not in msgspec.json.decode(azure.memo["arm.operation"])
    azure.arm.forget_operations()
    assert await azure.enter(OBJ) == GONE


async def test_a_place_to_ask_that_does_not_fit_into_a_memo_is_not_kept(azure: Azure) -> None:
    azure.arm.signature = "s" * 4000
    azure.arm.resource(CACHE, takes=1)
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert "url" not in msgspec.json.decode(azure.memo["arm.operation"])
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert await azure.enter(OBJ) == GONE
    assert azure.arm.sent("DELETE") == [CACHE]


async def test_an_operation_that_moves_is_asked_for_where_it_moved_to(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=2, style=Style.LOCATION)
    await azure.enter(OBJ)
    azure.arm.signature = "moved"
    await azure.enter(OBJ)
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert azure.arm.requests[-1].query["s"] == "moved"


@pytest.mark.parametrize("key", ["arm.operation", "arm.target"])
async def test_a_memo_that_cannot_be_read_holds(azure: Azure, key: str) -> None:
    azure.arm.resource(CACHE, takes=5)
    await azure.enter(OBJ)
    azure.memo[key] = "gASVDAAAAAAAAACMCHVucGlja2xl"
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert failed.reason == Reason.HELD


async def test_an_id_that_is_edited_during_the_deletion_changes_nothing(azure: Azure) -> None:
    other = f"{CACHE}-other"
    azure.arm.resource(CACHE, takes=1)
    azure.arm.resource(other)
    await azure.enter(OBJ)
    edited = made(CACHES, CACHE, annotations={AZURE_RESOURCE_ID_ANNOTATION: other}, status={"id": other})
    assert isinstance(await azure.enter(edited), Waiting)
    assert await azure.enter(edited) == GONE
    assert azure.arm.sent("DELETE") == [CACHE]


async def test_a_deletion_that_is_under_way_already_is_waited_for(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=1)
    await azure.enter(OBJ)
    azure.memo.clear()  # as after a crash before it was saved
    assert isinstance(await azure.enter(OBJ), Waiting)
    assert await azure.enter(OBJ) == GONE


async def test_what_comes_back_after_it_was_seen_gone_is_left_alone(azure: Azure) -> None:
    azure.arm.resource(CACHE)
    assert await azure.enter(OBJ) == GONE
    azure.arm.resource(CACHE)
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert "it was verified absent, but has been created again" in failed.message
    assert azure.arm.sent("DELETE") == [CACHE]


async def test_when_the_object_is_gone_the_memo_knows_what_it_stood_for(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=1)
    await azure.enter(OBJ)
    assert isinstance(await azure.enter(OBJ, absent=True), Waiting)
    assert await azure.enter(OBJ, absent=True) == GONE


async def test_when_the_object_is_gone_and_nothing_was_written_down_it_is_held(azure: Azure) -> None:
    failed = await azure.enter(OBJ, absent=True)
    assert isinstance(failed, Failed)
    assert failed.reason == Reason.HELD


async def test_a_token_that_expires_between_two_polls_is_fetched_anew(azure: Azure) -> None:
    azure.arm.resource(CACHE, takes=2)
    await azure.enter(OBJ)
    azure.arm.expire_tokens()
    assert isinstance(await azure.enter(OBJ), Waiting)
    azure.arm.expire_tokens(challenge=False)
    failed = await azure.enter(OBJ)
    assert isinstance(failed, Failed)
    assert failed.pace is Pace.SLOW
    assert azure.arm.tokens_given == 2


async def test_a_sighting_looks_and_deletes_nothing(azure: Azure) -> None:
    end = ArmEnd(azure.client)
    ctx = context(OBJ, kept=azure.memo, clients=end.clients, resource=CACHES)
    azure.arm.resource(CACHE)
    assert (await end.sighting(ctx, OBJ)).presence is Presence.PRESENT
    azure.arm.resources.clear()
    assert (await end.sighting(ctx, OBJ)).presence is Presence.ABSENT
    azure.arm.fail_next(500, "InternalServerError")
    assert (await end.sighting(ctx, OBJ)).presence is Presence.UNKNOWN
    assert azure.arm.sent("DELETE") == []
