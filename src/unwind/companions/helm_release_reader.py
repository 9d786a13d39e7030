"""Reads Helm releases from a member: their revisions, objects, and what Helm keeps of them.

Who drives them: `helm_release_drivers`.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectRef, ref_of
from unwind.api.names import HELM_KEEP_ANNOTATION, MANAGED_BY_HELM, MANAGED_BY_LABEL, OWNER_LABEL
from unwind.api.policies import SourceKind
from unwind.api.resources import NAMESPACES, SECRETS
from unwind.companions import helm_release_drivers, helm_release_rules
from unwind.companions.companion import Handle, HandleEntry
from unwind.companions.helm_release_rules import ReleaseName, StoredRevision
from unwind.deploy.helm_install import parts_of
from unwind.errors import UnwindError
from unwind.helm import release_secrets
from unwind.helm.release_secrets import ChartManifest
from unwind.kube import decoding
from unwind.kube.errors import NotFoundError
from unwind.members import contents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unwind.helm.release_secrets import HelmRelease
    from unwind.kube.client import Client, Object
    from unwind.members.member import Member

GROUP, KIND = "helm.sh", "Release"
_UIDS = uuid.UUID("6e1f0d0c-5e3a-5c56-9d0f-2f4c0c3d5a77")
_NAMESPACE_CREATORS = ("helm", "caaph")
_TRIES = 4


class LoadedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release, decoded."""

    name: ReleaseName
    last: release_secrets.Revision
    manifests: tuple[ChartManifest, ...]
    """Its objects, those of the last revision first; without its hooks."""
    hooks: tuple[ChartManifest, ...]
    crds: tuple[ChartManifest, ...]
    """Of the chart's crds directory."""
    driver: str
    """Who drives it, by its own marks; empty if there is no trace."""
    flux: ReleaseName | None = None
    """The HelmRelease of Flux that its objects name."""
    profile: bool = False
    """Whether its Secret has the mark of a profile of Unwind."""
    cluster_role: str
    """Why the other workloads of the cluster may need it."""

    @property
    def release(self) -> HelmRelease:
        return self.last.release


def release_ref(name: ReleaseName, *, cluster: str, version: str = "v1") -> ObjectRef:
    """The reference to a release. A release has no uid: this one is the same for every revision (pure)."""
    uid = str(uuid.uuid5(_UIDS, f"{cluster}/{name}"))
    return ObjectRef(group=GROUP, version=version, kind=KIND, namespace=name.namespace, name=name.name, uid=uid)


def is_release(ref: ObjectRef) -> bool:
    """Whether a reference is to a Helm release (pure)."""
    return (ref.group, ref.kind) == (GROUP, KIND)


# Reading


async def stored_revisions(client: Client, *, release: ReleaseName | None = None) -> list[StoredRevision]:
    """The revisions of all releases of a cluster, or of one release, from the metadata of their Secrets."""
    view = decoding.metadata(SECRETS)
    found: list[StoredRevision] = []
    pages = client.pages(
        SECRETS,
        namespace=release.namespace if release else None,
        labels=f"owner=helm,name={release.name}" if release else "owner=helm",
        fields=f"type={release_secrets.SECRET_TYPE}",
        accept=view.accept_list,
    )
    async with aclosing(pages):
        async for page in pages:
            found += filter(None, (StoredRevision.of(view.decode(item)) for item in page.items or ()))
    return found


async def load(member: Member, name: ReleaseName, *, storage: str = "") -> LoadedRelease | None:
    """A release; None if there is no such release. Raises if a revision cannot be read. `storage`: the namespace of its
    Secrets, if it is not its own."""
    stored = ReleaseName(storage or name.namespace, name.name)
    for _ in range(_TRIES):
        found = helm_release_rules.by_release(await stored_revisions(member.client, release=stored))
        if stored not in found:
            await member.verify()  # absence counts only if this is the recorded cluster
            return None
        try:
            return await load_revisions(member, name, helm_release_rules.concerning(found[stored]))
        except NotFoundError:
            continue  # Helm deletes old revisions during an upgrade
    raise UnwindError(f"cannot read Helm release {name}: its revisions change all the time", remedy="will retry")


async def load_revisions(member: Member, name: ReleaseName, revisions: Sequence[StoredRevision]) -> LoadedRelease:
    """A release with the objects of these revisions, the oldest first. Raises if one cannot be decoded."""
    secrets = [await member.client.get(SECRETS, item.secret, namespace=item.release.namespace) for item in revisions]
    # Decoding takes milliseconds for each.
    return await asyncio.to_thread(_loaded, name, secrets)


