"""TLS context of the listener: serving certificate and client CA, replaceable at runtime, and reloaded from files."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from cryptography import x509

from unwind import logs
from unwind.errors import UnwindError

if TYPE_CHECKING:
    import datetime as dt

    from unwind.certificates import KeyPair

log = logs.get(__name__)

Signature = tuple[tuple[int, int, int], ...]


class Tls:
    """The SSL context of a listener, and the current certificate behind it.

    The context of a listening socket cannot be replaced, and loading other certificates into it is not atomic: a
    mismatched key leaves it broken, and a trusted CA stays trusted. So each change gets a new, verified context, and
    the handshake is switched to the newest one. A connection keeps the context it began with, so none is dropped.
    """

    def __init__(self, pair: KeyPair, *, callers: bytes | None = None) -> None:
        """Serve this certificate; with `callers`, require client certificates from that CA.

        Raises ValueError if they are invalid.
        """
        self._pair, self._callers = pair, callers
        self._newest = _context(pair, callers)
        self._changing = asyncio.Lock()
        self.context = _context(pair, callers)
        # The callback also runs when the client sends no SNI.
        self.context.sni_callback = self._turn_over

    async def show(self, pair: KeyPair) -> None:
        """Serve this certificate to new connections. Raises ValueError and keeps the old one if it is invalid."""
        async with self._changing:
            self._newest = await asyncio.to_thread(_context, pair, self._callers)
            self._pair = pair

    async def admit(self, callers: bytes) -> None:
        """Require client certificates from this CA. Raises ValueError if it is not a CA."""
        if self._callers is None:
            raise ValueError(
                "cannot require client certificates: they were not enabled at startup; restart with --client-ca"
            )
        async with self._changing:
            self._newest = await asyncio.to_thread(_context, self._pair, callers)
            self._callers = callers

    @property
    def pair(self) -> KeyPair:
        """The current certificate and key."""
        return self._pair

    @property
    def ends(self) -> dt.datetime:
        """When the certificate expires."""
        return x509.load_pem_x509_certificate(self._pair.certificate).not_valid_after_utc

    def _turn_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def _context(pair: KeyPair, callers: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # All remaining ciphers are strong, so the client may choose the one that is fastest for it.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # A resumed session is not verified again: it would outlive a revoked client CA.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        # The ssl module loads certificates from files only; a memfd keeps the key off the disk.
        file = os.memfd_create("certificate")
        try:
            os.write(file, pair.certificate + b"\n" + pair.key)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"invalid certificate or key ({_reason(error)})") from error
    if callers is not None:
        try:
            context.load_verify_locations(cadata=callers.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"no CA certificate found ({_reason(error)})") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else "") or str(error)


class WatchedFiles(msgspec.Struct, frozen=True):
    """Files that belong together, and the function that uses their contents."""

    option: str
    paths: tuple[Path, ...]
    use: Callable[[Sequence[bytes]], Awaitable[None]]
    """Raises ValueError if the contents are invalid."""


class CertificateFiles:
    """Polls files and passes on changed contents.

    Polled, because a mounted Secret is replaced by a symbolic link two directories up, which a file notification does
    not report.
    """

    name = "files"
    ready = True

    def __init__(self, watched: Sequence[WatchedFiles], *, interval: float = 1.0) -> None:
        self._watched = watched
        self._interval = interval
        # The files may have changed since they were read at startup: the first poll always passes them on.
        self._seen: list[Signature] = [() for _ in watched]

    async def run(self) -> None:
        while True:
            for number, one in enumerate(self._watched):
                seen = await asyncio.to_thread(_signature, one.paths)
                if seen != self._seen[number]:
                    # Recorded before reading, so that a change in between is seen by the next poll.
                    self._seen[number] = seen
                    await self._hand_on(one)
            await asyncio.sleep(self._interval)

    async def _hand_on(self, watched: WatchedFiles) -> None:
        about = ", ".join(str(path) for path in watched.paths)
        try:
            await watched.use(await asyncio.to_thread(read_files, watched.paths, option=watched.option))
        except (UnwindError, ValueError) as error:
            # Certificate and key are written one after the other, so a poll may find a mismatch.
            log.warning(
                "files not reloaded, their previous content stays in use",
                files=about,
                why=str(error),
                remedy="correct them: changed files are read again",
            )
        else:
            log.info("files reloaded", files=about)


def read_files(paths: Sequence[Path], *, option: str) -> list[bytes]:
    """The contents of the files. Raises UnwindError."""
    contents = []
    for path in paths:
        try:
            contents.append(path.read_bytes())
        except OSError as error:
            raise UnwindError(f"cannot read {path}: {error.strerror}", remedy=f"check {option}") from error
    return contents


def _signature(paths: Sequence[Path]) -> Signature:
    """A value that changes when a file is written or replaced."""
    found = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - follows the links, which is what is exchanged
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
