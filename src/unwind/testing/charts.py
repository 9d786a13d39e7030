"""Helm charts made on the spot, and a place that serves them: a repository, and an OCI registry."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import ssl
import tarfile
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Self

import msgspec
import yaml
from aiohttp import web

from unwind.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Packed(msgspec.Struct, frozen=True):
    """A chart as it is served."""

    name: str
    version: str
    archive: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()


def pack(name: str, files: Mapping[str, str], *, version: str = "1.0.0") -> Packed:
    """A chart of these files: `templates/web.yaml`, `crds/thing.yaml`, `values.yaml`. Indentation is taken off."""
    packed = io.BytesIO()
    contents = {"Chart.yaml": yaml.dump(metadata(name, version)), **files}
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for path, text in contents.items():
            body = dedent(text).encode()
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return Packed(name, version, packed.getvalue())


def unpack(chart: Packed, directory: Path) -> Path:
    """Write a chart out, and return its directory."""
    with tarfile.open(fileobj=io.BytesIO(chart.archive), mode="r:gz") as archive:
        archive.extractall(directory, filter="data")
    return directory / chart.name


def metadata(name: str, version: str) -> dict[str, str]:
    """What a chart says of itself."""
    return {"apiVersion": "v2", "name": name, "version": version, "appVersion": f"app-{version}"}


class ChartRepository:
    """Serves charts on loopback; use it as an async context manager.

    Over HTTP as a chart repository, and over HTTPS as an OCI registry, which Helm speaks to in no other way: it trusts
    it if SSL_CERT_FILE names `authority`.
    """

    def __init__(self) -> None:
        self.url = ""
        self.registry = ""
        """`oci://…`"""
        self.authority: Path | None = None
        self.asked: list[str] = []
        """The paths that were asked for."""
        self._charts: dict[tuple[str, str], Packed] = {}
        self._blobs: dict[str, bytes] = {}
        self._manifests: dict[tuple[str, str], bytes] = {}
        self._runner: web.AppRunner | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def add(self, name: str, files: Mapping[str, str], *, version: str = "1.0.0") -> Packed:
        """Serve a chart from now on."""
        chart = pack(name, files, version=version)
        self._charts[name, version] = chart
        config = self._blob(msgspec.json.encode(metadata(name, version)), _CONFIG)
        layer = self._blob(chart.archive, _LAYER)
        body = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [layer]}
        encoded = msgspec.json.encode(body)
        for reference in (version, f"sha256:{hashlib.sha256(encoded).hexdigest()}"):
            self._manifests[name, reference] = encoded
        return chart

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/index.yaml", self._index)
        app.router.add_get("/{file}.tgz", self._archive)
        app.router.add_get("/v2/", self._welcome)
        app.router.add_get("/v2/{name}/tags/list", self._tags)
        app.router.add_get("/v2/{name}/manifests/{reference}", self._manifest)
        app.router.add_get("/v2/{name}/blobs/{digest}", self._serve_blob)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        plain = web.TCPSite(self._runner, "127.0.0.1", 0)
        await plain.start()
        secure = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=await asyncio.to_thread(self._certified))
        await secure.start()
        ports = [address[1] for address in self._runner.addresses]
        self.url, self.registry = f"http://127.0.0.1:{ports[0]}", f"oci://127.0.0.1:{ports[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._runner  # noqa: S101 - made above
        await self._runner.cleanup()
        if self._directory:
            await asyncio.to_thread(self._directory.cleanup)

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

    async def _index(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        entries: dict[str, list[dict[str, object]]] = {}
        for chart in self._charts.values():
            entries.setdefault(chart.name, []).append(
                {
                    **metadata(chart.name, chart.version),
                    "urls": [f"{chart.name}-{chart.version}.tgz"],
                    "digest": chart.digest,
                }
            )
        return web.Response(text=yaml.dump({"apiVersion": "v1", "entries": entries}))

    async def _archive(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        for chart in self._charts.values():
            if request.match_info["file"] == f"{chart.name}-{chart.version}":
                return web.Response(body=chart.archive, content_type="application/gzip")
        raise web.HTTPNotFound

    async def _welcome(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _tags(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response({"name": name, "tags": [version for its, version in self._charts if its == name]})

    async def _manifest(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        found = self._manifests.get((request.match_info["name"], request.match_info["reference"]))
        if found is None:
            raise web.HTTPNotFound
        digest = f"sha256:{hashlib.sha256(found).hexdigest()}"
        return web.Response(body=found, content_type=_MANIFEST, headers={"Docker-Content-Digest": digest})

    async def _serve_blob(self, request: web.Request) -> web.Response:
        found = self._blobs.get(request.match_info["digest"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=found, content_type="application/octet-stream")
