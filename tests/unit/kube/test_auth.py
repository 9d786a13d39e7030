"""Credentials are renewed in time, once for all waiting requests."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from unwind.errors import UnwindError
from unwind.kube.auth import Credentials
from unwind.kube.kubeconfig import Basic, ClusterConnection, Exec, Token, TokenFile

if TYPE_CHECKING:
    from pathlib import Path


def credentials(credential: Token | TokenFile | Basic | Exec | None) -> Credentials:
    return Credentials(ClusterConnection(server="https://127.0.0.1:1", credential=credential))


def plugin(directory: Path, script: str) -> Exec:
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Exec(command=str(path), api_version="client.authentication.k8s.io/v1", install_hint="ask\nIT")


def printing(token: str, expires: dt.datetime | None = None) -> str:
    expiration = f', "expirationTimestamp": "{expires.isoformat()}"' if expires else ""
    return f"""echo '{{"kind": "ExecCredential", "status": {{"token": "{token}"{expiration}}}}}'"""


async def test_plain_credentials_become_headers() -> None:
    assert (await credentials(Token("abc")).proof()).authorization == "Bearer abc"
    assert (await credentials(Basic("u", "p")).proof()).authorization == "Basic dTpw"
    assert (await credentials(None).proof()).authorization is None


async def test_a_token_file_that_was_renewed_is_read_again_when_the_old_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    it = credentials(TokenFile(str(file)))
    old = await it.proof()
    file.write_text("new\n")
    assert (await it.proof()) is old
    it.refused(old)
    assert (await it.proof()).authorization == "Bearer new"
    it.refused(old)
    assert (await it.proof()).authorization == "Bearer new", "a late refusal of the old one is no news"


async def test_a_plugin_runs_once_for_many_requests(tmp_path: Path) -> None:
    it = credentials(plugin(tmp_path, f"echo x >> {tmp_path}/runs; {printing('abc')}"))
    proofs = await asyncio.gather(*(it.proof() for _ in range(20)))
    assert {proof.authorization for proof in proofs} == {"Bearer abc"}
    assert (tmp_path / "runs").read_text() == "x\n"


async def test_a_credential_that_is_about_to_end_is_renewed_before(tmp_path: Path) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)
    it = credentials(plugin(tmp_path, f"echo x >> {tmp_path}/runs; {printing('abc', soon)}"))
    await it.proof()
    await it.proof()
    assert (tmp_path / "runs").read_text() == "x\nx\n"


async def test_a_plugin_is_told_what_it_is_asked_for(tmp_path: Path) -> None:
    await credentials(plugin(tmp_path, f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info; {printing("abc")}')).proof()
    info = (tmp_path / "info").read_text()
    assert '"apiVersion":"client.authentication.k8s.io/v1"' in info
    assert '"interactive":false' in info


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'token expired: run login' >&2; exit 1", "token expired: run login"),
        ("echo hello", "cannot decode the output"),
    ],
)
async def test_a_plugin_that_fails_is_told_in_one_line(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(UnwindError) as error:
        await credentials(plugin(tmp_path, script)).proof()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


async def test_a_plugin_that_is_not_installed_is_told_with_its_hint(tmp_path: Path) -> None:
    missing = Exec(command=str(tmp_path / "none"), api_version="v1", install_hint="get it\nfrom IT")
    with pytest.raises(UnwindError, match=r"cannot run.*get it from IT"):
        await credentials(missing).proof()
