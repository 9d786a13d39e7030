"""Reads and corrects Helm's release Secrets on a member."""

from __future__ import annotations

import base64
import binascii
import gzip
import re
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from unwind import safe_yaml
from unwind.api.fields import Word
from unwind.api.names import (
    CHART_INPUTS_LABEL,
    CHART_TIER_LABEL,
    HELM_HOOK_ANNOTATION,
    HELM_KEEP_ANNOTATION,
    HELM_NAMESPACE_ANNOTATION,
    HELM_RELEASE_ANNOTATION,
    MANAGED_BY_HELM,
    MANAGED_BY_LABEL,
    OWNER_LABEL,
    REPLICA_LABEL,
)
from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS, SECRETS, Resource
from unwind.errors import UnwindError
from unwind.helm import pod_security
from unwind.kube.errors import NotFoundError
from unwind.kube.http1 import BrokenError, TooLargeError, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unwind.kube.client import Client, Object

SECRET_TYPE = "helm.sh/release.v1"  # noqa: S105 - a Secret type
HOOK_MANAGER = "unwind-helm-hook"
"""The field manager of hooks that Unwind creates. Those that Helm creates have `helm`."""
PRE_DELETE, POST_DELETE = "pre-delete", "post-delete"
_MAGIC = b"\x1f\x8b\x08"
# A Secret holds 1 MiB, about 600 KB of it compressed data. A real release expands to five or ten times that.
MOST_UNPACKED = 16 << 20


class HelmStatus(Word):
    """The status of a revision."""

    UNKNOWN = "unknown"
    DEPLOYED = "deployed"
    UNINSTALLED = "uninstalled"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    UNINSTALLING = "uninstalling"
    PENDING_INSTALL = "pending-install"
    PENDING_UPGRADE = "pending-upgrade"
    PENDING_ROLLBACK = "pending-rollback"


class Info(msgspec.Struct, frozen=True):
    """The status information of a revision."""

    status: str = ""
    description: str = ""
    last_deployed: str = ""


class HelmHook(msgspec.Struct, frozen=True):
    """An object that Helm creates for an event. It is not part of the release."""

    name: str = ""
    kind: str = ""
    manifest: str = ""
    events: tuple[str, ...] | None = None
    weight: int = 0
    delete_policies: tuple[str, ...] | None = None

    @property
    def on_delete(self) -> bool:
        """Whether it is created for the uninstall."""
        return bool({PRE_DELETE, POST_DELETE}.intersection(self.events or ()))

    @property
    def replaced(self) -> bool:
        """Whether Helm first deletes an existing object of its name, which is the default."""
        return not self.delete_policies or "before-hook-creation" in self.delete_policies


class ChartMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of a chart."""

    name: str = ""
    version: str = ""
    app_version: str = ""
    annotations: dict[str, str] | None = None


class ChartFile(msgspec.Struct, frozen=True):
    """A file of a chart that is no template."""

    name: str = ""
    data: msgspec.Raw = msgspec.Raw(b'""')
    """Its content as JSON. Decoded only if it is needed: a chart may contain any files."""


class ReleasedChart(msgspec.Struct, frozen=True):
    """The chart of a release, without its subcharts: Helm does not store them."""

    metadata: ChartMetadata = ChartMetadata()
    files: tuple[ChartFile, ...] | None = None


class HelmRelease(msgspec.Struct, frozen=True):
    """One revision of a release."""

    name: str
    namespace: str = ""
    version: int = 0
    """The revision."""
    info: Info = Info()
    chart: ReleasedChart = ReleasedChart()
    manifest: str = ""
    hooks: tuple[HelmHook, ...] | None = None

    @property
    def status(self) -> HelmStatus:
        """Its status; UNKNOWN also for values of newer Helm versions."""
        status = HelmStatus.read(self.info.status)
        return status if isinstance(status, HelmStatus) else HelmStatus.UNKNOWN

    @property
    def pending(self) -> bool:
        """Whether Helm works on it, or was interrupted."""
        return self.status in (HelmStatus.PENDING_INSTALL, HelmStatus.PENDING_UPGRADE, HelmStatus.PENDING_ROLLBACK)

    @property
    def began(self) -> datetime | None:
        """When Helm started it."""
        try:
            return msgspec.convert(self.info.last_deployed, datetime)
        except msgspec.ValidationError:
            return None

    def __str__(self) -> str:
        return f"release {self.namespace}/{self.name}"


class Revision(msgspec.Struct, frozen=True):
    """A revision and its Secret on the member."""

    release: HelmRelease
    secret: dict[str, Any]

    @property
    def owner(self) -> str:
        """The uid in our owner label; empty if the release is not managed by Unwind."""
        return self._label(OWNER_LABEL)

    @property
    def inputs(self) -> str:
        """The hash of the chart's inputs."""
        return self._label(CHART_INPUTS_LABEL)

    @property
    def replica(self) -> str:
        """The replica of the manager that worked on it last; empty if unknown."""
        return self._label(REPLICA_LABEL)

    @property
    def tier(self) -> int | None:
        """The tier of its profile; None if unknown."""
        tier = self._label(CHART_TIER_LABEL)
        return int(tier) if tier.isdecimal() else None

    def is_same(self, other: Revision) -> bool:
        """Whether both were read from the same version of a Secret."""
        mine, its = self.secret["metadata"], other.secret["metadata"]
        return bool((mine["uid"], mine["resourceVersion"]) == (its["uid"], its["resourceVersion"]))

    def _label(self, name: str) -> str:
        return str((self.secret["metadata"].get("labels") or {}).get(name, ""))


