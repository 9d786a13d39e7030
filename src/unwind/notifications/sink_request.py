"""Sends notifications: one HTTPS request to an address that was checked, and nothing of the answer but its status."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from unwind.api.fields import Word
from unwind.api.policies import URL_PATTERN
from unwind.errors import UnwindError
from unwind.notifications.addresses import Address, AddressRules, parsed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    Resolve = Callable[[str, int], Awaitable[list[Address]]]

# The status line and the headers of an answer. The body is never read.
_MOST = 16 << 10
_MOST_INFORMATIONAL = 8
_CONNECTING = 5.0
_RESOLVING = 5.0
_TRIED = 4
_STATUS = re.compile(rb"^HTTP/1\.[01] ([1-9][0-9]{2})(?: |\r?\n)")


class FailureReason(Word):
    """Why a notification was not delivered."""

    REFUSED = "AddressRefused"
    """The manager does not call this address."""
    NOT_RESOLVED = "NotResolved"
    UNREACHABLE = "Unreachable"
    UNTRUSTED = "Untrusted"
    """The certificate of the sink is not trusted, or is for another host."""
    TIMED_OUT = "TimedOut"
    REDIRECTED = "Redirected"
    STATUS = "Status"
    """The sink answered with an error."""
    KEY = "SigningKey"
    """The signing key cannot be used."""


class DeliveryError(UnwindError):
    """A notification was not delivered. The message contains nothing that the sink sent, except its status."""

    def __init__(self, reason: FailureReason, what: str, *, remedy: str) -> None:
        super().__init__(what, remedy=remedy)
        self.reason = reason


class Delivery:
    """Sends notifications within the address rules."""

    def __init__(
        self, rules: AddressRules, context: ssl.SSLContext, *, user_agent: str, resolve: Resolve | None = None
    ) -> None:
        self._rules = rules
        self._context = context
        self._user_agent = user_agent
        self._resolve = resolve or Resolver()

    async def send(self, url: str, body: bytes, headers: Mapping[str, str], *, within: float) -> None:
        """Send one notification. Raises DeliveryError if the sink did not accept it within so many seconds."""
        if not re.fullmatch(URL_PATTERN, url, flags=re.ASCII):
            raise _refused(
                "its address is not an https URL without user and fragment",
                remedy="correct the url of the sink: https://HOST[:PORT]/PATH",
            )
        parts = urlsplit(url)
        host = parts.hostname or ""
        try:
            port = parts.port or 443
        except ValueError:
            raise _refused("its address has an invalid port", remedy="correct the url of the sink") from None
        try:
            async with asyncio.timeout(within):
                addresses = await self._checked(host, port)
                status = await self._post(addresses, host, port, _request(url, self._user_agent, body, headers))
        except TimeoutError:
            raise DeliveryError(
                FailureReason.TIMED_OUT,
                f"no answer within {within:.0f}s",
                remedy="check the sink: it should answer before it works on the notification",
            ) from None
        if 300 <= status < 400:
            raise DeliveryError(
                FailureReason.REDIRECTED,
                f"answered with HTTP {status}, and redirects are not followed",
                remedy="write the address that it redirects to into the policy",
            )
        if not 200 <= status < 300:
            raise DeliveryError(FailureReason.STATUS, f"answered with HTTP {status}", remedy="see the logs of the sink")

    async def _checked(self, host: str, port: int) -> list[Address]:
        """All addresses of a host. If one of them is refused, the host is."""
        if why := self._rules.refuse_host(host):
            raise _refused(why)
        literal = parsed(host)
        if literal:
            addresses = [literal]
        else:
            # With a dot at its end, so that no search domain of the Pod is tried: others may own names there.
            name = host if host.lower() in self._rules.allowed else f"{host.rstrip('.')}."
            try:
                addresses = await self._resolve(name, port)
            except OSError as error:
                raise DeliveryError(
                    FailureReason.NOT_RESOLVED,
                    f"cannot resolve {host}: {error.strerror or error}",
                    remedy="check the name, and the DNS of the manager",
                ) from error
        for address in addresses:
            if why := self._rules.refuse_address(host, address):
                raise _refused(why)
        return addresses[:_TRIED]

    async def _post(self, addresses: list[Address], host: str, port: int, request: bytes) -> int:
        """Send a request to the first of these addresses that answers; return the status of the answer."""
        reader, writer = await self._connected(addresses, host, port)
        try:
            writer.write(request)
            return await _status(reader)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, OSError) as error:
            told = "not HTTP" if isinstance(error, ValueError | asyncio.LimitOverrunError) else "closed too early"
            raise DeliveryError(
                FailureReason.UNREACHABLE, f"the answer was {told}", remedy="check that an HTTP server is there"
            ) from error
        finally:
            # Nothing more is read or sent.
            writer.transport.abort()

    async def _connected(
        self, addresses: list[Address], host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failure: DeliveryError | None = None
        for address in addresses:
            try:
                async with asyncio.timeout(_CONNECTING):
                    # The address that was checked, and not the name, which may have another address by now.
                    return await asyncio.open_connection(
                        str(address), port, ssl=self._context, server_hostname=host, limit=_MOST
                    )
            except ssl.SSLError as error:
                told = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
                failure = DeliveryError(
                    FailureReason.UNTRUSTED,
                    f"the TLS connection failed: {told or 'no TLS'}",
                    remedy="check its certificate; for a private CA, use the option --notification-ca of the manager",
                )
            except (OSError, TimeoutError) as error:
                told = "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)
                failure = DeliveryError(
                    FailureReason.UNREACHABLE,
                    f"cannot connect: {told}",
                    remedy="check that it is running, and that network policies let the manager call it",
                )
        assert failure  # noqa: S101 - a host has at least one address
        raise failure


async def _status(reader: asyncio.StreamReader) -> int:
    for _ in range(_MOST_INFORMATIONAL):
        head = await reader.readuntil(b"\n")
        found = _STATUS.match(head)
        if not found:
            raise ValueError("not HTTP")
        status = int(found[1])
        if status >= 200:
            return status
        while (await reader.readuntil(b"\n")).strip():
            pass  # the headers of an informational answer
    raise ValueError("too many informational answers")


def _request(url: str, user_agent: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {parts.netloc}",
        f"User-Agent: {user_agent}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body


_ALLOW = "use a public address, or allow the host with the option --notification-hosts of the manager"


def _refused(why: str, *, remedy: str = _ALLOW) -> DeliveryError:
    return DeliveryError(FailureReason.REFUSED, f"not called: {why}", remedy=remedy)


class Resolver:
    """Resolves names in threads of its own: a name that no server answers must delay neither the connections to API
    servers nor other sinks. A name has one lookup at a time, however many tasks wait for it."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], asyncio.Future[list[Address]]] = {}

    async def __call__(self, host: str, port: int) -> list[Address]:
        """All addresses of a host, at least one. Raises OSError."""
        key = (host, port)
        running = self._running.get(key)
        if running is None:
            self._running[key] = running = asyncio.get_running_loop().create_future()
            running.add_done_callback(lambda done: self._done(key, done))
            # A daemon: the system may take half a minute, and the process does not wait for it at its end.
            threading.Thread(target=_resolve, args=(running, *key), name="notification-name", daemon=True).start()
        async with asyncio.timeout(_RESOLVING):
            return list(await asyncio.shield(running))

    def _done(self, key: tuple[str, int], done: asyncio.Future[list[Address]]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # all who waited for it may have given up


def _resolve(found: asyncio.Future[list[Address]], host: str, port: int) -> None:
    try:
        addresses, failure = _lookup(host, port), None
    except (OSError, UnicodeError) as error:
        addresses, failure = [], error if isinstance(error, OSError) else OSError(str(error))

    def tell() -> None:
        if found.done():
            return
        if failure:
            found.set_exception(failure)
        else:
            found.set_result(addresses)

    with suppress(RuntimeError):  # the loop is closed: the process ends
        found.get_loop().call_soon_threadsafe(tell)


def _lookup(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [address for *_, name in found if (address := parsed(str(name[0]).partition("%")[0]))]
    if not addresses:
        raise OSError("it has no address")
    return list(dict.fromkeys(addresses))


def trust(authorities: bytes = b"") -> ssl.SSLContext:
    """The TLS settings for sinks: the CAs of the system, and these. Raises UnwindError."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authorities:
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise UnwindError(
                "cannot use the file of --notification-ca: it contains no certificate", remedy="write PEM into it"
            ) from error
    return context


def own_addresses(server: str) -> frozenset[str]:
    """The addresses of the API server that are known without a lookup."""
    hosts = (urlsplit(server).hostname or "", os.environ.get("KUBERNETES_SERVICE_HOST", ""))
    return frozenset(str(address) for host in hosts if (address := parsed(host)))
