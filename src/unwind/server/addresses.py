"""Listen addresses: parse `HOST:PORT` and bind sockets."""

from __future__ import annotations

import errno
import socket

import msgspec

from unwind.errors import UnwindError, UsageError


class Address(msgspec.Struct, frozen=True):
    """A host, as IP address or name, and a port; port 0 selects a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def everywhere(self) -> bool:
        """Whether it is the wildcard address."""
        return self.host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def parse(text: str, *, option: str) -> Address:
    """Parse the value of an option. Raises UsageError."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not bracketed):
        raise UsageError(f"invalid {option} {text!r}", remedy="use HOST:PORT, such as 0.0.0.0:9443 or [::1]:9443")
    return Address(host.strip("[]") or "0.0.0.0", int(port))  # noqa: S104 - a webhook is called from elsewhere


def listen(address: Address, *, option: str) -> socket.socket:
    """A socket bound to the address. Raises UnwindError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise UnwindError(
            f"cannot resolve host {address.host!r} of {option}: {error.strerror}",
            remedy="use an address of this machine, or 0.0.0.0 for all",
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
            errno.EADDRINUSE: f"stop the process that listens there, or choose another port with {option}",
            errno.EACCES: f"choose a port above 1023 with {option}",
            errno.EADDRNOTAVAIL: "use an address of this machine, or 0.0.0.0 for all",
        }
        raise UnwindError(
            f"cannot listen on {address}: {error.strerror}", remedy=remedies.get(error.errno or 0, "")
        ) from error
    return listening


def of(listening: socket.socket) -> Address:
    """The address of a listening socket, with its actual port."""
    host, port, *_ = listening.getsockname()
    return Address(host, port)
