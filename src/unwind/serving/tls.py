"""TLS of the listener: who we are, and who may call; both can be replaced while connections come in."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING

from cryptography import x509

if TYPE_CHECKING:
    import datetime as dt

    from unwind.certificates import KeyPair


class Tls:
    """The context that a listener is opened with, and what is behind it now.

    The context of a listening socket cannot be exchanged, and to load other certificates into it is not all or
    nothing: a key that does not fit leaves it broken, and an authority once trusted stays trusted. So each change gets
    a context of its own, made and found good beforehand, and the handshake is turned over to the newest. A connection
    keeps the one it began with: none is dropped.
    """

    def __init__(self, pair: KeyPair, *, callers: bytes | None = None) -> None:
        """Show this certificate; with `callers`, let in only who has one from that authority.

        Raises ValueError if they cannot be used.
        """
        self._pair, self._callers = pair, callers
        self._newest = _context(pair, callers)
        self._changing = asyncio.Lock()
        self.context = _context(pair, callers)
        # It is also called when the caller names no server.
        self.context.sni_callback = self._turn_over

    async def show(self, pair: KeyPair) -> None:
        """Show this certificate from the next connection on. Raises ValueError, and shows the old one, if it is bad."""
        async with self._changing:
            self._newest = await asyncio.to_thread(_context, pair, self._callers)
            self._pair = pair

    async def admit(self, callers: bytes) -> None:
        """Let in whoever has a certificate from this authority, and nobody else. Raises ValueError if it is none."""
        if self._callers is None:
            raise ValueError("whether callers need a certificate is decided at the start")
        async with self._changing:
            self._newest = await asyncio.to_thread(_context, self._pair, callers)
            self._callers = callers

    @property
    def pair(self) -> KeyPair:
        """What is shown now."""
        return self._pair

    @property
    def ends(self) -> dt.datetime:
        """When the certificate is not valid any more."""
        return x509.load_pem_x509_certificate(self._pair.certificate).not_valid_after_utc

    def _turn_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def _context(pair: KeyPair, callers: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # All that is left to choose from is good, so the caller may take what its processor is fast at.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # A resumed session is not verified again: it would outlive the authority of its caller.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        # The standard library takes certificates from files only; this one never is on a disk.
        file = os.memfd_create("certificate")
        try:
            os.write(file, pair.certificate + b"\n" + pair.key)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"the certificate and its key cannot be used ({_reason(error)})") from error
    if callers is not None:
        try:
            context.load_verify_locations(cadata=callers.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"there is no certificate of an authority in it ({_reason(error)})") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else "") or str(error)
