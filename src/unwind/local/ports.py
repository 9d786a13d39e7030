"""Reserved loopback ports."""

from __future__ import annotations

import socket


class Port:
    """A free loopback port, reserved until it is released.

    The socket is bound and never listens, so that it gets no connection, and it shares the port with a program that
    binds it with SO_REUSEPORT (as Kubernetes' programs can) or SO_REUSEADDR (as every Go program does). No other
    program is given the port meanwhile, not even while that program restarts.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()

    def __str__(self) -> str:
        return str(self.number)
