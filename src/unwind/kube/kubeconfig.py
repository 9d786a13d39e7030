"""Kubeconfig files: what a client needs to know of a cluster, and how to write it down."""

from __future__ import annotations

import base64
import ssl
import tempfile
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from pathlib import Path


class Connection(msgspec.Struct, frozen=True):
    """Where an API server is and how to prove who we are."""

    server: str
    authority: bytes
    certificate: bytes
    key: bytes

    def ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.decode())
        # The standard library takes a client certificate from a file only.
        with tempfile.NamedTemporaryFile() as pem:
            pem.write(self.certificate + b"\n" + self.key)
            pem.flush()
            context.load_cert_chain(pem.name)
        return context


def document(connection: Connection, *, cluster: str, user: str) -> str:
    """The kubeconfig file, as text, with everything in it."""
    return yaml.dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": cluster,
                    "cluster": {
                        "server": connection.server,
                        "certificate-authority-data": _encode(connection.authority),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": _encode(connection.certificate),
                        "client-key-data": _encode(connection.key),
                    },
                }
            ],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        },
        Dumper=yaml.CSafeDumper,
        sort_keys=False,
    )


def load(path: Path) -> Connection:
    """Read the current context of a kubeconfig file."""
    try:
        config: Any = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        return Connection(
            server=cluster["server"],
            authority=base64.b64decode(cluster["certificate-authority-data"]),
            certificate=base64.b64decode(user["client-certificate-data"]),
            key=base64.b64decode(user["client-key-data"]),
        )
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError) as error:
        raise UnwindError(
            f"{path} is not a kubeconfig that can be used here ({type(error).__name__}: {error})",
            remedy="`kubectl --kubeconfig FILE config view` shows what is in it",
        ) from error


def _named(config: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    for entry in config[section]:
        if entry["name"] == name:
            return dict(entry)
    raise KeyError(f"{section} has no {name!r}")


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
