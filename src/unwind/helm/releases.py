"""What Helm keeps of its releases: Secrets on the member, read and put right by ourselves."""

from __future__ import annotations

import base64
import binascii
import gzip
import re
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
from unwind.kube.http1 import BrokenError, TooLargeError, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unwind.kube.client import Client, Object

SECRET_TYPE = "helm.sh/release.v1"  # noqa: S105 - what Helm calls it
_MAGIC = b"\x1f\x8b\x08"
# A Secret holds 1 MiB, some 600 KB of it packed. A real release unpacks to five or ten times that.
MOST_UNPACKED = 16 << 20


class HelmStatus(Word):
    """How far Helm has come with a revision."""

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
    """What became of a revision."""

    status: str = ""
    description: str = ""
    last_deployed: str = ""


class HelmHook(msgspec.Struct, frozen=True):
    """An object that Helm creates at some moment. It is no part of the release."""

    name: str = ""
    kind: str = ""
    manifest: str = ""
    events: tuple[str, ...] | None = None
    delete_policies: tuple[str, ...] | None = None

    @property
    def on_delete(self) -> bool:
        """Whether it is created when the release goes."""
        return bool({"pre-delete", "post-delete"}.intersection(self.events or ()))

    @property
    def replaced(self) -> bool:
        """Whether Helm first deletes what has its name; it does if nothing is said."""
        return not self.delete_policies or "before-hook-creation" in self.delete_policies


class ChartMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What a chart says of itself."""

    name: str = ""
    version: str = ""
    app_version: str = ""


class ReleasedChart(msgspec.Struct, frozen=True):
    """The chart of a release."""

    metadata: ChartMetadata = ChartMetadata()


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
        """Its status; UNKNOWN also for words that Helm has learned since."""
        status = HelmStatus.read(self.info.status)
        return status if isinstance(status, HelmStatus) else HelmStatus.UNKNOWN

    @property
    def pending(self) -> bool:
        """Whether Helm is at it, or died over it."""
        return self.status in (HelmStatus.PENDING_INSTALL, HelmStatus.PENDING_UPGRADE, HelmStatus.PENDING_ROLLBACK)

    @property
    def began(self) -> datetime | None:
        """When Helm began with it."""
        try:
            return msgspec.convert(self.info.last_deployed, datetime)
        except msgspec.ValidationError:
            return None

    def __str__(self) -> str:
        return f"release {self.namespace}/{self.name}"


class Revision(msgspec.Struct, frozen=True):
    """A revision as it is kept on the member."""

    release: HelmRelease
    secret: dict[str, Any]

    @property
    def owner(self) -> str:
        """The uid of who of ours it belongs to; empty if it is somebody else's."""
        return self._label(OWNER_LABEL)

    @property
    def inputs(self) -> str:
        """What it was made of, as a hash."""
        return self._label(CHART_INPUTS_LABEL)

    @property
    def replica(self) -> str:
        """Of ours, the one that worked on it last; empty if it does not say so."""
        return self._label(REPLICA_LABEL)

    @property
    def tier(self) -> int | None:
        """Of the profile that it belongs to; None if it does not say so."""
        said = self._label(CHART_TIER_LABEL)
        return int(said) if said.isdecimal() else None

    def _label(self, name: str) -> str:
        return str((self.secret["metadata"].get("labels") or {}).get(name, ""))


