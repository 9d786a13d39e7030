"""Install or upgrade Unwind: check for conflicts first, then apply; objects of other systems are not changed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import capi, features, karmada, meta, names
from unwind.api.features import Feature
from unwind.api.meta import ObjectMeta, named_ref
from unwind.api.resources import (
    API_SERVICES,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
)
from unwind.api.unwind import TEARDOWNS, Cause, Teardown, TeardownSpec
from unwind.errors import UnwindError
from unwind.install import conflicting_controllers, crd_adoption, features_in_use, obsolete_objects
from unwind.install.existing_objects import ExistingObject, look, require_admission_policies
from unwind.install.manifests import called, definitions, manifests
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.server import path_keys
from unwind.server.manager_names import recorded_features
from unwind.teardown.manifests import requests_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.rights import Setting
    from unwind.kube.client import Client

Object = dict[str, Any]

_ESTABLISHED_WITHIN = 60.0
_IN_EFFECT_WITHIN, _IN_EFFECT_EVERY = 30.0, 0.1
_PROBE = "install-probe"
"""The name of a Teardown that only a manager may create. It is sent as a dry run."""


class InstallResult(StrEnum):
    """The result for one object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    ADOPTED = "adopted"
    """Fields were added to a CRD of another system."""
    LEFT_ALONE = "left alone"
    """It was not installed by Unwind, and is sufficient as it is."""
    LEFT_OUT = "left out"
    """Its kind is not served by this API server."""
    REMOVED = "removed"
    """It belonged to a feature that is no longer installed, or to an earlier version."""


class InstalledObject(msgspec.Struct, frozen=True):
    """The result for one object, for text and JSON output."""

    kind: str
    name: str
    result: InstallResult
    note: str = ""


