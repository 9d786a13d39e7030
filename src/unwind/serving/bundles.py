"""What callers verify us by, and the paths they call us at, kept current in the objects that register us."""

from __future__ import annotations

import asyncio
import base64
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from unwind import logs
from unwind.errors import UnwindError
from unwind.segments import Segments, corrected, redacted
from unwind.serving.following import backoff, follow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.kube.client import Client, Object
    from unwind.parts import Trusting

log = logs.get(__name__)


class Bundles:
    """Writes CA bundle and path segments into every object that registers us, whenever one of them changes."""

    name = "ca-bundles"
    ready = True

    def __init__(self, client: Client, trusting: Sequence[Trusting], segments: Segments | None = None) -> None:
        self._client = client
        self._trusting = trusting
        self._segments = segments or Segments()
        self._bundle = b""
        self._changed = [asyncio.Event() for _ in trusting]
        self._segments.subscribe(self._look_at_all)

    def use(self, bundle: bytes) -> None:
        """From now on, this is what callers shall verify us by."""
        self._bundle = bundle
        self._look_at_all()

    def _look_at_all(self) -> None:
        for changed in self._changed:
            changed.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for one, changed in zip(self._trusting, self._changed, strict=True):
                group.create_task(self._keep(one, changed))

    async def _keep(self, trusting: Trusting, changed: asyncio.Event) -> None:
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
                    # Somebody else wrote in between, or the server is away: what is there then is looked at again.
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
    """The JSON patch that puts the bundle, and the segments of the key, wherever the object says who is called.

    Empty if they are there already. Without a bundle or a key, what is there stays.
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
    # Places in a list are only good for the version that was looked at.
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
    return [same, *changes]


def _configs(found: Object, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Where, in kinds that have something called, it says who and by which authority."""
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
