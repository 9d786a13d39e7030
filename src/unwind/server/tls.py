"""TLS context of the listener: serving certificate and client CA, both replaceable at runtime."""

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
