"""Ports on loopback that stay ours."""

from __future__ import annotations

import socket


class Port:
    """A free port on loopback, held from now until it is released.

    The socket is bound and never listens, so that it gets no connection, and it shares the port with whoever binds
    it with SO_REUSEPORT (Kubernetes' programs can) or SO_REUSEADDR (every Go program does): the program it is for
    does. Nobody else is given the port meanwhile, not even while that program is being started again.
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