class ChartManifest(msgspec.Struct, frozen=True):
    """An object as a chart writes it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    kept: bool = False
    """It stays when the release goes."""
    hook: bool = False
    on_delete: bool = False
    """A hook for when the release goes."""
    replaced: bool = False
    """A hook for which Helm deletes whatever has its name."""
    forever: bool = False
    """A CRD that a chart has beside its templates. Helm installs it where there is none, and never touches it again."""
    serves: tuple[Resource, ...] = ()
    """What a CRD has the API server serve."""

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


# Reading


async def history(client: Client, *, namespace: str, release: str) -> list[Revision]:
    """Every revision of a release that there is, the oldest first; none if there is no such release."""
    found = await client.list(SECRETS, namespace=namespace, labels=f"owner=helm,name={release}")
    kept = [Revision(decode(item), item) for item in found if item.get("type") == SECRET_TYPE]
    return sorted(kept, key=lambda one: one.release.version)


def decode(secret: Object) -> HelmRelease:
    """The revision that a Secret holds."""
    return from_json(_unpacked(secret))


def from_json(text: bytes) -> HelmRelease:
    """A revision as Helm writes it."""
    try:
        return msgspec.json.decode(text, type=HelmRelease)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnwindError(f"what Helm says of a release cannot be read ({error})") from error


def _unpacked(secret: Object) -> bytes:
    try:
        # Twice: a Secret's data, and Helm's own.
        packed = base64.b64decode(base64.b64decode(secret["data"]["release"]))
        return unpacked(packed, most=MOST_UNPACKED) if packed.startswith(_MAGIC) else packed
    except (KeyError, TypeError, ValueError, binascii.Error, BrokenError) as error:
        name = f"{secret['metadata'].get('namespace', '')}/{secret['metadata']['name']}"
        why = f" (it is larger than {MOST_UNPACKED >> 20} MiB)" if isinstance(error, TooLargeError) else ""
        raise UnwindError(f"Secret {name} holds no release of Helm's{why}", remedy="look at it") from None


def manifests(release: HelmRelease) -> list[ChartManifest]:
    """The objects of a revision, and its hooks. Costs milliseconds: large ones are for a thread."""
    found = [_manifest(document) for document in _documents(release.manifest)]
    for hook in release.hooks or ():
        found += [
            msgspec.structs.replace(_manifest(document), hook=True, on_delete=hook.on_delete, replaced=hook.replaced)
            for document in _documents(hook.manifest)
        ]
    return found


def rendered(text: str) -> list[ChartManifest]:
    """The objects that `helm template` printed, hooks and CRDs among them."""
    found: list[ChartManifest] = []
    source = ""
    for part in re.split(r"^---\s*$", text, flags=re.MULTILINE):
        if said := re.search(r"^# Source: (.*)$", part, flags=re.MULTILINE):
            source = said[1]  # one file may hold several documents, and only the first says where it is from
        for document in _documents(part):
            one = _manifest(document)
            hook = _hook(document)
            if hook:
                one = msgspec.structs.replace(one, hook=True, on_delete=hook.on_delete, replaced=hook.replaced)
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
        # Helm keeps what says "keep", and forgets about what says anything else: neither is ever deleted by it.
        kept=HELM_KEEP_ANNOTATION in (metadata.get("annotations") or {}),
        serves=tuple(_served(document)) if document.get("kind") == CUSTOM_RESOURCE_DEFINITIONS.kind else (),
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
        return  # the API server will say what is wrong with it


def _documents(text: str) -> Iterator[dict[str, Any]]:
    try:
        safe_yaml.check(text)
        for document in yaml.load_all(text, Loader=yaml.CSafeLoader):
            yield from _flat(document)
    except yaml.YAMLError as error:
        why = f" ({error})" if isinstance(error, safe_yaml.TooComplexError) else ""
        raise UnwindError(f"the manifest of a release is no YAML{why}", remedy="uninstall it by hand") from error


def _flat(document: Any) -> Iterator[dict[str, Any]]:
    """A List is what is in it, to Helm, too."""
    if not isinstance(document, dict):
        return
    if str(document.get("kind", "")).endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _flat(item)
    else:
        yield document


# Whose it is


def of_release(obj: Object, *, namespace: str, release: str) -> bool:
    """Whether an object carries Helm's mark of this release: what Helm itself goes by."""
    labels, annotations = obj["metadata"].get("labels") or {}, obj["metadata"].get("annotations") or {}
    return (
        labels.get(MANAGED_BY_LABEL) == MANAGED_BY_HELM
        and annotations.get(HELM_RELEASE_ANNOTATION) == release
        and annotations.get(HELM_NAMESPACE_ANNOTATION) == namespace
    )


def is_hook(obj: Object) -> bool:
    """Whether an object was made by Helm as a hook. It carries no mark of its release."""
    written = any(field.get("manager") == "helm" for field in obj["metadata"].get("managedFields") or ())
    return written and HELM_HOOK_ANNOTATION in (obj["metadata"].get("annotations") or {})


def is_own_hook(obj: Object, uid: str | None) -> bool:
    """Whether an object is a hook of ours. `uid`: what is written down of it; empty for one that was intended and may
    have been created since, None where nothing is written down."""
    if uid is None or (uid and obj["metadata"]["uid"] != uid):
        return False
    return bool(uid) or is_hook(obj)


# Putting right


async def set_status(
    client: Client, revision: Revision, status: HelmStatus, *, why: str, replica: str = ""
) -> Revision:
    """Say how far Helm has come with a revision, in its own words, and which `replica` works on it.

    Only as it was read: should Helm be at it after all, this fails.
    """

    def change(payload: dict[str, Any]) -> None:
        payload["info"] = (payload.get("info") or {}) | {"status": status.value, "description": why}

    labels = {"status": status.value} | ({REPLICA_LABEL: replica} if replica else {})
    return await _rewrite(client, revision, change, labels=labels)


async def mark(client: Client, revision: Revision, *, owner: str, tier: int) -> Revision:
    """Say whose a release is, only as it was read: of two that want it, or of one that takes it over and one that
    removes it, only one succeeds. Helm keeps these labels with every revision that follows."""
    labels = {OWNER_LABEL: owner, CHART_TIER_LABEL: str(tier)}
    secret = await client.revise(SECRETS, revision.secret, {"metadata": {"labels": labels}})
    return Revision(revision.release, secret)


async def forget(client: Client, revision: Revision, gone: Iterable[ChartManifest]) -> None:
    """Take objects out of a revision whose kinds are not served any more: Helm cannot even name them, and gives up."""
    leaving = {(manifest.api_version, manifest.kind, manifest.namespace, manifest.name) for manifest in gone}

    def stays(document: dict[str, Any]) -> bool:
        it = _manifest(document)
        return (it.api_version, it.kind, it.namespace, it.name) not in leaving

    def prune(payload: dict[str, Any]) -> None:
        kept = [document for document in _documents(str(payload.get("manifest", ""))) if stays(document)]
        payload["manifest"] = yaml.dump_all(kept, Dumper=yaml.CSafeDumper, explicit_start=True)
        payload["hooks"] = [
            hook for hook in payload.get("hooks") or () if all(map(stays, _documents(str(hook.get("manifest", "")))))
        ]

    await _rewrite(client, revision, prune)


async def disown(client: Client, revisions: Iterable[Revision]) -> None:
    """Take our marks off a release that is left where it is."""
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
