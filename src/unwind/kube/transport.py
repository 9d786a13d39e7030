"""How requests travel: one answer to one question, or a stream of lines. All that knows HTTP is here."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from yarl import URL

from unwind.errors import UnwindError
from unwind.kube.credentials import Credentials, Proof
from unwind.kube.errors import UnreachableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from unwind.kube.kubeconfig import Connection

_CONNECTING = 10.0
# How many requests may be under way to one API server; what comes on top waits for its turn here, where it costs
# nothing, and not there. Watches do not count.
_IN_FLIGHT = 128
_KEEP_ALIVE = 75.0


class Answer(msgspec.Struct, frozen=True):
    """What a server answered."""

    status: int
    body: bytes
    retry_after: float | None = None


class Transport(Protocol):
    """The two ways of asking a server."""

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> Answer:
        """Ask once. Raises UnreachableError if no answer came."""

    def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AbstractAsyncContextManager[Answer | AsyncIterator[list[bytes]]]:
        """Ask for a stream: whole lines, as many at a time as have come; or the answer that refuses it.

        Raises UnreachableError when nothing came for `silence` seconds, or the connection broke.
        """

    async def close(self) -> None:
        """Let go of every connection."""


class HttpTransport:
    """Requests over pooled HTTP/1.1 connections."""

    def __init__(self, connection: Connection, *, user_agent: str) -> None:
        self.connection = connection
        self._credentials = Credentials(connection)
        self._bound = asyncio.Semaphore(_IN_FLIGHT)
        self._contexts: dict[bytes | None, ssl.SSLContext] = {}
        self._base_headers = {"User-Agent": user_agent}
        if connection.impersonate:
            self._base_headers["Impersonate-User"] = connection.impersonate
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            read_bufsize=1 << 17,
        )
        self._proxy = _proxy(connection)
        self._secure = connection.server.startswith("https:")

    async def close(self) -> None:
        await self._session.close()

    async def request(
        self, method: str, target: str, *, body: bytes | None = None, headers: Mapping[str, str], within: float
    ) -> Answer:
        try:
            async with asyncio.timeout(within), self._bound:
                answer, proof = await self._ask(method, target, body, headers)
                if answer.status == 401 and self._credentials.renewable:
                    self._credentials.refused(proof)
                    answer, _ = await self._ask(method, target, body, headers)
                return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(f"{method} {target}", error) from error

    @asynccontextmanager
    async def stream(
        self, target: str, *, headers: Mapping[str, str], silence: float
    ) -> AsyncIterator[Answer | AsyncIterator[list[bytes]]]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECTING, sock_read=silence)
        try:
            proof = await self._credentials.proof()
            async with self._call("GET", target, None, headers, proof, timeout) as answer:
                if answer.status == 200:
                    yield _lines(answer.content)
                    return
                if answer.status == 401:
                    self._credentials.refused(proof)
                yield Answer(answer.status, await answer.read(), _retry_after(answer.headers))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(f"watch {target}", error) from error

    async def _ask(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[Answer, Proof]:
        proof = await self._credentials.proof()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECTING)
        async with self._call(method, target, body, headers, proof, timeout) as answer:
            return Answer(answer.status, await answer.read(), _retry_after(answer.headers)), proof

    def _call(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        proof: Proof,
        timeout: aiohttp.ClientTimeout,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        shown = {"Authorization": proof.authorization} if proof.authorization else {}
        return self._session.request(
            method,
            URL(self.connection.server + target, encoded=True),
            data=body,
            headers={**self._base_headers, **headers, **shown},
            ssl=self._context(proof) if self._secure else False,
            server_hostname=self.connection.server_name,
            proxy=self._proxy,
            # An API server never redirects; whoever does is something else, and gets no credentials from us.
            allow_redirects=False,
            timeout=timeout,
        )

    def _context(self, proof: Proof) -> ssl.SSLContext:
        if proof.certificate not in self._contexts:
            # A plugin may give another certificate one day: what was shown before is of no use then.
            context = self.connection.ssl_context(certificate=proof.certificate, key=proof.key)
            self._contexts = {proof.certificate: context}
        return self._contexts[proof.certificate]

    def _unreachable(self, request: str, error: BaseException) -> UnreachableError:
        server = self.connection.server
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            what = f"{server} shows a certificate that is not to be trusted ({error.certificate_error})"
            remedy = "check certificate-authority and tls-server-name in the kubeconfig"
        elif isinstance(error, aiohttp.ClientConnectorError):
            what, remedy = (
                f"{server} cannot be reached ({error.strerror or error})",
                "is it up, and is the address right?",
            )
        elif isinstance(error, TimeoutError):
            what, remedy = f"{server} does not answer", "is it overloaded, or does something swallow the packets?"
        else:
            what, remedy = f"the connection to {server} broke ({type(error).__name__}: {error})", ""
        return UnreachableError(f"{what} ({request})", remedy=remedy)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """Whole lines, a list for each piece that came: to await each line costs more than to read it."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n") if rest else piece.split(b"\n")
        if lines:
            yield lines


def _proxy(connection: Connection) -> str | None:
    """The proxy on the way: the kubeconfig's, else the environment's. None ever for this machine, as with kubectl."""
    url = URL(connection.server)
    proxy = connection.proxy
    if not proxy and url.host not in ("localhost", "127.0.0.1", "::1") and not proxy_bypass(url.host or ""):
        proxy = getproxies().get(url.scheme)
    if proxy and not proxy.startswith(("http://", "https://")):
        raise UnwindError(f"the proxy {proxy} is of a kind that is not supported", remedy="use an HTTP proxy")
    return proxy


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):  # not there, or a date, which no API server sends
        return None
