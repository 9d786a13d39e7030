"""Reads kubeconfig files: API server address, TLS settings and credentials."""

from __future__ import annotations

import base64
import os
import re
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from unwind import safe_yaml
from unwind.errors import UnwindError

# These characters would end a header and start another one.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Token(msgspec.Struct, frozen=True, tag=True):
    """A bearer token that does not change."""

    token: str


class TokenFile(msgspec.Struct, frozen=True, tag=True):
    """A bearer token in a file that another process renews."""

    path: str


class Basic(msgspec.Struct, frozen=True, tag=True):
    """A user name and a password, for proxies that still require them."""

    username: str
    password: str


class Exec(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An exec plugin that prints a credential."""

    command: str
    args: list[str] = []
    env: dict[str, str] = {}
    api_version: str
    install_hint: str = ""
    provide_cluster_info: bool = False


class ClusterConnection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a client needs to connect to one API server."""

    server: str
    authority: bytes | None = None
    """CA certificates for the server's certificate; None for the system's."""
    certificate: bytes | None = None
    key: bytes | None = None
    credential: Token | TokenFile | Basic | Exec | None = None
    insecure: bool = False
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the address."""
    proxy: str | None = None
    namespace: str = "default"
    impersonate: str | None = None

    def check(self) -> None:
        """Raise UnwindError for values that cannot be sent, or would be sent as something else. Values are not shown:
        they may be secret."""
        token = self.credential.token if isinstance(self.credential, Token) else None
        for field, value in (
            ("server", self.server),
            ("tls-server-name", self.server_name),
            ("proxy-url", self.proxy),
            ("as", self.impersonate),
            ("token", token),
        ):
            if value is not None and not isinstance(value, str):
                raise UnwindError(f"cannot use the kubeconfig: {field} is not a string", remedy=f"correct {field}")
            if value and _CONTROL.search(value):
                raise UnwindError(
                    f"cannot use the kubeconfig: {field} contains control characters", remedy=f"correct {field}"
                )
        for field, value in (("server", self.server), ("proxy-url", self.proxy)):
            if value is not None and not _is_address(value):
                raise UnwindError(
                    f"cannot use the kubeconfig: {field} is not a valid address", remedy=f"correct {field}"
                )
        if "@" in urlsplit(self.server).netloc:
            # It would be shown wherever the server address is.
            raise UnwindError(
                "cannot use the kubeconfig: server contains a user name or a password",
                remedy="remove them from server, and use a token or a client certificate",
            )

    def ssl_context(self, *, certificate: bytes | None = None, key: bytes | None = None) -> ssl.SSLContext:
        """An SSL context that verifies the server and presents a client certificate (ours, or one from a plugin)."""
        certificate, key = certificate or self.certificate, key or self.key
        try:
            context = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if certificate and key:
                # The standard library reads a client certificate only from a file.
                with tempfile.NamedTemporaryFile() as pem:
                    pem.write(certificate + b"\n" + key)
                    pem.flush()
                    context.load_cert_chain(pem.name)
        except (ssl.SSLError, ValueError) as error:
            raise UnwindError(
                f"cannot use the certificates for {self.server}: {error}", remedy="check them in the kubeconfig"
            ) from error
        return context


def shown(address: str) -> str:
    """An address for display: without user and password, also where they are in the wrong place."""
    try:
        url = urlsplit(address)
    except ValueError:
        return "an invalid address"
    url = url._replace(netloc=url.netloc.rpartition("@")[2])
    return (url._replace(path="", query="", fragment="") if "@" in url.geturl() else url).geturl()


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        return bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def load(path: Path | None = None, *, context: str | None = None) -> ClusterConnection:
    """Find the connection to the cluster.

    From the given file; else the files in KUBECONFIG, of which the first to define a name wins; else the user's default
    file; else the service account of the Pod that this runs in.
    """
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    home = Path.home() / ".kube" / "config"
    if path:
        paths = [path]
    elif named:
        paths = [part for part in named if part.exists()] or named
    elif not home.exists() and "KUBERNETES_SERVICE_HOST" in os.environ and (_SERVICE_ACCOUNT / "token").exists():
        return in_cluster()
    else:
        paths = [home]
    files = [(file, _read(file)) for file in paths]
    return _connection(files, context=context)


def parse(text: bytes, *, source: str) -> ClusterConnection:
    """Read a kubeconfig from another source, such as the Secret of a member cluster.

    It must neither name files of this machine nor run a program: otherwise a user who can write such a Secret could run
    anything as Unwind.
    """
    return _connection([(None, _decode(text, source, quotes=False))], context=None, source=source)


def in_cluster(directory: Path = _SERVICE_ACCOUNT) -> ClusterConnection:
    """The connection of a Pod."""
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        namespace = directory / "namespace"
        return ClusterConnection(
            server=f"https://{host}:{port}",
            authority=(directory / "ca.crt").read_bytes(),
            credential=TokenFile(str(directory / "token")),
            namespace=namespace.read_text().strip() if namespace.exists() else "default",
        )
    except (KeyError, OSError) as error:
        raise UnwindError(
            f"not running in a Pod with a service account ({error})", remedy="set a kubeconfig with --kubeconfig"
        ) from error


def document(connection: ClusterConnection, *, cluster: str, user: str) -> str:
    """The kubeconfig as text, with everything embedded."""
    given = {
        "certificate-authority-data": connection.authority and _encode(connection.authority),
        "insecure-skip-tls-verify": connection.insecure or None,
        "tls-server-name": connection.server_name,
        "proxy-url": connection.proxy,
    }
    proof = {
        "client-certificate-data": connection.certificate and _encode(connection.certificate),
        "client-key-data": connection.key and _encode(connection.key),
        "token": connection.credential.token if isinstance(connection.credential, Token) else None,
    }
    return yaml.dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": {"server": connection.server} | _present(given)}],
            "users": [{"name": user, "user": _present(proof)}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        },
        Dumper=yaml.CSafeDumper,
        sort_keys=False,
    )


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


_Files = Sequence[tuple[Path | None, dict[str, Any]]]
_PASSWORD = re.compile(r":(//)?[^\s@]*@")
_HOW_TO_SEE = "inspect it with `kubectl config view`"


def _read(path: Path) -> dict[str, Any]:
    try:
        return _decode(path.read_bytes(), str(path))
    except OSError as error:
        raise UnwindError(
            f"cannot read the kubeconfig {path}: {error.strerror}",
            remedy="use another one with --kubeconfig or KUBECONFIG",
        ) from error


def _decode(text: bytes, source: str, *, quotes: bool = True) -> dict[str, Any]:
    """`quotes`: whether the message of an error may quote the text. Users who may name a Secret need not be able to
    read it."""
    try:
        config = safe_yaml.load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split()) if quotes else _where(error)
        raise UnwindError(f"{source} is not a kubeconfig ({why})", remedy=_HOW_TO_SEE) from error
    if not isinstance(config, dict):
        raise UnwindError(f"{source} is not a kubeconfig (it is not a mapping)", remedy=_HOW_TO_SEE)
    return config


def _where(error: Exception) -> str:
    if isinstance(error, safe_yaml.TooComplexError):
        return str(error)  # it names a limit, and quotes nothing
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f"invalid YAML in line {mark.line + 1}, column {mark.column + 1}" if mark else "invalid YAML"


def _connection(files: _Files, *, context: str | None, source: str | None = None) -> ClusterConnection:
    where = source or ", ".join(str(path) for path, _ in files)
    wanted = context or next((name for _, config in files if (name := config.get("current-context"))), None)
    if not isinstance(wanted, str) or not wanted:
        raise UnwindError(f"{where} has no current context", remedy="select one with --context")
    try:
        _, chosen = _named(files, "contexts", "context", wanted)
        at, cluster = _named(files, "clusters", "cluster", chosen.get("cluster", ""))
        by, user = _named(files, "users", "user", chosen["user"]) if chosen.get("user") else (None, {})
        found = ClusterConnection(
            server=_text(cluster, "server").rstrip("/"),
            authority=_bytes(cluster, "certificate-authority", at),
            certificate=_bytes(user, "client-certificate", by),
            key=_bytes(user, "client-key", by),
            credential=_credential(user, by),
            insecure=_flag(cluster, "insecure-skip-tls-verify"),
            server_name=_text(cluster, "tls-server-name") or None,
            proxy=_text(cluster, "proxy-url") or None,
            namespace=_text(chosen, "namespace") or "default",
            impersonate=_text(user, "as") or None,
        )
        found.check()
    except UnwindError as error:
        raise UnwindError(_unusable(where, wanted, str(error)), remedy=_HOW_TO_SEE) from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        told = str(error.args[0]) if error.args else repr(error)
        raise UnwindError(_unusable(where, wanted, told), remedy=_HOW_TO_SEE) from error
    return found


def _unusable(where: str, context: str, why: str) -> str:
    # In a damaged file an address, with its password, may stand in the place of a name.
    hidden = _PASSWORD.sub(r":\1…@", f"(context {context!r}): {why}")
    return f"cannot use {where} {hidden}"


def _named(files: _Files, section: str, part: str, name: str) -> tuple[Path | None, dict[str, Any]]:
    if not isinstance(name, str):
        raise TypeError(f"a name in {section} is not a string")
    for path, config in files:
        for entry in config.get(section) or []:
            if isinstance(entry, dict) and entry.get("name") == name:
                fields = entry.get(part) or {}
                if not isinstance(fields, dict):
                    raise TypeError(f"the entry {name!r} in {section} of the kubeconfig is not a mapping; correct it")
                return path, fields
    raise LookupError(f"no {name!r} in {section}")


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None and name != "server":
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a string")
    return value


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise TypeError(f"{name} is neither true nor false")
    return bool(value)


def _bytes(fields: dict[str, Any], name: str, file: Path | None) -> bytes | None:
    """Inline data takes precedence over a file, as with kubectl."""
    if inline := _text(fields, f"{name}-data"):
        return base64.b64decode(inline, validate=True)
    if beside := _text(fields, name):
        return _beside(file, beside, name).read_bytes()
    return None


def _beside(file: Path | None, named: str, field: str) -> Path:
    if file is None:
        raise ValueError(
            f"the kubeconfig names a file in {field}, which only a local kubeconfig may do; "
            "embed the content of the file"
        )
    path = file.absolute().parent / Path(named).expanduser()
    if not path.is_file():
        raise LookupError(f"the file {path} does not exist; correct {field} in the kubeconfig")
    return path


def _credential(user: dict[str, Any], file: Path | None) -> Token | TokenFile | Basic | Exec | None:
    if plugin := user.get("exec"):
        if file is None:
            raise ValueError(
                "the kubeconfig has an exec plugin, which only a local kubeconfig may have; "
                "use a token or a client certificate"
            )
        command = plugin["command"]
        if "/" in command:
            command = str(file.absolute().parent / command)
        return Exec(
            command=command,
            args=plugin.get("args") or [],
            env={item["name"]: item["value"] for item in plugin.get("env") or []},
            api_version=plugin["apiVersion"],
            install_hint=plugin.get("installHint") or "",
            provide_cluster_info=bool(plugin.get("provideClusterInfo")),
        )
    if named := _text(user, "tokenFile"):
        return TokenFile(str(_beside(file, named, "tokenFile")))
    if token := _text(user, "token"):
        return Token(token)
    if username := _text(user, "username"):
        return Basic(username=username, password=_text(user, "password"))
    if provider := user.get("auth-provider"):
        raise ValueError(
            f"auth-provider {_text(provider, 'name')!r} was removed in Kubernetes 1.26: use its exec plugin"
        )
    return None
