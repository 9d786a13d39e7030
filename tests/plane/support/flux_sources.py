"""Flux for tests: manifests and charts as ExternalArtifacts on loopback, and the objects that deploy them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import yaml

from tests.plane.support.objects import new_object
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.resources import Resource
from unwind.kube import object_watch
from unwind.testing.charts import pack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from unwind.kube.client import Client, Object

EXTERNAL_ARTIFACTS = Resource("source.toolkit.fluxcd.io", "v1", "externalartifacts", "ExternalArtifact")
_LONG = 90.0


class ArtifactServer:
    """Serves archives on loopback by the digest of their content."""

    def __init__(self) -> None:
        self.archives: dict[str, bytes] = {}
        archives = self.archives

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = archives.get(self.path.strip("/").partition(".")[0])
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
                """Nothing is logged."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def add(self, archive: bytes, *, revision: str = "") -> Object:
        """The `status.artifact` of an archive."""
        digest = hashlib.sha256(archive).hexdigest()
        self.archives[digest] = archive
        return {
            "path": f"{digest}.tar.gz",
            "url": f"http://127.0.0.1:{self._server.server_address[1]}/{digest}.tar.gz",
            "digest": f"sha256:{digest}",
            "revision": revision or f"v1@sha256:{digest}",
            "lastUpdateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    async def close(self) -> None:
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()


@asynccontextmanager
async def artifacts() -> AsyncIterator[ArtifactServer]:
    server = ArtifactServer()
    try:
        yield server
    finally:
        await server.close()


def archive(manifests: Sequence[Object]) -> bytes:
    """A tarball with manifests, as source-controller writes it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        body = yaml.safe_dump_all(manifests).encode()
        entry = tarfile.TarInfo("manifests.yaml")
        entry.size = len(body)
        tar.addfile(entry, io.BytesIO(body))
    return packed.getvalue()


def config_map(name: str, namespace: str, **metadata: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "data": {"of": name},
    }


def kustomization(name: str, namespace: str, **spec: Any) -> Object:
    """`secret`: the kubeconfig Secret of the cluster that it deploys on. `depends_on`: names."""
    source = {"kind": "ExternalArtifact", "name": name}
    return _handle(KUSTOMIZATIONS, name, namespace, {"prune": True, "wait": False, "sourceRef": source}, spec)


def helm_release(name: str, namespace: str, **spec: Any) -> Object:
    """The same for a HelmRelease. `target`: the namespace of the release."""
    target = spec.pop("target", namespace)
    body = {
        "releaseName": name,
        "targetNamespace": target,
        "storageNamespace": target,
        "chartRef": {"kind": "ExternalArtifact", "name": name},
    }
    return _handle(HELM_RELEASES, name, namespace, body, spec)


def _handle(resource: Resource, name: str, namespace: str, body: Object, spec: Object) -> Object:
    secret, depends_on = spec.pop("secret", ""), spec.pop("depends_on", ())
    config = {"kubeConfig": {"secretRef": {"name": secret}}} if secret else {}
    common = {"interval": "1h", "dependsOn": [{"name": item} for item in depends_on]}
    return new_object(resource, name, namespace, spec={**common, **body, **spec, **config})


class FluxSources:
    """Writes sources and handles into one namespace, as a person or a Git repository would."""

    def __init__(self, client: Client, namespace: str, server: ArtifactServer) -> None:
        self.client = client
        self.namespace = namespace
        self._server = server

    def on(self, client: Client, namespace: str) -> FluxSources:
        """The same for another cluster."""
        return FluxSources(client, namespace, self._server)

    async def source(self, name: str, manifests: Sequence[Object]) -> None:
        """Manifests as an ExternalArtifact; a new revision if it exists."""
        await self._artifact(name, self._server.add(archive(manifests)))

    async def chart(self, name: str, files: Mapping[str, str]) -> None:
        """A chart as an ExternalArtifact."""
        packed = pack(name, files)
        artifact = self._server.add(packed.archive, revision=f"1.0.0@sha256:{packed.digest}")
        await self._artifact(name, artifact)

    async def _artifact(self, name: str, artifact: Object) -> None:
        body = {
            "apiVersion": f"{EXTERNAL_ARTIFACTS.group}/{EXTERNAL_ARTIFACTS.version}",
            "kind": "ExternalArtifact",
            "metadata": {"name": name, "namespace": self.namespace},
        }
        await self.client.apply(EXTERNAL_ARTIFACTS, body, field_manager="test")
        status: Object = {
            "artifact": artifact,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Succeeded",
                    "message": "stored",
                    "lastTransitionTime": artifact["lastUpdateTime"],
                }
            ],
        }
        await self.client.patch(
            EXTERNAL_ARTIFACTS, name, {"status": status}, namespace=self.namespace, subresource="status"
        )

    async def kustomization(self, name: str, manifests: Sequence[Object], **spec: Any) -> Object:
        await self.source(name, manifests)
        return await self.client.apply(
            KUSTOMIZATIONS, kustomization(name, self.namespace, **spec), field_manager="test"
        )

    async def helm_release(self, name: str, files: Mapping[str, str], **spec: Any) -> Object:
        await self.chart(name, files)
        return await self.client.apply(HELM_RELEASES, helm_release(name, self.namespace, **spec), field_manager="test")

    async def until_ready(self, *names: str, resource: Resource = KUSTOMIZATIONS) -> None:
        """Return when Flux has deployed these."""

        def ready(it: Object | None) -> bool:
            observed = ((it or {}).get("status") or {}).get("observedGeneration")
            return (
                object_watch.has_condition(it, "Ready")
                and it is not None
                and (observed == it["metadata"]["generation"])
            )

        for name in names:
            await object_watch.until(
                self.client, resource, name, ready, "Ready", namespace=self.namespace, within=_LONG
            )
