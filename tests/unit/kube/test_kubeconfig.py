"""Kubeconfig files in all their forms, and the errors about invalid ones."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from unwind.errors import UnwindError
from unwind.kube import kubeconfig
from unwind.kube.kubeconfig import Basic, Exec, Token, TokenFile

if TYPE_CHECKING:
    from pathlib import Path


def config(
    *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, name: str = "c", **top: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443/", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "team"}}],
        "current-context": name,
        **top,
    }


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(content: Any, name: str = "config") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_what_stands_in_the_file_is_read(write: Any) -> None:
    cluster = {
        "certificate-authority-data": encoded("CA"),
        "tls-server-name": "api.internal",
        "proxy-url": "http://proxy.example:3128",
        "insecure-skip-tls-verify": True,
    }
    user = {"client-certificate-data": encoded("CERT"), "client-key-data": encoded("KEY"), "as": "auditor"}
    connection = kubeconfig.load(write(config(cluster=cluster, user=user)))
    assert connection == kubeconfig.ClusterConnection(
        server="https://c.example:6443",
        authority=b"CA",
        certificate=b"CERT",
        key=b"KEY",
        server_name="api.internal",
        proxy="http://proxy.example:3128",
        insecure=True,
        namespace="team",
        impersonate="auditor",
    )


def test_files_are_named_relative_to_the_kubeconfig(write: Any, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "token").write_text("T")
    connection = kubeconfig.load(
        write(config(cluster={"certificate-authority": "ca.crt"}, user={"tokenFile": "token"}))
    )
    assert connection.authority == b"CA"
    assert connection.credential == TokenFile(str(tmp_path / "token"))


@pytest.mark.parametrize(
    ("user", "credential"),
    [
        ({"token": "abc"}, Token("abc")),
        ({"username": "u", "password": "p"}, Basic("u", "p")),
        ({}, None),
        (
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "aws",
                    "args": ["eks", "get-token"],
                    "env": [{"name": "AWS_PROFILE", "value": "prod"}],
                    "installHint": "install it",
                    "provideClusterInfo": True,
                }
            },
            Exec(
                command="aws",
                args=["eks", "get-token"],
                env={"AWS_PROFILE": "prod"},
                api_version="client.authentication.k8s.io/v1",
                install_hint="install it",
                provide_cluster_info=True,
            ),
        ),
    ],
)
def test_each_kind_of_user_has_its_credential(write: Any, user: dict[str, Any], credential: object) -> None:
    assert kubeconfig.load(write(config(user=user))).credential == credential


def test_another_context_can_be_chosen(write: Any) -> None:
    both = config(name="a")
    for section in ("clusters", "users", "contexts"):
        both[section] += config(name="b")[section]
    assert kubeconfig.load(write(both), context="b").server == "https://b.example:6443"


def test_several_files_are_merged_and_the_first_wins(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(config(name="a") | {"users": []}, "first")
    second = write(config(name="a", user={"token": "second"}) | {"clusters": []}, "second")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{first.parent / 'missing'}")
    connection = kubeconfig.load()
    assert (connection.server, connection.credential) == ("https://a.example:6443", Token("second"))


def test_in_a_pod_its_service_account_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("ca.crt", "CA"), ("token", "T"), ("namespace", "unwind-system\n")):
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    connection = kubeconfig.in_cluster(tmp_path)
    assert connection.server == "https://[fd00::1]:443"
    assert connection.credential == TokenFile(str(tmp_path / "token"))
    assert connection.namespace == "unwind-system"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{ not yaml", "is not a kubeconfig"),
        ("just text", "is not a kubeconfig"),
        ({}, "has no current context"),
        (config() | {"current-context": "nowhere"}, "no 'nowhere' in contexts"),
        (config() | {"clusters": []}, "no 'c' in clusters"),
        (config() | {"users": []}, "no 'c' in users"),
        (config(cluster={"certificate-authority": "nowhere.crt"}), "does not exist"),
        (config(cluster={"certificate-authority-data": "%%%"}), "cannot use"),
        (config(user={"auth-provider": {"name": "gcp"}}), "auth-provider 'gcp' was removed"),
        (config() | {"clusters": "text"}, "cannot use"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_one_line(write: Any, content: Any, words: str) -> None:
    with pytest.raises(UnwindError) as error:
        kubeconfig.load(write(content))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("socks5://me:hunter2@proxy:1", "socks5://…@proxy:1"),
        ("me:hunter2@proxy:1", "me:…@proxy:1"),
        ("me:hun/ter2@proxy", "me:…@proxy"),
        ("admin@kubernetes", "admin@kubernetes"),
    ],
)
def test_an_error_shows_no_password_even_where_a_name_is_expected(write: Any, name: str, shown: str) -> None:
    """If a part of a file is missing, an address, or a part of one, may be in the place of a name."""
    lost = config(contexts=[{"name": "c", "context": {"cluster": name}}])
    with pytest.raises(UnwindError, match="in clusters") as refused:
        kubeconfig.load(write(lost))
    assert f"no '{shown}' in clusters" in str(refused.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:hunter2@host:6443/k8s/a", "https://host:6443/k8s/a"),
        ("http://127.0.0.1:80//me:hunter2@proxy:1", "http://127.0.0.1:80"),
        ("https://host/?by=me:hunter2@proxy", "https://host"),
        ("https://host/#me:hunter2@proxy", "https://host"),
        ("me:hunter2@host", "me:"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, shown: str) -> None:
    assert kubeconfig.shown(address) == shown


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnwindError, match=r"cannot read.*--kubeconfig or KUBECONFIG"):
        kubeconfig.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "user", [{"exec": {"apiVersion": "v1", "command": "sh"}}, {"tokenFile": "/etc/passwd"}, {"client-key": "/etc/key"}]
)
def test_a_kubeconfig_from_a_secret_can_neither_run_programs_nor_read_files(user: dict[str, Any]) -> None:
    with pytest.raises(UnwindError, match="only a local kubeconfig may"):
        kubeconfig.parse(yaml.safe_dump(config(user=user)).encode(), source="Secret default/prod-kubeconfig")


def test_what_is_written_can_be_read(write: Any) -> None:
    connection = kubeconfig.ClusterConnection(
        server="https://127.0.0.1:1", authority=b"CA", credential=Token("t"), server_name="x"
    )
    assert kubeconfig.load(write(kubeconfig.document(connection, cluster="c", user="u"))) == connection
