"""Previews which handles of deployers are steps of a cluster, and which are not. Only reads."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectRef, ref_of
from unwind.api.policies import SourceKind
from unwind.api.resources import SECRETS
from unwind.companions import kubeconfig_clusters
from unwind.companions.companion import Handle
from unwind.companions.flux import FluxCompanion
from unwind.companions.handle_kinds import HANDLES, HandleKind, HandleObject
from unwind.companions.helm_release_handles import HelmCompanion
from unwind.companions.helm_release_proxies import HelmReleaseProxies
from unwind.concurrency import gather_limited
from unwind.errors import UnwindError
from unwind.kube.decoding import Key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.flux import SecretKey
    from unwind.companions.companion import Companion
    from unwind.kube.client import Client
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.preview.companion_preview import Decisions

_AT_ONCE = 8


class FoundHandles(msgspec.Struct, frozen=True, kw_only=True):
    """The handles for a cluster, on the management cluster and on the cluster itself."""

    handles: tuple[Handle, ...] = ()
    elsewhere: tuple[ObjectRef, ...] = ()
    """Those in namespaces that no source names: they are no steps."""
    failed: tuple[tuple[SourceKind, str], ...] = ()
    """The deployers whose handles could not be read, and why."""
    unread: str = ""
    """Why the cluster itself could not be read; empty if it was."""


def companions_of(client: Client) -> tuple[Companion, ...]:
    """All deployers, for a preview: their removers are not used."""
    return (
        FluxCompanion(client, needs_order=False),
        HelmReleaseProxies(client, None),
        HelmCompanion(client, None, named=_is_named),
    )


async def _is_named(target: ClusterTarget, release: ObjectRef) -> bool:
    """Whether a policy names a release exactly, which counts only when it is removed."""
    del target, release
    return False


class HubHandles(msgspec.Struct, frozen=True, kw_only=True):
    """All handles on the management cluster, read once for all clusters."""

    handles: dict[HandleKind, list[HandleObject]] = {}
    """Without the kinds that this user may not list."""
    clusters: frozenset[Key] = frozenset()
    """Clusters whose Secrets are known by their names, so that they need not be read."""


async def read_hub(client: Client, clusters: Iterable[Key] = ()) -> HubHandles:
    """The handles on the management cluster. A deployer that is not installed has none."""
    found: dict[HandleKind, list[HandleObject]] = {}
    for kind in HANDLES:
        with suppress(UnwindError):
            found[kind] = msgspec.convert(await client.list(kind.resource), list[HandleObject])
    return HubHandles(handles=found, clusters=frozenset(clusters))


async def find_handles(
    client: Client, hub: HubHandles, decisions: Decisions, target: ClusterTarget, member: Member
) -> FoundHandles:
    """The handles for a cluster. `client`: of the management cluster."""
    handles: list[Handle] = []
    failed: list[tuple[SourceKind, str]] = []
    for companion in companions_of(client):
        try:
            handles += await companion.handles(target, member, decisions.namespaces(companion.source))
        except UnwindError as error:
            failed.append((companion.source, str(error)))
    return FoundHandles(
        handles=tuple(handles),
        elsewhere=tuple(await handles_elsewhere(client, hub, decisions, target, member)),
        failed=tuple(failed),
    )


async def handles_elsewhere(
    client: Client, hub: HubHandles, decisions: Decisions, target: ClusterTarget, member: Member
) -> list[ObjectRef]:
    """The handles for a cluster in namespaces of the management cluster that no source names. Users of any namespace
    can create them, so they are shown, but are no steps. What this user may not read is not shown."""
    found: list[ObjectRef] = []
    copies: dict[tuple[str, SecretKey], list[ObjectRef]] = {}
    mine = Key(target.ref.namespace, target.ref.name)
    for kind, handles in hub.handles.items():
        named = decisions.namespaces(kind.source)
        for it in handles:
            ref, cluster = ref_of(kind.resource, it.metadata), kind.cluster_of(it)
            if ref.namespace in named:
                continue
            if it.secret is None:
                found += [ref] if cluster == mine else []
            elif cluster not in hub.clusters:
                copies.setdefault((ref.namespace, it.secret), []).append(ref)

    async def look(namespace: str, secret: SecretKey, those: list[ObjectRef]) -> None:
        if await _leads_to(client, namespace, secret, target, member):
            found.extend(those)

    await gather_limited((look(*place, those) for place, those in copies.items()), limit=_AT_ONCE)
    return sorted(found, key=str)


async def _leads_to(client: Client, namespace: str, ref: SecretKey, target: ClusterTarget, member: Member) -> bool:
    """Whether a Secret has a kubeconfig of the target, as far as this user can tell."""
    read = partial(client.get, SECRETS, ref.name, namespace=namespace)
    try:
        return await kubeconfig_clusters.is_of_target(
            target, namespace, ref, read, lambda secret: kubeconfig_clusters.leads_to(secret, ref.key, member)
        )
    except UnwindError:
        return False
