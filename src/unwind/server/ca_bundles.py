"""Keep the CA bundle and path segments current in the objects that register our webhooks and hooks."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from unwind import logs
from unwind.errors import UnwindError
from unwind.kube.object_watch import backoff, follow
from unwind.server.path_segments import Segments, corrected, redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.kube.client import Client, Object
    from unwind.server.routes import CABundleTarget

log = logs.get(__name__)


class CABundleController:
    """Writes CA bundle and path segments into each registration object when one of them changes."""

    name = "ca-bundles"
    ready = True

    def __init__(self, client: Client, trusting: Sequence[CABundleTarget], segments: Segments | None = None) -> None:
        self._client = client
        self._trusting = trusting
        self._segments = segments or Segments()
        self._bundle = b""
        self._changed = [asyncio.Event() for _ in trusting]
        self._segments.subscribe(self._look_at_all)

    def use(self, bundle: bytes) -> None:
        """Use this CA bundle from now on."""
        self._bundle = bundle
        self._look_at_all()

    def _look_at_all(self) -> None:
        for changed in self._changed:
            changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for target, changed in zip(self._trusting, self._changed, strict=True):
                group.create_task(self._keep(target, changed))

    async def _keep(self, trusting: CABundleTarget, changed: asyncio.Event) -> None:
        found: Object | None = None

        async def watch() -> None:
            nonlocal found
            objects = follow(self._client, trusting.resource, trusting.name)
            async with aclosing(objects):
                async for found in objects:  # noqa: B007 - it is read by the other task
                    changed.set()

        async def write() -> None:
            failures = 0
            while True:
                await changed.wait()
                changed.clear()
                kind = trusting.resource.kind
                patch = patch_of(found, self._bundle, kind=kind, key=self._segments.key) if found else []
                if not patch:
                    continue
                about = f"{trusting.resource.kind}/{trusting.name}"
                try:
                    found_now = await self._client.patch(trusting.resource, trusting.name, patch)
                except UnwindError as error:
                    # Concurrent write, or the server is unavailable: the object is read again and retried.
                    failures += 1
                    log.info("registration not updated, will retry", object=about, why=redacted(str(error)))
                    await backoff(failures)
                    changed.set()
                else:
                    failures = 0
                    uid = found_now["metadata"]["uid"]
                    log.info("registration updated", object=about, uid=uid)

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            group.create_task(write())


def patch_of(found: Object, bundle: bytes, *, kind: str, key: bytes = b"") -> list[Object]:
    """The JSON patch that writes the CA bundle, and the segments of the key, into every clientConfig of the object.

    Empty if they are current. Without a bundle or a key, the existing value is kept.
    """
    wanted = base64.b64encode(bundle).decode()
    changes: list[Object] = []
    for path, config in _configs(found, kind):
        if bundle and config.get("caBundle") != wanted:
            changes.append({"op": "add", "path": f"{path}/caBundle", "value": wanted})
        if key and found.get("webhooks"):
            better = corrected(config, key)
            if "url" in better:
                changes.append({"op": "add", "path": f"{path}/url", "value": better["url"]})
            elif better:
                changes.append({"op": "add", "path": f"{path}/service/path", "value": better["service"]["path"]})
    if not changes:
        return []
    # List indexes are valid only for the resourceVersion that was read.
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
    return [same, *changes]


def _configs(found: Object, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """The JSON pointers and values of all clientConfigs in an object of a kind."""
    places = [(f"/webhooks/{number}/clientConfig", one) for number, one in enumerate(found.get("webhooks") or [])]
    configs = [(path, webhook.get("clientConfig")) for path, webhook in places]
    spec = found.get("spec") or {}
    match kind:
        case "ExtensionConfig":
            configs.append(("/spec/clientConfig", spec.get("clientConfig")))
        case "CustomResourceDefinition":
            webhook = (spec.get("conversion") or {}).get("webhook") or {}
            configs.append(("/spec/conversion/webhook/clientConfig", webhook.get("clientConfig")))
        case "APIService":
            configs.append(("/spec", spec if spec.get("service") else None))
    return [(path, config) for path, config in configs if config is not None]