class ChartManifest(msgspec.Struct, frozen=True):
    """A manifest of a chart."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    kept: bool = False
    """Whether it stays after the uninstall."""
    hook: bool = False
    on_delete: bool = False
    """Whether it is a hook for the uninstall."""
    replaced: bool = False
    """Whether it is a hook before which Helm deletes an existing object of its name."""
    forever: bool = False
    """Whether it is a CRD from the chart's crds directory. Helm creates it if it is absent, and never changes it."""
    serves: tuple[Resource, ...] = ()
    """The resources that a CRD defines."""
    reaches_node: bool = False
    """Whether it runs Pods that can take over their node."""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


class UninstallHook(msgspec.Struct, frozen=True):
    """An object that is created when a release is uninstalled."""

    hook: HelmHook
    manifest: ChartManifest
    document: dict[str, Any]


# Reading


async def history(client: Client, *, namespace: str, release: str) -> list[Revision]:
    """All revisions of a release, the oldest first; empty if there is no such release."""
    found = await client.list(SECRETS, namespace=namespace, labels=f"owner=helm,name={release}")
    kept = [Revision(decode(item), item) for item in found if item.get("type") == SECRET_TYPE]
    return sorted(kept, key=lambda revision: revision.release.version)


def decode(secret: Object) -> HelmRelease:
    """The revision in a Secret."""
    return from_json(_unpacked(secret), called=f"the Helm release in Secret {_named(secret)}")


def from_json(text: bytes, *, called: str = "a Helm release") -> HelmRelease:
    """A revision as Helm writes it. `called`: what it is, for the error."""
    try:
        return msgspec.json.decode(text, type=HelmRelease)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnwindError(
            f"cannot decode {called}: {error}",
            remedy="check the Secrets of type helm.sh/release.v1 on the cluster",
        ) from error


def _named(secret: Object) -> str:
    return f"{secret['metadata'].get('namespace', '')}/{secret['metadata'].get('name', '')}"


def _unpacked(secret: Object) -> bytes:
    try:
        # Encoded twice: by the Secret, and by Helm.
        packed = base64.b64decode(base64.b64decode(secret["data"]["release"]))
        return unpacked(packed, most=MOST_UNPACKED) if packed.startswith(_MAGIC) else packed
    except (KeyError, TypeError, ValueError, binascii.Error, BrokenError) as error:
        why = f"larger than {MOST_UNPACKED >> 20} MiB" if isinstance(error, TooLargeError) else "invalid data"
        raise UnwindError(
            f"cannot read the Helm release in Secret {_named(secret)}: {why}", remedy="check the Secret"
        ) from None


def documents(release: HelmRelease) -> list[dict[str, Any]]:
    """The objects in the manifest of a revision, without its hooks. Takes milliseconds: call it in a thread."""
    return list(_documents(release.manifest))


