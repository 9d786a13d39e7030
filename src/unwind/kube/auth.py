"""Credentials that change at run time: token files and exec plugins."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UnwindError
from unwind.kube.kubeconfig import Basic, Exec, Token, TokenFile

if TYPE_CHECKING:
    from unwind.kube.kubeconfig import ClusterConnection

# A projected token is renewed long before it expires; client-go reads the file as often.
_FILE_LIFETIME = 60.0
# A plugin's credential is renewed shortly before it expires, so that none expires in flight.
_MARGIN = 30.0
_PLUGIN_TIMEOUT = 60.0


class RequestCredentials(msgspec.Struct, frozen=True):
    """The credentials of a request: a header, or a client certificate from a plugin."""

    authorization: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None


class Credentials:
    """Provides credentials for requests, and renews them when necessary."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._proof: RequestCredentials | None = None
        self._until = 0.0
        self._renewing = asyncio.Lock()

    async def proof(self) -> RequestCredentials:
        """The current credentials."""
        if self._proof is None or time.monotonic() >= self._until:
            # Many requests find out at once: one of them renews, the others wait for it.
            async with self._renewing:
                if self._proof is None or time.monotonic() >= self._until:
                    self._proof, self._until = await self._obtain()
        return self._proof

    @property
    def renewable(self) -> bool:
        """Whether asking again could return other credentials."""
        return isinstance(self._connection.credential, TokenFile | Exec)

    def refused(self, proof: RequestCredentials) -> None:
        """The server rejected these credentials: the next request gets new ones."""
        if proof is self._proof:
            self._until = 0.0

    async def _obtain(self) -> tuple[RequestCredentials, float]:
        match self._connection.credential:
            case Token(token):
                return RequestCredentials(f"Bearer {token}"), float("inf")
            case Basic(username, password):
                text = base64.b64encode(f"{username}:{password}".encode()).decode()
                return RequestCredentials(f"Basic {text}"), float("inf")
            case TokenFile(path):
                token = await asyncio.to_thread(_read, path)
                return RequestCredentials(f"Bearer {token}"), time.monotonic() + _FILE_LIFETIME
            case Exec() as plugin:
                return await _run(plugin, self._connection)
            case None:
                return RequestCredentials(), float("inf")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise UnwindError(
            f"cannot read the token file {path}: {error.strerror}", remedy="check that it exists and is readable"
        ) from error


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: dt.datetime | None = None


class _ExecCredential(msgspec.Struct):
    kind: str
    status: _Status


async def _run(plugin: Exec, connection: ClusterConnection) -> tuple[RequestCredentials, float]:
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=os.environ | plugin.env | {"KUBERNETES_EXEC_INFO": _exec_info(plugin, connection)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise UnwindError(
            f"cannot run the credential plugin {plugin.command}: {error.strerror}",
            remedy=" ".join(plugin.install_hint.split()) or "install it, or use another user in the kubeconfig",
        ) from error
    try:
        async with asyncio.timeout(_PLUGIN_TIMEOUT):
            output, complaint = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise UnwindError(
                f"the credential plugin {plugin.command} timed out after {_PLUGIN_TIMEOUT:.0f}s",
                remedy="run it by hand to see what it waits for",
            ) from None
        raise
    if process.returncode:
        said = complaint.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise UnwindError(
            f"the credential plugin {plugin.command} failed: {said[-1]}",
            remedy="run it by hand to see the error",
        )
    try:
        status = msgspec.json.decode(output, type=_ExecCredential).status
    except msgspec.DecodeError as error:
        raise UnwindError(
            f"cannot decode the output of the credential plugin {plugin.command}: {error}",
            remedy="run it by hand: it must print an ExecCredential as JSON",
        ) from error
    return _proof(status), _lasts(status.expiration_timestamp)


def _proof(status: _Status) -> RequestCredentials:
    return RequestCredentials(
        authorization=f"Bearer {status.token}" if status.token else None,
        certificate=status.client_certificate_data.encode() if status.client_certificate_data else None,
        key=status.client_key_data.encode() if status.client_key_data else None,
    )


def _lasts(expiration: dt.datetime | None) -> float:
    if expiration is None:
        return float("inf")  # until the server rejects it
    remaining = (expiration - dt.datetime.now(dt.UTC)).total_seconds()
    return time.monotonic() + max(0.0, remaining - _MARGIN)


def _exec_info(plugin: Exec, connection: ClusterConnection) -> str:
    cluster = {
        "server": connection.server,
        "insecure-skip-tls-verify": connection.insecure,
        "certificate-authority-data": base64.b64encode(connection.authority or b"").decode(),
        "tls-server-name": connection.server_name or "",
        "proxy-url": connection.proxy or "",
    }
    info = {
        "apiVersion": plugin.api_version,
        "kind": "ExecCredential",
        "spec": {"interactive": False} | ({"cluster": cluster} if plugin.provide_cluster_info else {}),
    }
    return msgspec.json.encode(info).decode()
