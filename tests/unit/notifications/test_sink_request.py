"""Notifications are sent over TLS to an address that was checked, and answers are bounded."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

import pytest

from tests.https_sinks import NEVER, HttpsSink, https_sink
from unwind.errors import UnwindError
from unwind.notifications import sink_request
from unwind.notifications.addresses import AddressRules, parsed
from unwind.notifications.sink_request import Delivery, DeliveryError, FailureReason, Resolver, own_addresses, trust

if TYPE_CHECKING:
    from unwind.notifications.addresses import Address

HOST = "receiver.example.com"


def to(sink: HttpsSink, *, allowed: str = HOST, **more: object) -> Delivery:
    async def resolve(host: str, port: int) -> list[Address]:
        return [ipaddress.ip_address("127.0.0.1")]

    rules = AddressRules(allowed=frozenset({allowed}))
    return Delivery(rules, trust(sink.authority.certificate), user_agent="unwind-manager", resolve=resolve)


async def fails(sender: Delivery, url: str, *, within: float = 10.0) -> DeliveryError:
    with pytest.raises(DeliveryError) as found:
        await sender.send(url, b"{}", {}, within=within)
    return found.value


async def test_a_notification_is_a_post_with_its_headers_to_the_checked_address() -> None:
    async with https_sink(HOST) as sink:
        await to(sink).send(sink.url, b'{"a":1}', {"webhook-id": "x"}, within=10)
    [got] = sink.received
    assert (got.target, got.body) == ("/hooks/unwind?team=platform", b'{"a":1}')
    assert got.headers["host"] == f"{HOST}:{sink.port}"
    assert got.headers["webhook-id"] == "x"


@pytest.mark.parametrize(
    ("status", "reason"), [(500, "Status"), (404, "Status"), (302, "Redirected"), (308, "Redirected")]
)
async def test_errors_and_redirects_are_failures(status: int, reason: str) -> None:
    async with https_sink(HOST) as sink:
        sink.answer = status
        failure = await fails(to(sink), sink.url)
        assert (failure.reason, f"HTTP {status}" in str(failure)) == (reason, True)
        assert len(sink.received) == 1  # nothing was followed


async def test_a_sink_that_never_answers_times_out() -> None:
    async with https_sink(HOST) as sink:
        sink.answer = NEVER
        assert (await fails(to(sink), sink.url, within=0.3)).reason is FailureReason.TIMED_OUT


async def test_only_the_start_of_an_answer_is_read() -> None:
    async with https_sink(HOST) as sink:
        sink.answer = b"HTTP/1.1 200 OK\r\n" + b"x" * (64 << 20)
        await to(sink).send(sink.url, b"{}", {}, within=10)
        sink.answer = b"y" * (1 << 20)
        assert (await fails(to(sink), sink.url)).reason is FailureReason.UNREACHABLE
        sink.answer = b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n"
        await to(sink).send(sink.url, b"{}", {}, within=10)
        sink.answer = b"HTTP/1.1 103 Early\r\n\r\n" * 1000
        assert (await fails(to(sink), sink.url)).reason is FailureReason.UNREACHABLE
        sink.answer = b""
        assert (await fails(to(sink), sink.url)).reason is FailureReason.UNREACHABLE


async def test_the_certificate_must_be_trusted_and_for_the_host() -> None:
    async with https_sink(HOST) as sink:
        rules = AddressRules(allowed=frozenset({HOST, "127.0.0.1"}))
        stranger = Delivery(rules, trust(), user_agent="x", resolve=_loopback)
        assert (await fails(stranger, sink.url)).reason is FailureReason.UNTRUSTED
        other = Delivery(rules, trust(sink.authority.certificate), user_agent="x")
        assert (await fails(other, f"https://127.0.0.1:{sink.port}/")).reason is FailureReason.UNTRUSTED
    assert sink.received == []


async def _loopback(host: str, port: int) -> list[Address]:
    return [ipaddress.ip_address("127.0.0.1")]


async def test_loopback_is_refused_unless_the_host_is_allowed_and_nothing_is_connected() -> None:
    async with https_sink(HOST) as sink:
        failure = await fails(to(sink, allowed="other.example.com"), sink.url)
        assert failure.reason is FailureReason.REFUSED
        assert "--notification-hosts" in str(failure)
        assert (await fails(to(sink), f"https://127.0.0.1:{sink.port}/")).reason is FailureReason.REFUSED
        assert (await fails(to(sink), f"https://[::1]:{sink.port}/")).reason is FailureReason.REFUSED
    assert sink.received == []


async def test_one_refused_address_refuses_the_host_and_each_attempt_resolves_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [["93.184.216.34", "10.0.0.1"], ["93.184.216.34"]]
    asked: list[str] = []
    connected: list[str] = []

    async def resolve(host: str, port: int) -> list[Address]:
        asked.append(host)
        return [address for text in answers.pop(0) if (address := parsed(text))]

    async def connect(host: str, *_: object, **options: object) -> None:
        connected.append(f"{host} for {options['server_hostname']}")
        raise OSError("not here")

    monkeypatch.setattr(asyncio, "open_connection", connect)
    sender = Delivery(AddressRules(), trust(), user_agent="x", resolve=resolve)
    assert (await fails(sender, "https://hooks.example.com/")).reason is FailureReason.REFUSED
    assert connected == []
    # A name that has another address a moment later (DNS rebinding) is not resolved a second time.
    assert (await fails(sender, "https://hooks.example.com/")).reason is FailureReason.UNREACHABLE
    assert connected == ["93.184.216.34 for hooks.example.com"]
    # No search domain of the Pod is tried.
    assert asked == ["hooks.example.com."] * 2


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://user:password@hooks.example.com/",
        "https://hooks.example.com/#a",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/\r\nX: y",
        "https://hooks.example.com:99999/",
        "https://hooks.example.com:0x1/",
        "https://[fe80::1%25eth0]/",
        "https://",
        "ftp://hooks.example.com/",
    ],
)
async def test_other_addresses_than_https_are_refused(url: str) -> None:
    async def resolve(host: str, port: int) -> list[Address]:
        raise AssertionError(host)

    sender = Delivery(AddressRules(), trust(), user_agent="x", resolve=resolve)
    assert (await fails(sender, url)).reason is FailureReason.REFUSED


async def test_numbers_that_are_addresses_for_the_system_are_checked_as_such() -> None:
    sender = Delivery(AddressRules(), trust(), user_agent="x")
    for host in ("2130706433", "0x7f.1", "127.1"):
        failure = await fails(sender, f"https://{host}/")
        assert failure.reason in (FailureReason.REFUSED, FailureReason.NOT_RESOLVED)


async def test_a_lookup_that_hangs_is_given_up_and_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_request, "_RESOLVING", 0.05)
    release = asyncio.Event()
    loop, calls = asyncio.get_running_loop(), []

    def hang(host: str, *_: object, **__: object) -> list[object]:
        calls.append(host)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        raise OSError("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    resolver = Resolver()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await resolver("slow.example.com", 443)
    assert calls == ["slow.example.com"]
    release.set()


def test_own_addresses_are_those_of_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert own_addresses("https://34.1.2.3:6443") == {"34.1.2.3", "10.96.0.1"}
    assert own_addresses("https://[2a00::1]:6443") == {"2a00::1", "10.96.0.1"}
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert own_addresses("https://api.example.com") == frozenset()


def test_a_file_without_certificates_is_refused() -> None:
    for content in (b"nonsense", b"\xff"):
        with pytest.raises(UnwindError, match="--notification-ca"):
            trust(content)
