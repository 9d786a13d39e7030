"""Certificates say who somebody is, and are verified on both sides."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest

from unwind.certificates import Authority, KeyPair

if TYPE_CHECKING:
    from pathlib import Path

STRICT = ssl.VERIFY_X509_STRICT


def write(directory: Path, pair: KeyPair) -> Path:
    file = directory / "pair.pem"
    file.write_bytes(pair.certificate + pair.key)
    return file


def handshake(directory: Path, *, server: KeyPair, trusted: bytes, name: str, client: KeyPair | None = None) -> object:
    """Connect to a real TLS server; what the server knows of the client comes back."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(write(directory, server))
    calling = ssl.create_default_context(cadata=trusted.decode())
    calling.verify_flags |= STRICT
    if client:
        serving.verify_mode = ssl.CERT_REQUIRED
        serving.load_verify_locations(cadata=trusted.decode())
        calling.load_cert_chain(write(directory, client))
    known: list[object] = []

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                try:
                    with serving.wrap_socket(accepted, server_side=True) as secured:
                        known.append(secured.getpeercert())
                        secured.send(b".")
                except ssl.SSLError:
                    pass  # the caller did not like us, and says so itself

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname()) as connected,
                calling.wrap_socket(connected, server_hostname=name) as secured,
            ):
                secured.recv(1)
        finally:
            thread.join()
    return known[0]


def test_a_server_is_verified_by_name_and_by_address(tmp_path: Path) -> None:
    authority = Authority("test")
    server = authority.server("api", hosts=("127.0.0.1", "localhost"))
    for name in ("127.0.0.1", "localhost"):
        handshake(tmp_path, server=server, trusted=authority.certificate, name=name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|not valid for"):
        handshake(tmp_path, server=server, trusted=authority.certificate, name="elsewhere")


def test_another_authority_of_the_same_name_is_not_believed(tmp_path: Path) -> None:
    server = Authority("test").server("api", hosts=("localhost",))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, server=server, trusted=Authority("test").certificate, name="localhost")


def test_a_client_certificate_carries_the_user_and_the_groups(tmp_path: Path) -> None:
    authority = Authority("test")
    known = handshake(
        tmp_path,
        server=authority.server("api", hosts=("localhost",)),
        trusted=authority.certificate,
        name="localhost",
        client=authority.client("admin", groups=("system:masters", "ops")),
    )
    assert isinstance(known, dict)
    assert known["subject"] == (
        (("organizationName", "system:masters"),),
        (("organizationName", "ops"),),
        (("commonName", "admin"),),
    )