async def install(
    client: Client,
    setting: Setting,
    *,
    adopt_crds: bool = False,
    accept_shadowing: bool = False,
    rotate_path: bool = False,
    announce: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> list[InstalledObject]:
    """Create what is missing and update what is ours. If it refuses, nothing was changed.

    `accept_shadowing`: install Karmada's Clusters although `kubectl get clusters` means Cluster API's. `rotate_path`:
    replace the secret segments of our paths; the old ones stay accepted for a while.
    """
    await require_admission_policies(client, "install")
    await _refuse_rivals(client, setting, warn)
    installed = await recorded_features(client, setting.namespace)
    # Without a record, for example after an interrupted uninstall, any feature may still be in use.
    await features_in_use.refuse_in_use(client, setting, features.ALL if installed is None else installed)
    found = [await _look(client, manifest) for manifest in manifests(setting)]
    elsewhere = await _served_elsewhere(client, setting)
    _refuse_release(found)
    _refuse_foreign([item for item in found if item.name not in elsewhere], adopt_crds=adopt_crds)
    if not accept_shadowing:
        await _refuse_shadowing(client, [item for item in found if item.name not in elsewhere])

    done: list[InstalledObject] = []
    after = max(place for place, one in enumerate(found) if one.resource == CUSTOM_RESOURCE_DEFINITIONS)
    for place in range(len(found)):
        one = found[place]
        result = await _put(client, one, elsewhere)
        done.append(result)
        note = f" ({result.note})" if result.note else ""
        announce(f"{result.kind} {result.name} {result.result}{note}")
        if one.resource == NAMESPACES and setting.workload is None:
            # The namespace is applied first, because the Secret is in it. A manager in the cluster creates it itself.
            before = await path_keys.exists(client, setting.namespace)
            keys = await path_keys.obtain(client, setting.namespace, now=datetime.now(UTC), rotate=rotate_path)
            changed = InstallResult.CHANGED if rotate_path else InstallResult.UNCHANGED
            done.append(InstalledObject(SECRETS.kind, path_keys.NAME, changed if before else InstallResult.CREATED))
            setting = msgspec.structs.replace(setting, path_key=keys.current)
            found = [_with(planned, manifest) for planned, manifest in zip(found, manifests(setting), strict=True)]
        if place == after:
            # Before objects that need our kinds: a policy over Teardowns refuses everything until they are served.
            crds = [obj.name for obj in done if obj.kind == CUSTOM_RESOURCE_DEFINITIONS.kind]
            await _until_established(client, crds, elsewhere)
    for resource, obj in await obsolete_objects.find_obsolete(client, setting):
        metadata = obj["metadata"]
        with suppress(NotFoundError, ConflictError):  # deleted or replaced meanwhile
            await client.delete(resource, metadata["name"], uid=metadata["uid"], namespace=metadata.get("namespace"))
        done.append(InstalledObject(resource.kind, called(obj), InstallResult.REMOVED))
        announce(f"{resource.kind} {called(obj)} {InstallResult.REMOVED}")
    last = InstalledObject(VALIDATING_ADMISSION_POLICIES.kind, requests_name(setting.namespace), InstallResult.CREATED)
    if last in done:
        await _until_policies_in_effect(client, warn)
    if installed is not None and installed != setting.features:
        warn(
            f"the features were {features.written(installed)} before: restart the manager, so that it runs the new ones"
        )
    return done


def _with(one: ExistingObject, manifest: Object) -> ExistingObject:
    """The same object with another manifest, in the served version."""
    return msgspec.structs.replace(one, manifest=manifest | {"apiVersion": one.manifest["apiVersion"]})


async def _put(client: Client, one: ExistingObject, elsewhere: dict[str, str]) -> InstalledObject:
    if one.unserved:
        return InstalledObject(one.resource.kind, one.name, InstallResult.LEFT_OUT, one.unserved)
    if one.name in elsewhere:
        return InstalledObject(one.resource.kind, one.name, InstallResult.LEFT_ALONE, elsewhere[one.name])
    if one.foreign and one.resource == CUSTOM_RESOURCE_DEFINITIONS:
        return await _adopt(client, one)
    if one.foreign:
        return InstalledObject(
            one.resource.kind, one.name, InstallResult.LEFT_ALONE, "it existed before, and is kept on uninstall"
        )
    return await _apply(client, one)


async def _refuse_rivals(client: Client, setting: Setting, warn: Callable[[str], None]) -> None:
    alive = await conflicting_controllers.find_rivals(client, setting.features, now=datetime.now(UTC))
    for item in alive:
        if item.rival.coexists:
            warn(f"{item.rival.name} is running ({item.found}): {item.rival.note}")
    against = [item for item in alive if not item.rival.coexists]
    if against:
        raise UnwindError(
            "cannot install: "
            + "; ".join(f"{item.rival.name} is running ({item.found})" for item in against)
            + ": two controllers would work on the same objects",
            remedy="stop it first: " + "; ".join(item.remedy for item in against),
        )


async def _look(client: Client, manifest: Object) -> ExistingObject:
    found = await look(client, manifest)
    if found.existing and found.existing["metadata"].get("deletionTimestamp"):
        raise UnwindError(
            f"cannot install: {found.resource.kind} {found.name} is being deleted", remedy="retry when it is gone"
        )
    return found


async def _served_elsewhere(client: Client, setting: Setting) -> dict[str, str]:
    """The CRDs whose kinds an aggregated API server serves, so that the CRD itself would never be used."""
    services = {service["metadata"]["name"]: service for service in await client.list(API_SERVICES)}
    elsewhere: dict[str, str] = {}
    for definition in definitions(setting):
        name = f"{definition.resource.version}.{definition.resource.group}"
        if target := services.get(name, {}).get("spec", {}).get("service"):
            note = f"served by aggregated API server {target['namespace']}/{target['name']}"
            elsewhere[definition.name] = note
    return elsewhere


def _refuse_release(found: list[ExistingObject]) -> None:
    """Objects of a Helm release are changed by Helm only. CRDs stay when a release is uninstalled."""
    for item in found:
        annotations = (item.existing or {}).get("metadata", {}).get("annotations") or {}
        release = annotations.get(names.HELM_RELEASE_ANNOTATION)
        if release and item.resource != CUSTOM_RESOURCE_DEFINITIONS and not item.foreign:
            raise UnwindError(
                f"cannot install: {item.resource.kind} {item.name} belongs to Helm release {release}",
                remedy="use `helm upgrade`",
            )


async def _refuse_shadowing(client: Client, found: list[ExistingObject]) -> None:
    """Refuse to install Karmada's Clusters beside Cluster API's: `kubectl delete cluster` would mean another kind.

    kubectl uses the API group that the API server lists first. It lists the groups of CRDs by their names. An
    APIService with a lower priority changes nothing: aggregated discovery has the same priority for all CRDs.
    """
    ours, theirs = (f"{kind.plural}.{kind.group}" for kind in (karmada.CLUSTERS, capi.CLUSTERS))
    if not any(item.name == ours and item.existing is None for item in found):
        return
    try:
        await client.get(CUSTOM_RESOURCE_DEFINITIONS, theirs)
    except NotFoundError:
        return
    raise UnwindError(
        f"cannot install CRD {ours} of feature {Feature.KARMADA}: Cluster API is installed, and `kubectl get clusters`"
        f" and `kubectl delete cluster` would then mean {ours}, not {theirs}",
        remedy=f"install without {Feature.KARMADA}, or use --accept-shadowing and always write {theirs}",
    )


def _refuse_foreign(found: list[ExistingObject], *, adopt_crds: bool) -> None:
    foreign = [obj for obj in found if obj.foreign and obj.resource != NAMESPACES]
    crds = [item.name for item in foreign if item.resource == CUSTOM_RESOURCE_DEFINITIONS]
    others = [f"{item.resource.kind} {item.name}" for item in foreign if item.resource != CUSTOM_RESOURCE_DEFINITIONS]
    if others:
        raise UnwindError(
            f"cannot install: objects with these names exist and were not created by Unwind: {', '.join(others)}",
            remedy="choose another --namespace, or delete them",
        )
    if crds and not adopt_crds:
        raise UnwindError(
            f"cannot install: these CRDs were installed by another system: {', '.join(crds)}",
            remedy="use --adopt-crds to add the missing fields and change nothing else",
        )


async def _apply(client: Client, one: ExistingObject) -> InstalledObject:
    applied = await client.apply(one.resource, one.manifest, field_manager=names.INSTALL_FIELD_MANAGER)
    if one.existing is None:
        result = InstallResult.CREATED
    elif _written(one.existing) == _written(applied):
        result = InstallResult.UNCHANGED
    else:
        result = InstallResult.CHANGED
    return InstalledObject(one.resource.kind, one.name, result)


def _written(obj: Object) -> Object:
    """The object without server-set metadata and status, which may change at any time."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in ("resourceVersion", "managedFields")}
    return {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}


async def _adopt(client: Client, one: ExistingObject) -> InstalledObject:
    assert one.existing  # noqa: S101 - for the type checker
    fields, patch = crd_adoption.adoption(one.existing, one.manifest)
    if not fields:
        return InstalledObject(one.resource.kind, one.name, InstallResult.UNCHANGED, "no field is missing")
    await client.patch(one.resource, one.manifest["metadata"]["name"], patch, field_manager=names.INSTALL_FIELD_MANAGER)
    return InstalledObject(one.resource.kind, one.name, InstallResult.ADOPTED, f"added {', '.join(fields)}")


async def _until_established(client: Client, crds: list[str], elsewhere: dict[str, str]) -> None:
    """Wait until the CRDs are served."""
    for name in crds:
        if name in elsewhere:
            continue
        try:
            async with (
                asyncio.timeout(_ESTABLISHED_WITHIN),
                aclosing(client.watch(CUSTOM_RESOURCE_DEFINITIONS, name=name)) as events,
            ):
                async for event in events:
                    if established(event.object):
                        break
        except TimeoutError:
            raise UnwindError(
                f"timed out after {_ESTABLISHED_WITHIN:.0f}s waiting for CRD {name} to be established",
                remedy=f"see `kubectl describe crd {name}`",
            ) from None


async def _until_policies_in_effect(client: Client, warn: Callable[[str], None]) -> None:
    """Wait until the API server refuses by the policy that was created last. Nothing else shows that it read them.

    It reads all policies together, once a second. So where the last is in effect, all are.
    """
    target = named_ref(NAMESPACES, _PROBE, uid=_PROBE)
    spec = TeardownSpec(title=_PROBE, target=target, cause=Cause.WITHDRAWN)
    probe = meta.manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=_PROBE), spec=spec))
    try:
        async with asyncio.timeout(_IN_EFFECT_WITHIN):
            while True:
                await client.apply(TEARDOWNS, probe, field_manager=names.INSTALL_FIELD_MANAGER, dry_run=True)
                await asyncio.sleep(_IN_EFFECT_EVERY)
    except TimeoutError:
        warn(
            f"the admission policies are not in effect after {_IN_EFFECT_WITHIN:.0f}s: wait before you rely on them,"
            " and see the log of the API server"
        )
    except ApiError as error:
        if VALIDATING_ADMISSION_POLICIES.kind not in str(error):
            warn(
                f"cannot see whether the admission policies are in effect: {error}; wait a minute before you rely on"
                " them"
            )


def established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
