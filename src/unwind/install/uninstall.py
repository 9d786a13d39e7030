"""Uninstall Unwind: delete the objects with our label by uid, and remove our finalizers; anything unknown stops it.

In this order: nothing is registered any more, what calls the manager goes, the manager stops, its finalizers go, and
then its policies and the rest. It can be interrupted anywhere, and run again.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import names
from unwind.api.capi import CLUSTERS, EXTENSION_CONFIGS
from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    LEASES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from unwind.api.unwind import INVENTORIES
from unwind.companions import flux_rules
from unwind.errors import UnwindError
from unwind.install import existing_objects, member_handles, uninstall_preconditions
from unwind.install.existing_objects import look
from unwind.install.manifests import called, everything, resource_of
from unwind.install.obsolete_objects import retired_rights
from unwind.install.own_object_policies import kinds_name
from unwind.install.running_managers import LEASE_PREFIX
from unwind.kube.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from unwind.server.manager_names import MANAGER, REGISTRATION, is_ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.rights import Setting
    from unwind.kube.client import Client

Object = dict[str, Any]

_GONE_WITHIN = 120.0
# Objects that Kubernetes creates in every namespace, and objects that only describe others.
_ALWAYS_THERE = {("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")}
_CALLING = {
    (resource.group, resource.plural)
    for resource in (EXTENSION_CONFIGS, VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS)
}
_POLICIES = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)
# Annotations by which the manager remembers something on objects of others, or holds them.
_REMEMBERED = (names.OWNERS_ANNOTATION, names.CAPI_CLUSTER_ANNOTATION, names.MACHINE_GATE_ANNOTATION)
_TELLING = {EVENTS.plural, "endpoints", "endpointslices"}


_SHOWN = 5


class Crd(msgspec.Struct, frozen=True):
    """One of our CRDs, and the number of its custom resources."""

    name: str
    uid: str
    objects: int


class InstalledState(msgspec.Struct, frozen=True, kw_only=True):
    """What Unwind has in the cluster, before anything is changed."""

    crds: tuple[Crd, ...]
    adopted: dict[str, str]
    """CRDs of other systems, and the fields that we added to them."""
    bearers: tuple[tuple[Resource, ObjectMeta], ...]
    """Objects with one of our finalizers, or an annotation that only the manager uses."""
    objects: tuple[Object, ...]
    """Other objects that install created, in the order of their deletion."""


class UninstallResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted, and what was kept on purpose, each with its reason."""

    deleted: tuple[str, ...]
    released: int
    kept: tuple[str, ...]


async def survey(
    client: Client, setting: Setting, *, leave_addons: bool = False, of_chart: bool = False
) -> InstalledState:
    """Find everything of Unwind; raises UnwindError while something depends on it, or a manager runs elsewhere.

    `leave_addons`: also while objects are deployed that must be removed before their cluster is deleted. `of_chart`:
    only what the manager created; Helm deletes the rest, and keeps the CRDs.
    """
    crds = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
    await _refuse_running_teardowns(client)
    await _refuse_held_clusters(client)
    if not leave_addons:
        await uninstall_preconditions.refuse_enforced(client, setting.namespace)
    await uninstall_preconditions.refuse_running_manager(client, setting.namespace)
    whole = [*retired_rights(setting), *everything(setting)]
    found = [manifest for manifest in whole if not of_chart or _is_managers(manifest)]
    theirs = [] if of_chart else crds
    return InstalledState(
        crds=tuple([await _count(client, crd) for crd in theirs if is_ours(crd)]),
        adopted={crd["metadata"]["name"]: fields for crd in theirs if not is_ours(crd) and (fields := _adopted(crd))},
        bearers=await _all_bearers(client),
        objects=tuple([obj for manifest in reversed(found) if (obj := await _ours(client, manifest))]),
    )


def _is_managers(manifest: Object) -> bool:
    """Whether a manager that runs in the cluster creates the object, or is told by it that Unwind is installed."""
    resource = resource_of(manifest)
    return _calls(manifest) or resource in (*_POLICIES, SECRETS) or _is_mark(manifest)


def _calls(obj: Object) -> bool:
    resource = resource_of(obj)
    return (resource.group, resource.plural) in _CALLING


def _is_mark(obj: Object) -> bool:
    """Whether it is the registration: without it, no replica registers anything, or restores a policy."""
    return resource_of(obj) == CONFIG_MAPS and obj["metadata"]["name"] == REGISTRATION


