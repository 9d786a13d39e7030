"""Where to listen: `HOST:PORT`."""

from __future__ import annotations

import errno
import socket

import msgspec

from unwind.errors import UnwindError, UsageError


class Address(msgspec.Struct, frozen=True):
    """A host, by address or name, and a port; port 0 is one that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def everywhere(self) -> bool:
        """Whether it stands for all addresses of this machine."""
        return self.host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def parse(text: str, *, option: str) -> Address:
    """Read what was given for the option. Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not bracketed):
        raise UsageError(f"{option} is {text!r}", remedy="write HOST:PORT, such as 0.0.0.0:9443 or [::1]:9443")
    return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - a webhook is called from elsewhere


def listen(address: Address, *, option: str) -> socket.socket:
    """Take the address, so that nobody else can. Raises UnwindError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UnwindError(
            f"{option} names a host that is not known, {address.host!r} ({error.strerror})",
            remedy="use an address of this machine, or 0.0.0.0 for all of them",
        ) from error
    family, _, _, _, where = found[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(1024)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        remedies = {
            errno.EADDRINUSE: f"end what listens there, or choose another port with {option}",
            errno.EACCES: f"choose a port above 1023 with {option}",
            errno.EADDRNOTAVAIL: "use an address of this machine, or 0.0.0.0 for all of them",
        }
        raise UnwindError(
            f"cannot listen on {address} ({error.strerror})", remedy=remedies.get(error.errno or 0, "")
        ) from error
    return listening


def of(listening: socket.socket) -> Address:
    """The address that a socket listens on, its port known."""
    host, port, *_ = listening.getsockname()
    return Address(host, port)
