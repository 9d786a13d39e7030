"""The controller of the webhook configurations that do not depend on a feature gate: creates and restores them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from unwind import logs
from unwind.api import names
from unwind.api.resources import CONFIG_MAPS, MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from unwind.kube.errors import ConflictError, NotFoundError
from unwind.kube.object_watch import follow
from unwind.server.manager_names import REGISTRATION, is_ours, recorded_extension
from unwind.server.registration import RegistrationController

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.server.registration import RegistrationDeps

log = logs.get(__name__)

_KINDS = {kind.kind: kind for kind in (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS)}
_UNKNOWN: Object = {}
"""In place of an object that was not read yet."""


def mended(found: Object, wanted: Object) -> Object:
    """The merge patch that turns `found` into `wanted`, for all fields in `wanted`; empty if they are equal.

    Unwanted content inside these fields is removed. Lists are replaced as a whole: another client may have added an
    item, such as a condition that makes a policy match less.
    """
    return {
        key: _mended(found.get(key), value)
        for key, value in wanted.items()
        if key not in ("apiVersion", "kind", "metadata") and found.get(key) != value
    }


def with_authorities(wanted: Object, found: Object) -> Object:
    """The wanted webhooks, each with the current CA bundle of the webhook of its name.

    Another controller writes the CA bundles.
    """
    bundles = {
        webhook.get("name"): (webhook.get("clientConfig") or {}).get("caBundle")
        for webhook in found.get("webhooks") or ()
    }
    if "webhooks" not in wanted:
        return wanted
    asking = [
        item | {"clientConfig": item["clientConfig"] | {"caBundle": bundle}}
        if (bundle := bundles.get(item["name"]))
        else item
        for item in wanted["webhooks"]
    ]
    return wanted | {"webhooks": asking}


def _mended(found: Any, wanted: Any) -> Any:
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return wanted
    changed = {key: _mended(found.get(key), value) for key, value in wanted.items() if found.get(key) != value}
    return changed | {key: None for key in found if key not in wanted}


class WebhookController(RegistrationController):
    """Creates the webhook configurations when the manager answers, and restores deleted ones while it is installed. In
    the cluster, it also reverts changes."""

    name = "webhooks"

    def __init__(self, deps: RegistrationDeps, wanted: Callable[[str | None, bytes], list[Object]]) -> None:
        """`wanted`: the configurations for the URL of the manager (None: its Service) and the key of the path
        segments."""
        super().__init__(deps)
        self._wanted = wanted
        self._installed: Object | None = _UNKNOWN
        self._names = {obj["metadata"]["name"]: _KINDS[obj["kind"]] for obj in wanted(None, b"")}
        self._found: dict[str, Object | None] = dict.fromkeys(self._names, _UNKNOWN)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run())
            tasks.create_task(self._follow(CONFIG_MAPS, REGISTRATION, self._read_installed, self._home))
            for name, resource in self._names.items():
                tasks.create_task(self._follow(resource, name, partial(self._read, name)))

    async def _follow(
        self, resource: Resource, name: str, read: Callable[[Object | None], None], namespace: str | None = None
    ) -> None:
        objects = follow(self._client, resource, name, namespace=namespace)
        async with aclosing(objects):
            async for found in objects:
                read(found)

    def _read_installed(self, found: Object | None) -> None:
        self._installed = found
        self._enqueue_all()

    def _read(self, name: str, found: Object | None) -> None:
        self._found[name] = found
        self._queue.add(name)

    def _enqueue_all(self) -> None:
        for name in self._names:
            self._queue.add(name)

    async def _reconcile(self, name: str) -> float | None:
        found, resource = self._found[name], self._names[name]
        if not self._owner.owns(name) or not self._answered or found is _UNKNOWN:
            return None
        # Without the registration, Unwind is not installed, or is being uninstalled.
        extension = recorded_extension(self._installed, "") if self._installed else None
        if extension is None or not self._segments.key:
            return None
        url = extension["spec"]["clientConfig"].get("url")
        wanted = next(obj for obj in self._wanted(url, self._segments.key) if obj["metadata"]["name"] == name)
        if found is None:
            made = await self._client.apply(resource, wanted, field_manager=names.INSTALL_FIELD_MANAGER)
            log.info("object created", object=f"{resource.kind}/{name}", uid=made["metadata"]["uid"])
            return None
        if not self._through_service:
            return None  # `unwind install` changes it
        patch = mended(found, with_authorities(wanted, found))
        if not patch or not is_ours(found) or found["metadata"].get("deletionTimestamp"):
            return None
        try:
            await self._client.revise(resource, found, patch)
        except (NotFoundError, ConflictError):
            return None  # changed concurrently; the change comes as an event
        log.warning("drift corrected", object=f"{resource.kind}/{name}", uid=found["metadata"]["uid"])
        return None