async def uninstall(
    client: Client,
    setting: Setting,
    seen: InstalledState,
    *,
    delete_crds: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> UninstallResult:
    """Delete everything found. CRDs with custom resources are kept unless `delete_crds`: these are user data.

    Each step can be repeated: after an interruption, survey and run it again.
    """
    kept = [
        f"added fields of CRD {name} ({fields}): without them, the API server would drop their values"
        for name, fields in seen.adopted.items()
    ]
    deleted: list[str] = []

    async def delete(obj: Object) -> None:
        resource, metadata = resource_of(obj), obj["metadata"]
        await _delete(client, resource, metadata["name"], metadata["uid"], namespace=metadata.get("namespace"))
        deleted.append(f"{resource.kind} {called(obj)}")
        announce(f"{deleted[-1]} deleted")

    # The manager has been running since the survey, and a user may have taken minutes to confirm.
    await _refuse_running_teardowns(client)
    # Nothing is registered or restored from here on.
    marks = [obj for obj in seen.objects if _is_mark(obj)]
    for obj in marks:
        await delete(obj)
    # What calls the manager goes while it still answers.
    try:
        for obj in filter(_calls, seen.objects):
            await delete(obj)
    except ApiError as error:
        # The guard of the ExtensionConfig: a Teardown began to hold a cluster in the meantime.
        for obj in marks:
            await _restore(client, obj)
        raise UnwindError(
            f"cannot uninstall: {error.status.message}", remedy="wait until the Teardown is finished, and retry"
        ) from error
    bearers = seen.bearers
    if await uninstall_preconditions.stop(client, setting.namespace):
        announce(f"Deployment {setting.namespace}/{MANAGER} scaled to 0")
        try:
            # What began until the manager stopped must keep its finalizers.
            await _refuse_running_teardowns(client)
            await _refuse_held_clusters(client)
        except UnwindError as error:
            for obj in marks:
                await _restore(client, obj)
            scale = f"kubectl -n {setting.namespace} scale deployment/{MANAGER} --replicas=2"
            raise UnwindError(error.what, remedy=f"run `{scale}`, wait until they are finished, and retry") from None
        bearers = await _all_bearers(client)
        # A replica may have read the registration before it was deleted.
        for manifest in filter(_calls, reversed(everything(setting))):
            if again := await _ours(client, manifest):
                await delete(again)
    # Before the Secrets with their credentials are released.
    on_members, failed = await member_handles.release_on_members(client, announce)
    kept += failed
    for resource, metadata in bearers:
        if not await _release(client, resource, metadata):
            kept.append(
                f"annotation {names.PAUSED_ANNOTATION} of {resource.kind} {_title(metadata)}: it is being deleted, and"
                " what must be removed from it first is not known; remove the annotation to let Cluster API delete it"
            )
        announce(f"finalizers removed from {resource.kind} {_title(metadata)}")
    # Policies go before the kinds and the namespace that they guard.
    policies = [obj for obj in seen.objects if resource_of(obj) in _POLICIES]
    for obj in policies:
        await delete(obj)

    for crd in seen.crds:
        left = await _count(client, await client.get(CUSTOM_RESOURCE_DEFINITIONS, crd.name))
        if left.objects and not delete_crds:
            kept.append(
                f"CustomResourceDefinition {crd.name}: it has {_objects(left.objects)}; --delete-crds deletes both"
            )
            continue
        found = {"metadata": {"name": crd.name, "uid": crd.uid}}
        if refusal := await _refused(client, CUSTOM_RESOURCE_DEFINITIONS, found, setting):
            kept.append(f"CustomResourceDefinition {crd.name}: {refusal}")
            continue
        await _delete(client, CUSTOM_RESOURCE_DEFINITIONS, crd.name, crd.uid)
        deleted.append(f"CustomResourceDefinition {crd.name}")
        announce(f"{deleted[-1]} deleted" + (f", with {_objects(left.objects)}" if left.objects else ""))

    await _delete_leases(client, setting.namespace)
    for obj in seen.objects:
        if resource_of(obj) == NAMESPACES and (reason := await _in_use(client, called(obj))):
            kept.append(f"Namespace {called(obj)}: it contains {reason}")
        elif resource_of(obj) == NAMESPACES and (refusal := await _refused(client, NAMESPACES, obj, setting)):
            kept.append(f"Namespace {called(obj)}: {refusal}")
        elif not (_calls(obj) or _is_mark(obj) or obj in policies):
            await delete(obj)
    return UninstallResult(deleted=tuple(deleted), released=len(bearers) + on_members, kept=tuple(kept))


async def _restore(client: Client, obj: Object) -> None:
    """Create a deleted object again, as it was."""
    metadata = {
        key: obj["metadata"][key] for key in ("name", "namespace", "labels", "annotations") if key in obj["metadata"]
    }
    await client.create(resource_of(obj), obj | {"metadata": metadata})


async def _delete_leases(client: Client, namespace: str) -> None:
    """Delete the Leases of the replicas, all of which have stopped."""
    for lease in await client.list(LEASES, namespace=namespace):
        metadata = lease["metadata"]
        if metadata["name"].startswith(LEASE_PREFIX):
            await _delete(client, LEASES, metadata["name"], metadata["uid"], namespace=namespace)


async def _refuse_running_teardowns(client: Client) -> None:
    if running := await existing_objects.unfinished_teardowns(client):
        listed = ", ".join(
            f"{teardown.metadata.name} ({teardown.spec.title}, {teardown.status.phase or 'Pending'})"
            for teardown in running
        )
        raise UnwindError(
            f"cannot uninstall: unfinished teardowns: {listed}",
            remedy="wait for them, or force-release with `unwind release`, and retry",
        )


async def _refuse_held_clusters(client: Client) -> None:
    """Raise UnwindError while Cluster API is paused for Clusters that are being deleted: only a manager knows whether
    something must still be removed from them."""
    held = [
        _title(metadata)
        for kind in await existing_objects.served_kinds(client)
        if (kind.resource.group, kind.resource.plural) == (CLUSTERS.group, CLUSTERS.plural)
        for _, metadata in await existing_objects.bearers(client, kind, lambda it: it.terminating and _is_held(it))
    ]
    if held:
        more = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
        raise UnwindError(
            f"cannot uninstall: Clusters are being deleted and held: {', '.join(held[:_SHOWN])}{more}",
            remedy="wait until a manager has let go of them, or force-release with `unwind release`, and retry",
        )


async def _count(client: Client, crd: Object) -> Crd:
    spec, metadata = crd["spec"], crd["metadata"]
    version = next((version["name"] for version in spec["versions"] if version["served"]), None)
    if version is None:
        raise UnwindError(
            f"cannot uninstall: CRD {metadata['name']} serves no version, so its custom resources cannot be counted",
            remedy="enable a served version, and retry",
        )
    resource = Resource(
        spec["group"],
        version,
        spec["names"]["plural"],
        spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
    )
    objects = 0
    async with aclosing(existing_objects.list_metadata(client, resource)) as found:
        async for _ in found:
            objects += 1
    return Crd(metadata["name"], metadata["uid"], objects)


def _adopted(crd: Object) -> str:
    annotations: dict[str, str] = crd["metadata"].get("annotations") or {}
    return annotations.get(names.ADOPTED_FIELDS_ANNOTATION, "")


async def _all_bearers(client: Client) -> tuple[tuple[Resource, ObjectMeta], ...]:
    kinds = await existing_objects.served_kinds(client)
    return tuple([bearer for kind in kinds for bearer in await existing_objects.bearers(client, kind, _bears)])


def _bears(metadata: ObjectMeta) -> bool:
    return (
        bool(existing_objects.our_finalizers(metadata))
        or any(name in metadata.annotations for name in _REMEMBERED)
        or _is_held(metadata)
    )


def _is_held(metadata: ObjectMeta) -> bool:
    """Whether Unwind paused Cluster API for the object. Another value of the annotation is not ours."""
    return metadata.annotations.get(names.PAUSED_ANNOTATION) == names.PAUSED_BY_GATE


async def _ours(client: Client, manifest: Object) -> Object | None:
    """The existing object of a manifest, if it is ours. CRDs are handled separately."""
    found = await look(client, manifest)
    resource, existing = found.resource, found.existing
    if resource == CUSTOM_RESOURCE_DEFINITIONS or existing is None or not is_ours(existing):
        return None
    # The API server omits these in its answers for some kinds.
    return {**existing, "apiVersion": resource.api_version, "kind": resource.kind}


async def _release(client: Client, resource: Resource, metadata: ObjectMeta) -> bool:
    """Remove our finalizers from one object, and no others, and what the manager wrote on it. Returns False if Cluster
    API stays paused for it, because it is being deleted."""
    namespace = metadata.namespace or None
    while True:
        try:
            restored = await _restored(client, resource, metadata)
        except NotFoundError:
            return True
        stays_paused = _is_held(metadata) and metadata.terminating
        unpaused = (names.PAUSED_ANNOTATION,) if _is_held(metadata) and not stays_paused else ()
        others = [finalizer for finalizer in metadata.finalizers if not finalizer.startswith(names.PREFIX)]
        # uid as precondition, because it may have been recreated; resourceVersion, because the whole list is sent.
        patch = {
            "metadata": {
                "uid": metadata.uid,
                "resourceVersion": metadata.resource_version,
                "finalizers": others or None,
                "annotations": {
                    **dict.fromkeys((*_REMEMBERED, *unpaused)),
                    **restored.pop("metadata", {}).get("annotations", {}),
                },
            },
            **restored,
        }
        try:
            await client.patch(
                resource, metadata.name, patch, namespace=namespace, field_manager=names.INSTALL_FIELD_MANAGER
            )
        except NotFoundError:
            return True
        except ConflictError:
            try:
                again = await client.get(resource, metadata.name, namespace=namespace)
            except NotFoundError:
                return True
            metadata = msgspec.convert(again["metadata"], ObjectMeta)
            if not _bears(metadata):
                return True
        else:
            return not stays_paused


async def _restored(client: Client, resource: Resource, metadata: ObjectMeta) -> Object:
    """The merge patch that undoes what was written before the deletion of a handle of Flux; empty for other objects."""
    handle = ObjectRef(group=resource.group, kind=resource.kind)
    if metadata.terminating or not flux_rules.is_handle(handle) or names.Finalizer.HANDLE not in metadata.finalizers:
        return {}
    return flux_rules.before_stay(await client.get(resource, metadata.name, namespace=metadata.namespace))


async def _in_use(client: Client, namespace: str) -> str:
    """Objects in our namespace that are not ours or are user data; empty if there are none."""
    there: list[str] = []
    for kind in await existing_objects.served_kinds(client):
        resource = kind.resource
        if not resource.namespaced or "list" not in kind.verbs or resource.plural in _TELLING:
            continue
        async with aclosing(existing_objects.list_metadata(client, resource, namespace=namespace)) as found:
            there += [f"{resource.kind} {item.name}" async for item in found if _counts(resource, item)]
    shown = ", ".join(there[:5])
    return f"{shown} and {len(there) - 5} more" if len(there) > 5 else shown


def _counts(resource: Resource, metadata: ObjectMeta) -> bool:
    if (resource.plural, metadata.name) in _ALWAYS_THERE:
        return False
    if (resource.group, resource.plural) == (INVENTORIES.group, INVENTORIES.plural):
        return True
    if resource.plural == LEASES.plural and metadata.name.startswith(LEASE_PREFIX):
        return False
    # An owned object is deleted with its owner, which is checked by itself.
    return not metadata.owner_references and metadata.labels.get(names.MANAGED_BY_LABEL) != names.MANAGED_BY_UNWIND


async def _refused(client: Client, resource: Resource, obj: Object, setting: Setting) -> str:
    """Why the deletion of one of our CRDs, or of our namespace, is refused; empty if it is not.

    Our own deleted policy stays in effect for a moment. Another Unwind's policy means that it needs the CRD.
    """
    ours = kinds_name(setting.namespace)
    ends = asyncio.get_running_loop().time() + _GONE_WITHIN
    while True:
        try:
            await client.delete(resource, obj["metadata"]["name"], uid=obj["metadata"]["uid"], dry_run=True)
        except (NotFoundError, ConflictError):
            return ""
        except ForbiddenError as error:
            if ours not in error.status.message or asyncio.get_running_loop().time() > ends:
                return error.status.message
            await asyncio.sleep(0.1)
        else:
            return ""


async def _delete(client: Client, resource: Resource, name: str, uid: str, *, namespace: str | None = None) -> None:
    """Delete this object by uid, and wait until it is verified absent."""
    try:
        await client.delete(resource, name, uid=uid, namespace=namespace)
    except (NotFoundError, ConflictError):
        # Already gone, or recreated with another uid, which is not ours to delete.
        return
    try:
        async with asyncio.timeout(_GONE_WITHIN):
            # Polled, not watched: a watch that begins after the deletion never reports it.
            while not (await client.sighting(resource, name, uid=uid, namespace=namespace)).absent:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise UnwindError(
            f"timed out after {_GONE_WITHIN:.0f}s waiting for {resource.kind} {name} to be deleted",
            remedy=f"see its finalizers and conditions with `kubectl get {resource.plural} {name} -o yaml`",
        ) from None


def _title(metadata: ObjectMeta) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"
