"""Creates Helm charts in tests, and serves them as a repository and an OCI registry."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import re
import ssl
import tarfile
import tempfile
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

import msgspec
import yaml

from unwind.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Packed(msgspec.Struct, frozen=True):
    """A packed chart."""

    name: str
    version: str
    archive: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()


def pack(name: str, files: Mapping[str, str], *, version: str = "1.0.0") -> Packed:
    """A chart of these files: `templates/web.yaml`, `crds/thing.yaml`, `values.yaml`. Common indentation is removed."""
    packed = io.BytesIO()
    contents = {"Chart.yaml": yaml.dump(chart_metadata(name, version)), **files}
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path, text in contents.items():
            body = dedent(text).encode()
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return Packed(name, version, packed.getvalue())


def unpack_chart(chart: Packed, directory: Path) -> Path:
    """Unpack a chart into a directory; returns the chart's directory."""
    with tarfile.open(fileobj=io.BytesIO(chart.archive), mode="r:gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / chart.name


def chart_metadata(name: str, version: str) -> dict[str, str]:
    """The contents of Chart.yaml."""
    return {"apiVersion": "v2", "name": name, "version": version, "appVersion": f"app-{version}"}


class ChartRepository:
    """Serves charts on loopback; use it as an async context manager.

    Over HTTP as a chart repository, and over HTTPS as an OCI registry, because Helm requires that: it trusts the
    registry if SSL_CERT_FILE names `authority`.
    """

    def __init__(self) -> None:
        self.url = ""
        self.registry = ""
        """`oci://…`"""
        self.authority: Path | None = None
        self.asked: list[str] = []
        """The requested paths."""
        self._charts: dict[tuple[str, str], Packed] = {}
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[tuple[str, str], bytes] = {}
        self._servers: list[ThreadingHTTPServer] = []
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def add(self, name: str, files: Mapping[str, str], *, version: str = "1.0.0") -> Packed:
        """Serve a chart from now on."""
        chart = pack(name, files, version=version)
        self._charts[name, version] = chart
        config = self._blob(msgspec.json.encode(chart_metadata(name, version)), _CONFIG)
        layer = self._blob(chart.archive, _LAYER)
        body = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [layer]}
        encoded = msgspec.json.encode(body)
        for reference in (version, f"sha256:{hashlib.sha256(encoded).hexdigest()}"):
            self._manifests[name, reference] = encoded
        return chart

    async def __aenter__(self) -> Self:
        context = await asyncio.to_thread(self._certified)
        plain, secure = self._listen(), self._listen(context)
        self.url, self.registry = f"http://127.0.0.1:{plain}", f"oci://127.0.0.1:{secure}"
        return self

    async def __aexit__(self, *raised: object) -> None:
        for server in self._servers:
            await asyncio.to_thread(server.shutdown)
            server.server_close()
        if self._directory:
            await asyncio.to_thread(self._directory.cleanup)

    def _listen(self, context: ssl.SSLContext | None = None) -> int:
        """Serve on a port of loopback, in threads, and return the port."""
        server = _Server(self._answer, context)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return int(server.server_address[1])

    def _certified(self) -> ssl.SSLContext:
        authority = Authority("charts")
        pair = authority.server("charts", hosts=["127.0.0.1"])
        self._directory = tempfile.TemporaryDirectory()
        directory = Path(self._directory.name)
        self.authority, both = directory / "ca.pem", directory / "server.pem"
        self.authority.write_bytes(authority.certificate)
        both.write_bytes(pair.certificate + pair.key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(both)
        return context

    def _blob(self, body: bytes, media_type: str) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self._blobs[digest] = body
        return {"mediaType": media_type, "digest": digest, "size": len(body)}

    def _answer(self, path: str) -> _Answer | None:
        """The content of a path; None if there is none."""
        if path == "/index.yaml":
            self.asked.append(path)
            return _Answer(self._index().encode(), "application/yaml")
        if path == "/v2/":
            return _Answer(b"{}")
        if found := re.fullmatch(r"/(?P<file>[^/]+)\.tgz", path):
            self.asked.append(path)
            charts = {f"{name}-{version}": chart for (name, version), chart in self._charts.items()}
            chart = charts.get(found["file"])
            return _Answer(chart.archive, "application/gzip") if chart else None
        if found := re.fullmatch(r"/v2/(?P<name>[^/]+)/tags/list", path):
            tags = [version for name, version in self._charts if name == found["name"]]
            return _Answer(msgspec.json.encode({"name": found["name"], "tags": tags}))
        if found := re.fullmatch(r"/v2/(?P<name>[^/]+)/manifests/(?P<reference>[^/]+)", path):
            self.asked.append(path)
            manifest = self._manifests.get((found["name"], found["reference"]))
            return _Answer(manifest, _MANIFEST) if manifest else None
        if found := re.fullmatch(r"/v2/[^/]+/blobs/(?P<digest>[^/]+)", path):
            blob = self._blobs.get(found["digest"])
            return _Answer(blob, "application/octet-stream") if blob else None
        return None

    def _index(self) -> str:
        entries: dict[str, list[dict[str, object]]] = {}
        for chart in self._charts.values():
            urls = [f"{chart.name}-{chart.version}.tgz"]
            entry: dict[str, object] = {
                **chart_metadata(chart.name, chart.version),
                "urls": urls,
                "digest": chart.digest,
            }
            entries.setdefault(chart.name, []).append(entry)
        return yaml.dump({"apiVersion": "v1", "entries": entries})


class _Answer(msgspec.Struct, frozen=True):
    body: bytes
    type: str = "application/json"

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.body).hexdigest()}"


class _Server(ThreadingHTTPServer):
    """An HTTP server of the standard library: this module must not need more libraries than Unwind itself."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], _Answer | None], context: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        if context:
            # A handshake belongs to the thread of its connection: otherwise a silent client blocks all others.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that closes its connection, or does not trust the certificate, is not reported."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._reply(body=True)

    def do_HEAD(self) -> None:
        self._reply(body=False)

    def _reply(self, *, body: bool) -> None:
        answer = self.server.answer(unquote(self.path.partition("?")[0]))
        sent = answer or _Answer(b"not found", "text/plain")
        self.send_response(HTTPStatus.OK if answer else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", sent.type)
        self.send_header("Content-Length", str(len(sent.body)))
        if answer:
            self.send_header("Docker-Content-Digest", sent.digest)
        self.end_headers()
        if body:
            self.wfile.write(sent.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is logged."""