def _loaded(name: ReleaseName, secrets: Sequence[Object]) -> LoadedRelease:
    revisions = [release_secrets.Revision(release_secrets.decode(secret), secret) for secret in secrets]
    last = revisions[-1]
    stored = (last.release.namespace or name.namespace, last.release.name)
    if stored != (name.namespace, name.name):
        metadata = last.secret["metadata"]
        raise UnwindError(
            f"cannot use the Helm release in Secret {metadata['namespace']}/{metadata['name']}: it is of"
            f" {stored[0]}/{stored[1]}, not of {name}",
            remedy="uninstall it with the program that installed it",
        )
    documents = release_secrets.documents(last.release)
    manifests: dict[tuple[str, str, str, str], ChartManifest] = {}
    for revision in reversed(revisions):
        for it in release_secrets.release_manifests(revision.release):
            if not it.hook:
                manifests.setdefault((it.group, it.kind, it.namespace or name.namespace, it.name), it)
    labels: Mapping[str, str] = last.secret["metadata"].get("labels") or {}
    return LoadedRelease(
        name=name,
        last=last,
        manifests=tuple(manifests.values()),
        hooks=tuple(it for it in release_secrets.release_manifests(last.release) if it.hook),
        crds=tuple(release_secrets.crd_manifests(last.release)),
        driver=helm_release_drivers.driver(last.release, labels, documents),
        flux=helm_release_drivers.flux_release(documents),
        profile=bool(labels.get(OWNER_LABEL)),
        cluster_role=helm_release_rules.cluster_role(name.namespace, last.release, documents),
    )


async def handle_of(member: Member, loaded: LoadedRelease, ref: ObjectRef) -> Handle:
    """The handle of a release."""
    depends_on = helm_release_rules.depends_on(loaded.release, namespace=loaded.name.namespace)
    entries = await entries_of(member, loaded)
    return Handle(
        ref=ref,
        source=SourceKind.HELM,
        entries=entries,
        objects=len(entries),
        depends_on=depends_on,
        last=bool(loaded.cluster_role),
        exactly=loaded.cluster_role,
    )


def secret_ref(release: ReleaseName, secret: str) -> ObjectRef:
    """The reference to the Secret of a revision (pure). Helm deletes it with the release."""
    return ObjectRef(version="v1", kind=SECRETS.kind, namespace=release.namespace, name=secret)


async def entries_of(member: Member, loaded: LoadedRelease) -> tuple[HandleEntry, ...]:
    """The objects of a release: what Helm deletes, what it keeps, and the Secret of its last revision."""
    namespace = loaded.name.namespace
    entries = [HandleEntry(object=secret_ref(loaded.name, loaded.last.secret["metadata"]["name"]))]
    for kept, manifests in (
        ("", [it for it in loaded.manifests if not it.kept]),
        (helm_release_rules.KEPT_BY_POLICY, [it for it in loaded.manifests if it.kept]),
        (helm_release_rules.KEPT_HOOK, [it for it in loaded.hooks if not it.on_delete]),
        (helm_release_rules.KEPT_CRD, loaded.crds),
    ):
        entries += [HandleEntry(object=ref, kept=kept) for ref in await _refs(member, manifests, namespace)]
    found = ObjectRef(version="v1", kind=NAMESPACES.kind, name=namespace)
    if await _created_by_helm(member, namespace) and found not in [entry.object for entry in entries]:
        entries.append(HandleEntry(object=found, kept=helm_release_rules.KEPT_NAMESPACE))
    return tuple(entries)


async def marked_entries(member: Member, release: ReleaseName) -> tuple[HandleEntry, ...]:
    """The objects that carry Helm's mark for a release, which may be gone itself. Expensive: lists every kind."""
    labels = f"{MANAGED_BY_LABEL}={MANAGED_BY_HELM}"
    found = await contents.cluster_contents(member.client, member.discovery, labels=labels)
    return tuple(
        HandleEntry(
            object=msgspec.structs.replace(ref_of(item.resource, item.metadata), uid=""),
            kept=helm_release_rules.KEPT_BY_POLICY if HELM_KEEP_ANNOTATION in (item.metadata.annotations or {}) else "",
        )
        for item in found
        if helm_release_rules.is_of_release(item.metadata, release)
    )


async def _refs(member: Member, manifests: Sequence[ChartManifest], namespace: str) -> list[ObjectRef]:
    """References to the objects of manifests, also of kinds that are not served: whether those exist is checked."""
    parts = {id(part.manifest): part.ref for part in await parts_of(member, manifests, namespace=namespace)}
    return [
        parts.get(id(it))
        or ObjectRef(group=it.group, version=it.version, kind=it.kind, namespace=it.namespace, name=it.name)
        for it in manifests
    ]


async def _created_by_helm(member: Member, namespace: str) -> bool:
    """Whether Helm created a namespace (`--create-namespace`). It writes no mark, but its name is in managedFields, or
    that of the program that uses Helm as a library."""
    try:
        found = await member.client.get(NAMESPACES, namespace)
    except NotFoundError:
        return False
    fields: list[dict[str, Any]] = found["metadata"].get("managedFields") or []
    return any(field.get("manager") in _NAMESPACE_CREATORS for field in fields)
