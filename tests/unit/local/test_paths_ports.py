"""A port that was reserved stays ours."""

from __future__ import annotations

import socket

import pytest

from unwind.local.paths import Port


def test_nobody_else_can_take_a_reserved_port() -> None:
    port = Port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port.number))
    port.release()


@pytest.mark.parametrize(
    ("option", "host"),
    [(socket.SO_REUSEPORT, "127.0.0.1"), (socket.SO_REUSEADDR, "127.0.0.1"), (socket.SO_REUSEADDR, "0.0.0.0")],  # noqa: S104
    ids=["as Kubernetes does", "as any Go program does", "also on every address"],
)
def test_the_program_it_is_for_can_bind_it_and_gets_every_connection(option: int, host: str) -> None:
    port = Port()
    with socket.socket() as program:
        program.setsockopt(socket.SOL_SOCKET, option, 1)
        program.bind((host, port.number))
        program.listen()
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port.number), timeout=5):
                program.accept()[0].close()
    port.release()


def test_a_released_port_is_free_again() -> None:
    port = Port()
    port.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port.number))
