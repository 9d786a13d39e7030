"""The client of Azure Resource Manager, against a fake over HTTPS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.external.azure.scenes import CACHE, Azure, azure_client
from unwind.api.names import Reason
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.errors import UnwindError
from unwind.external.azure.arm_client import ArmClient, connected
from unwind.testing.arm import SECRET, Arm
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "2023-04-01"


async def test_a_token_is_fetched_once_and_used_for_every_request(azure: Azure) -> None:
    azure.arm.resource(CACHE)
    for _ in range(3):
        assert (await azure.client.get(CACHE, api_version=VERSION)).status == 200
    assert azure.arm.tokens_given == 1
    assert {request.token for request in azure.arm.requests[1:]} == {"token-1"}
    assert azure.arm.requests[-1].query == {"api-version": VERSION}


async def test_a_token_that_has_expired_is_fetched_anew() -> None:
    async with Arm(token_lifetime=0) as arm, azure_client(arm) as client:
        arm.resource(CACHE)
        for _ in range(2):
            assert (await client.get(CACHE, api_version=VERSION)).status == 200
        assert arm.tokens_given == 2


async def test_a_token_that_is_revoked_is_fetched_anew_within_the_same_request(azure: Azure) -> None:
    azure.arm.resource(CACHE)
    await azure.client.get(CACHE, api_version=VERSION)
    azure.arm.expire_tokens()
    assert (await azure.client.delete(CACHE, api_version=VERSION)).status == 200
    assert azure.arm.tokens_given == 2
    assert azure.arm.sent("DELETE") == [CACHE, CACHE]  # the first was refused with 401, and had no effect


async def test_a_secret_that_is_refused_is_told_without_it(arm: Arm, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    arm.secret = "another"  # noqa: S105 - of the stand-in
    async with azure_client(arm) as client:
        with pytest.raises(TransientError) as caught:
            await client.get(CACHE, api_version=VERSION)
    assert caught.value.reason == Reason.UNAUTHENTICATED
    assert "AADSTS7000215" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert SECRET not in caplog.text
    assert arm.sent("GET") == []


@pytest.mark.parametrize("status", [200, 401])
async def test_a_page_in_place_of_a_token_is_a_passing_failure(arm: Arm, status: int) -> None:
    arm.fail_next(status, path="/oauth2/", page="<html>Welcome to the hotel</html>")
    async with azure_client(arm) as client:
        with pytest.raises(TransientError):
            await client.get(CACHE, api_version=VERSION)


async def test_no_token_is_in_the_log(azure: Azure, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    azure.arm.resource(CACHE)
    await azure.client.delete(CACHE, api_version=VERSION)
    assert "token-1" not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "https://elsewhere.example/operations/1",
        "http://127.0.0.1/operations/1",
        "https://127.0.0.1/operations/1",  # another port
        "https://127.0.0.1@elsewhere.example/operations/1",
        "https://elsewhere.example\\@127.0.0.1/operations/1",
        "/operations/1",
        "",
        "https://[bad",
    ],
)
async def test_no_token_is_sent_to_another_place(azure: Azure, url: str) -> None:
    with pytest.raises(PermanentError, match="no token is sent there"):
        await azure.client.poll(url)
    assert azure.arm.requests == []


async def test_an_endpoint_without_https_is_refused(azure: Azure) -> None:
    with pytest.raises(UnwindError, match="invalid Azure Resource Manager endpoint"):
        ArmClient(None, None, endpoint="http://127.0.0.1")  # type: ignore[arg-type]


async def test_a_server_that_cannot_be_reached_is_a_passing_failure(arm: Arm) -> None:
    async with azure_client(arm) as client:
        await arm.__aexit__(None, None, None)
        with pytest.raises(TransientError) as caught:
            await client.get(CACHE, api_version=VERSION)
    assert caught.value.reason == Reason.UNREACHABLE


async def test_a_server_that_never_answers_is_not_waited_for(arm: Arm) -> None:
    async with Proxy(arm.url) as way, azure_client(arm) as client:
        await client.get(CACHE, api_version=VERSION)
        way.hold()
        held = ArmClient.__new__(ArmClient)
        held.__dict__.update(client.__dict__, endpoint=way.url, _deadline=0.2)
        with pytest.raises(TransientError, match="TimeoutError"):
            await held.get(CACHE, api_version=VERSION)


async def test_throttling_is_not_retried_behind_the_chains_back(azure: Azure) -> None:
    azure.arm.resource(CACHE)
    azure.arm.fail_next(429, "TooManyRequests", retry_after=7)
    reply = await azure.client.get(CACHE, api_version=VERSION)
    assert reply.status == 429
    assert azure.arm.sent("GET") == [CACHE]


async def test_a_redirect_is_not_followed(azure: Azure) -> None:
    azure.arm.fail_next(307, "Moved", method="GET")
    assert (await azure.client.get(CACHE, api_version=VERSION)).status == 307
    assert azure.arm.sent("GET") == [CACHE]


async def test_the_variables_of_azures_sdks_are_enough_to_connect(
    arm: Arm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(arm.certificate)
    environ = {**arm.environ, "SSL_CERT_FILE": str(authority), "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    arm.resource(CACHE)
    async with connected() as client:
        assert (await client.get(CACHE, api_version=VERSION)).status == 200
