"""The controller of the protection policies and webhooks: creates, restores and deletes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api import names
from unwind.api.resources import (
    CONFIG_MAPS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from unwind.components import Mode
from unwind.errors import UnwindError
from unwind.kube import decoding
from unwind.kube.decoding import Key
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.kube.informers import Informer
from unwind.protection import manifests
from unwind.server.manager_names import MANAGER, REGISTRATION, is_ours, recorded_extension
from unwind.server.registration import RegistrationController
from unwind.server.webhook_controller import mended, with_authorities

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.decoding import RawObject
    from unwind.server.registration import RegistrationDeps


# Restores the policies that `unwind install` wrote as well, with or without the feature gate: admission policies do not
# apply to admission policies, so nothing else protects them.

log = logs.get(__name__)


class ProtectionController(RegistrationController):
    """Creates the policies and webhooks while the feature gate is on, and deletes them while it is off."""

    name = "protection"

    def __init__(
        self,
        deps: RegistrationDeps,
        *,
        on: bool,
        mode: Mode = Mode.AUTO,
        policies: tuple[list[Object], list[Object]] = ([], []),
        restored: Callable[[Resource, Object, str], None] = lambda *_: None,
    ) -> None:
        """`on`: the feature gate. `policies`: those that install wrote, and their bindings, which are restored.
        `restored`: called for each restored policy with what was wrong."""
        super().__init__(deps)
        self._on = on
        self._mode = mode
        self._restored = restored
        self._policies_installed = policies
        self._seen: set[str] = set()
        """The names of our policies that existed when they were last reconciled."""
        self._key = manifests.protection_rules(deps.namespace)
        self._unserved = asyncio.Event()
        self._policies = self._follow(VALIDATING_ADMISSION_POLICIES)
        self._bindings = self._follow(VALIDATING_ADMISSION_POLICY_BINDINGS)
        self._webhooks = self._follow(VALIDATING_WEBHOOK_CONFIGURATIONS)
        self._installed = self._follow(CONFIG_MAPS)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        informers = [self._policies, self._bindings, self._webhooks, self._installed]
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            tasks.create_task(self._queue.run())
            if self._on and self._mode is Mode.POLICY:
                tasks.create_task(self._insist())

    async def _insist(self) -> None:
        await self._unserved.wait()
        raise UnwindError(
            "the API server does not serve ValidatingAdmissionPolicies", remedy="use --protection-mode=auto"
        )

    # Events

    def _follow(self, resource: Resource) -> Informer[RawObject]:
        at_home = self._home if resource.namespaced else None
        ours = REGISTRATION if resource.namespaced else f"{MANAGER}-"

        def troubled(error: Exception) -> None:
            if resource == VALIDATING_ADMISSION_POLICIES and isinstance(error, ApiError) and error.code == 404:
                self._unserved.set()
                self._enqueue_all()
                return
            log.info("watch failed, will retry", kind=resource.kind, why=str(error))

        def changed(change: Change[RawObject]) -> None:
            if change.key.name.startswith(ours):
                self._enqueue_all()

        informer = Informer(
            self._client,
            decoding.raw(resource),
            namespace=at_home,
            clock=self._clock,
            troubled=troubled,
            listed=self._enqueue_all,
        )
        informer.subscribe(changed)
        return informer

    def _enqueue_all(self) -> None:
        self._queue.add(self._key)

    # Reconcile

    async def _reconcile(self, _: str) -> float | None:
        if not self._owner.owns(self._key) or not (self._webhooks.synced and (self._installed.synced or not self._on)):
            return None
        if not self._answered:
            return None
        served = self._policies.synced and self._bindings.synced
        if served and self._installed.synced:
            await self._restore()
        if not (served or self._unserved.is_set()):
            return None
        wanted = self._wanted(by_policies=served and self._mode is not Mode.WEBHOOK)
        if wanted is None:
            return None
        # Create before delete: in between there is too much protection, never too little.
        for informer, objects in wanted:
            for obj in objects:
                await self._ensure(informer, obj)
        for informer, objects in wanted:
            if informer is not self._policies:  # a policy without a binding does nothing
                await self._delete_others(informer, {obj["metadata"]["name"] for obj in objects})
        return None

    async def _restore(self) -> None:
        """Restore the policies that install wrote, bindings last."""
        if self._installed.cache.get(Key(self._home, REGISTRATION)) is None:
            return  # Unwind is not installed, or is being uninstalled
        for informer, objects in zip((self._policies, self._bindings), self._policies_installed, strict=True):
            for obj in objects:
                # A manager that runs in the cluster creates them itself.
                expected = not self._through_service or obj["metadata"]["name"] in self._seen
                await self._ensure(informer, obj, installed=expected)

    def _wanted(self, *, by_policies: bool) -> list[tuple[Informer[RawObject], list[Object]]] | None:
        """The wanted objects in the order of their creation; None if unknown."""
        made: list[Object] = []
        bindings: list[Object] = []
        asking: list[Object] = []
        if self._on:
            kept = self._installed.cache.get(Key(self._home, REGISTRATION))
            if kept is None:
                return None  # not installed, or being uninstalled
            extension = recorded_extension(kept.decode(), "")
            calling = manifests.called_at(extension, self._segments.key) if extension else None
            if calling is None:
                where = f"ConfigMap/{self._home}/{REGISTRATION}"
                log.warning(
                    "registration manifest is invalid",
                    object=where,
                    remedy="run `unwind install` or `helm upgrade` again",
                )
                return None
            if by_policies:
                made, bindings = manifests.policy_objects(self._home)
            asking = [manifests.configuration(self._home, calling, everything=not by_policies)]
        return [(self._policies, made), (self._bindings, bindings), (self._webhooks, asking)]

    async def _ensure(self, informer: Informer[RawObject], wanted: Object, *, installed: bool = False) -> None:
        """`installed`: it existed before, so it is reported if it is missing."""
        resource, name = informer.view.resource, wanted["metadata"]["name"]
        found = informer.cache.get(Key("", name))
        about = {"object": f"{resource.kind}/{name}"}
        if found is None:
            # Not over an object that the cache has not seen yet: it may belong to another owner.
            if await self._is_there(resource, name):
                return
            made = await self._client.apply(resource, wanted, field_manager=names.FIELD_MANAGER)
            log.info("object created", **about, uid=made["metadata"]["uid"])
            if installed:
                self._restored(resource, made, "it was missing, and was recreated")
            return
        self._seen.add(name)
        obj = found.decode()
        if obj["metadata"].get("deletionTimestamp"):
            return  # its deletion is an event
        if not is_ours(obj):
            log.warning(
                "name in use by an object of another owner, protection is off",
                **about,
                remedy="delete that object: the manager then creates its own",
            )
            return
        if patch := mended(obj, with_authorities(wanted, obj)):
            try:
                await self._client.revise(resource, obj, patch)
            except (NotFoundError, ConflictError):
                return  # changed concurrently; the change comes as an event
            log.warning("drift corrected", **about, uid=obj["metadata"]["uid"])
            self._restored(resource, obj, "it was modified, and was restored")

    async def _is_there(self, resource: Resource, name: str) -> bool:
        try:
            await self._client.get(resource, name)
        except NotFoundError:
            return False
        return True

    async def _delete_others(self, informer: Informer[RawObject], wanted: set[str]) -> None:
        resource = informer.view.resource
        for name in self._names(resource) - wanted:
            found = informer.cache.get(Key("", name))
            if found is None or not is_ours(found.decode()):
                continue
            try:
                await self._client.delete(resource, name, uid=found.uid)
            except (NotFoundError, ConflictError):
                continue  # already deleted or replaced
            log.info("deleted", object=f"{resource.kind}/{name}", uid=found.uid)

    def _names(self, resource: Resource) -> set[str]:
        """The names of one kind that any mode, or an earlier build, creates."""
        if resource == VALIDATING_WEBHOOK_CONFIGURATIONS:
            return {manifests.protection_rules(self._home)}
        made = {obj["metadata"]["name"] for obj in manifests.policy_objects(self._home)[1]}
        return made | manifests.retired_policies(self._home)