def crd_manifests(release: HelmRelease) -> list[ChartManifest]:
    """The CRDs in the crds directory of the chart. They are not part of the release, and Helm never deletes them."""
    found: list[ChartManifest] = []
    for file in release.chart.files or ():
        if file.name.startswith("crds/") and file.name.endswith((".yaml", ".yml", ".json")):
            text = msgspec.json.decode(file.data, type=bytes).decode(errors="replace")
            found += [
                msgspec.structs.replace(_manifest(document), forever=True, kept=True)
                for document in _documents(text)
                if document.get("kind") == CUSTOM_RESOURCE_DEFINITIONS.kind
            ]
    return found


def release_manifests(release: HelmRelease) -> list[ChartManifest]:
    """The manifests of a revision and its hooks. Takes milliseconds: call it in a thread."""
    found = [_manifest(document) for document in _documents(release.manifest)]
    for hook in release.hooks or ():
        found += [_hook_manifest(hook, document) for document in _documents(hook.manifest)]
    return found


def uninstall_hooks(release: HelmRelease) -> list[UninstallHook]:
    """The hooks of the uninstall, in Helm's order. Takes milliseconds: call it in a thread."""
    ordered = sorted(release.hooks or (), key=lambda hook: (hook.weight, hook.name))
    return [
        UninstallHook(hook, _hook_manifest(hook, document), document)
        for hook in ordered
        if hook.on_delete
        for document in _documents(hook.manifest)
    ]


def _hook_manifest(hook: HelmHook, document: dict[str, Any]) -> ChartManifest:
    return msgspec.structs.replace(_manifest(document), hook=True, on_delete=hook.on_delete, replaced=hook.replaced)


def rendered_manifests(text: str) -> list[ChartManifest]:
    """The manifests in the output of `helm template`, including hooks and CRDs."""
    found: list[ChartManifest] = []
    source = ""
    for part in re.split(r"^---\s*$", text, flags=re.MULTILINE):
        if match := re.search(r"^# Source: (.*)$", part, flags=re.MULTILINE):
            source = match[1]  # one file may hold several documents, and only the first has this comment
        for document in _documents(part):
            one = _manifest(document)
            hook = _hook(document)
            if hook:
                one = _hook_manifest(hook, document)
            elif one.serves and "/crds/" in source:
                one = msgspec.structs.replace(one, forever=True, kept=True)
            found.append(one)
    return found


def _manifest(document: dict[str, Any]) -> ChartManifest:
    metadata = document.get("metadata") or {}
    return ChartManifest(
        api_version=str(document.get("apiVersion", "")),
        kind=str(document.get("kind", "")),
        name=str(metadata.get("name", "")),
        namespace=str(metadata.get("namespace") or ""),
        # Helm keeps an object with "keep", and drops one with any other value: it deletes neither.
        kept=HELM_KEEP_ANNOTATION in (metadata.get("annotations") or {}),
        serves=tuple(_served(document)) if document.get("kind") == CUSTOM_RESOURCE_DEFINITIONS.kind else (),
        reaches_node=pod_security.exceeds_baseline(document),
    )


def _hook(document: dict[str, Any]) -> HelmHook | None:
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    if HELM_HOOK_ANNOTATION not in annotations:
        return None
    events, policies = (
        tuple(word.strip() for word in str(annotations.get(name) or "").split(",") if word.strip())
        for name in (HELM_HOOK_ANNOTATION, f"{HELM_HOOK_ANNOTATION}-delete-policy")
    )
    return HelmHook(events=events, delete_policies=policies)


def _served(definition: dict[str, Any]) -> Iterator[Resource]:
    try:
        spec = definition["spec"]
        group, names, namespaced = spec["group"], spec["names"], spec["scope"] == "Namespaced"
        for version in spec["versions"]:
            yield Resource(group, version["name"], names["plural"], names["kind"], namespaced=namespaced)
    except (KeyError, TypeError):
        return  # the API server reports the error


def _documents(text: str) -> Iterator[dict[str, Any]]:
    try:
        for document in safe_yaml.documents(text):
            yield from _flat(document)
    except yaml.YAMLError as error:
        why = f" ({error})" if isinstance(error, safe_yaml.TooComplexError | safe_yaml.NotJsonError) else ""
        raise UnwindError(
            f"cannot parse the manifest of a Helm release: invalid YAML{why}",
            remedy="look at it with `helm get manifest RELEASE`; to remove it without Unwind: `helm uninstall RELEASE`",
        ) from error


