"""Reads the ConfigMaps and Secrets of a profile's policyRefs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.addons import validation
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.api.sveltos import DeploymentType
from unwind.concurrency import gather_limited
from unwind.deploy.manifest_sources import ManifestSource, parse_source
from unwind.errors import UnwindError
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.sveltos import PolicyRef
    from unwind.kube.client import Client, Object

_AT_ONCE = 8
# PyYAML parses about 10 MB a second: larger sources would block the event loop.
_LARGE = 256 * 1024
_KINDS = {resource.kind: resource for resource in (CONFIG_MAPS, SECRETS)}


class UnsupportedError(UnwindError):
    """A source uses an unsupported feature: nothing of the profile is applied."""


async def read_sources(
    client: Client, refs: Iterable[PolicyRef], *, namespace: str, tenant: str = ""
) -> list[ManifestSource]:
    """The sources of a profile, in its order, each with its errors.

    `namespace`: the default for references without one, that of the cluster. `tenant`: the namespace of a Profile,
    which may reference nothing outside of it: its author may have no access to other namespaces. Raises
    UnsupportedError if a source uses an unsupported feature.
    """
    found: dict[int, ManifestSource] = {}

    async def one(order: int, ref: PolicyRef) -> None:
        found[order] = await _source(client, ref, order, namespace=tenant or namespace, tenant=tenant)

    await gather_limited((one(order, ref) for order, ref in enumerate(refs)), limit=_AT_ONCE)
    return [found[order] for order in sorted(found)]


async def _source(client: Client, ref: PolicyRef, order: int, *, namespace: str, tenant: str) -> ManifestSource:
    source = ManifestSource(
        kind=ref.kind,
        namespace=ref.namespace or namespace,
        name=ref.name,
        order=order,
        local=ref.deployment_type == DeploymentType.LOCAL,
        tier=ref.tier,
    )
    if tenant and source.namespace != tenant:
        return _faulty(
            source, f"a Profile in namespace {tenant} cannot reference another namespace; use a ClusterProfile"
        )
    if source.kind not in _KINDS:
        return _faulty(source, f"unsupported kind (valid: {', '.join(_KINDS)})")
    try:
        held = await client.get(_KINDS[source.kind], source.name, namespace=source.namespace)
    except NotFoundError:
        return source if ref.optional else _faulty(source, "not found; create it")
    if strange := validation.in_source(held["metadata"].get("annotations") or {}):
        raise UnsupportedError(f"{source}: not supported: {', '.join(strange)}; remove it from the source")
    size = sum(len(text) for field in ("data", "binaryData") for text in (held.get(field) or {}).values())
    work = _parse if size <= _LARGE else _parse_elsewhere
    return await work(source, held)


async def _parse(source: ManifestSource, held: Object) -> ManifestSource:
    return parse_source(source, held)


async def _parse_elsewhere(source: ManifestSource, held: Object) -> ManifestSource:
    return await asyncio.to_thread(parse_source, source, held)


def _faulty(source: ManifestSource, fault: str) -> ManifestSource:
    return msgspec.structs.replace(source, faults=(f"{source}: {fault}",))