def _flat(document: Any) -> Iterator[dict[str, Any]]:
    """The items of a List, as Helm reads it, too; else the document itself."""
    if not isinstance(document, dict):
        return
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _flat(item)
    else:
        yield document


# Ownership


def of_release(obj: Object, *, namespace: str, release: str) -> bool:
    """Whether an object has Helm's label and annotations of this release, which Helm itself checks."""
    labels, annotations = obj["metadata"].get("labels") or {}, obj["metadata"].get("annotations") or {}
    return (
        labels.get(MANAGED_BY_LABEL) == MANAGED_BY_HELM
        and annotations.get(HELM_RELEASE_ANNOTATION) == release
        and annotations.get(HELM_NAMESPACE_ANNOTATION) == namespace
    )


def is_hook(obj: Object) -> bool:
    """Whether Helm or Unwind created an object as a hook. A hook does not name its release."""
    managers = {field.get("manager") for field in obj["metadata"].get("managedFields") or ()}
    written = bool(managers & {"helm", HOOK_MANAGER})
    return written and HELM_HOOK_ANNOTATION in (obj["metadata"].get("annotations") or {})


def is_own_hook(obj: Object, uid: str | None) -> bool:
    """Whether an object is a hook of ours. `uid`: the recorded uid; empty if it was intended and may have been created
    since, None if nothing is recorded."""
    if uid is None or (uid and obj["metadata"]["uid"] != uid):
        return False
    return bool(uid) or is_hook(obj)


# Corrections


async def set_status(
    client: Client, revision: Revision, status: HelmStatus, *, why: str, replica: str = ""
) -> Revision:
    """Set the status of a revision, and the `replica` that works on it.

    Fails if the Secret changed since it was read: then Helm still works on it.
    """

    def change(payload: dict[str, Any]) -> None:
        payload["info"] = (payload.get("info") or {}) | {"status": status.value, "description": why}

    labels = {"status": status.value} | ({REPLICA_LABEL: replica} if replica else {})
    return await _rewrite(client, revision, change, labels=labels)


async def mark(client: Client, revision: Revision, *, owner: str, tier: int) -> Revision:
    """Set the owner labels of a release. Fails if the Secret changed since it was read: of two concurrent takeovers, or
    a takeover and a removal, only one succeeds. Helm copies these labels to later revisions."""
    labels = {OWNER_LABEL: owner, CHART_TIER_LABEL: str(tier)}
    secret = await client.revise(SECRETS, revision.secret, {"metadata": {"labels": labels}})
    return Revision(revision.release, secret)


async def delete(client: Client, revision: Revision) -> None:
    """Delete the Secret of a revision as it was read; raises ConflictError if it has changed. It is no error if it is
    absent."""
    metadata = revision.secret["metadata"]
    with suppress(NotFoundError):
        await client.delete(
            SECRETS,
            metadata["name"],
            uid=metadata["uid"],
            version=metadata["resourceVersion"],
            namespace=metadata["namespace"],
        )


async def disown(client: Client, revisions: Iterable[Revision]) -> None:
    """Remove our labels from a release that stays."""
    for revision in revisions:
        patch = {
            "metadata": {"labels": dict.fromkeys((OWNER_LABEL, CHART_INPUTS_LABEL, CHART_TIER_LABEL, REPLICA_LABEL))}
        }
        await client.revise(SECRETS, revision.secret, patch)


async def _rewrite(
    client: Client,
    revision: Revision,
    change: Callable[[dict[str, Any]], None],
    *,
    labels: dict[str, str] | None = None,
) -> Revision:
    payload = msgspec.json.decode(_unpacked(revision.secret), type=dict[str, Any])
    change(payload)
    packed = base64.b64encode(base64.b64encode(gzip.compress(msgspec.json.encode(payload)))).decode()
    patch: dict[str, Any] = {"data": {"release": packed}}
    if labels:
        patch["metadata"] = {"labels": labels}
    written = await client.revise(SECRETS, revision.secret, patch)
    return Revision(decode(written), written)
