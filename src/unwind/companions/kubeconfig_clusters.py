"""Which Clusters a handle deploys on, by the Secret with the kubeconfig that it names.

The Secret of Cluster API is known by its name. A copy of it, in another namespace or under another name, is known by
the address in it and by the identity of the cluster that answers there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from unwind.api.capi import KUBECONFIG_SECRET_TYPE, KUBECONFIG_SUFFIX
from unwind.api.meta import ObjectRef
from unwind.api.names import CLUSTER_NAME_LABEL
from unwind.api.resources import SECRETS
from unwind.errors import UnwindError
from unwind.kube.client import Client
from unwind.kube.errors import NotFoundError
from unwind.members import credentials
from unwind.members.targets import AddonTarget, ClusterTarget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from unwind.api.capi import Endpoint
    from unwind.api.flux import SecretKey
    from unwind.clock import Clock
    from unwind.kube.client import Object
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.members.member import Member
    from unwind.members.members import Members

    _Address = tuple[str, str | None]

# Flux tries these keys of a Secret, in this order.
_KUBECONFIG_KEYS = ("value", "value.yaml")
# Seconds for which the address of a Cluster counts. It is in its Secret, which is not watched.
_RECENT = 600.0
# The same if it could not be read.
_FAILED = 20.0
# Then all are asked for again: Secrets and Clusters that are gone must not stay in the memory.
_MOST_REMEMBERED = 10_000


async def is_of_target(
    target: ClusterTarget,
    namespace: str,
    ref: SecretKey,
    read: Callable[[], Awaitable[Object]],
    leads_to: Callable[[Object], Awaitable[bool]],
) -> bool:
    """Whether a Secret has a kubeconfig of the target: Cluster API wrote it, a provider labelled it, or the cluster
    that it leads to has the identity of the target. Raises if that is unknown.

    `read`: reads the Secret. `leads_to`: whether the kubeconfig in it leads to the target.
    """
    if (namespace, ref.name) == (target.home, target.secret):
        return True
    try:
        secret = await read()
    except NotFoundError:
        # By its name it is of another Cluster, which may be gone. Providers call others NAME-USE-kubeconfig.
        by_name = namespace == target.home and ref.name.endswith(KUBECONFIG_SUFFIX)
        if by_name and not ref.name.startswith(f"{target.ref.name}-"):
            return False
        raise
    labels = secret["metadata"].get("labels") or {}
    if namespace == target.ref.namespace and secret.get("type") == KUBECONFIG_SECRET_TYPE:
        return bool(labels.get(CLUSTER_NAME_LABEL) == target.ref.name)
    return await leads_to(secret)


async def leads_to(secret: Object, key: str, member: Member) -> bool:
    """Whether the kubeconfig in a Secret leads to this member. Raises if that is unknown.

    An address only makes it a candidate: the cluster is asked for its identity. Clusters at other addresses are not
    asked, because there may be a thousand of them, and users of that namespace decide where a kubeconfig leads to.
    """
    way = _connection(secret, key)
    if _address(way) != _address(member.client.connection):
        return False
    async with Client(way) as client:
        return await client.cluster_uid() == member.system_uid


def other_host(secret: Object, key: str, member: Member) -> str:
    """The host in a kubeconfig with another address or proxy than this member; empty if they are the same."""
    way = _connection(secret, key)
    return "" if _address(way) == _address(member.client.connection) else urlsplit(way.server).netloc


def host_in(secret: Object, key: str) -> str:
    """The host and port in a kubeconfig. Raises UnwindError if it is invalid."""
    return urlsplit(_connection(secret, key).server).netloc


def host(endpoint: Endpoint) -> str:
    """The host and port of a Cluster, as `other_host` has them (pure)."""
    return f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"


def _connection(secret: Object, key: str) -> ClusterConnection:
    meta = secret["metadata"]
    ref = ObjectRef(kind=SECRETS.kind, namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
    data = secret.get("data") or {}
    key = key or next((item for item in _KUBECONFIG_KEYS if item in data), "")
    return credentials.connection(ClusterTarget(ref=ref, secret=meta["name"], secret_key=key), secret)


def _address(way: ClusterConnection) -> _Address:
    return way.server, way.proxy


class HandleTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The Clusters that a handle may deploy on."""

    known: tuple[AddonTarget, ...] = ()
    unknown: tuple[AddonTarget, ...] = ()
    """Those of which it cannot be told now: a Secret is missing, or the cluster does not answer."""


class KubeconfigClusters:
    """Tells which Clusters a Secret leads to, for callers that ask again and again.

    A cluster is asked for its identity once for each state of a Secret.
    """

    def __init__(self, client: Client, members: Members, *, clock: Clock) -> None:
        """`client`: of the management cluster."""
        self._client = client
        self._members = members
        self._clock = clock
        self._addresses: dict[str, tuple[float, _Address | UnwindError]] = {}
        """Until when the address of a Cluster counts, and the address, or why it is unknown; by the Cluster's uid."""
        self._same: dict[tuple[str, str, str, str], bool] = {}
        """Whether a Secret leads to a Cluster: by the Secret's uid, resourceVersion and key, and the Cluster's uid."""

    async def of(self, namespace: str, ref: SecretKey, targets: Iterable[AddonTarget]) -> HandleTargets:
        """The Clusters among `targets` that a Secret has a kubeconfig of."""
        # Read once, for all of them.
        found: list[Object] = []
        missing: list[UnwindError] = []

        async def read() -> Object:
            if missing:
                raise missing[0]
            if not found:
                try:
                    found.append(await self._client.get(SECRETS, ref.name, namespace=namespace))
                except UnwindError as error:
                    missing.append(error)
                    raise
            return found[0]

        known, unknown = [], []
        for target in targets:
            try:
                if await is_of_target(target, namespace, ref, read, partial(self._leads_to, target, ref.key)):
                    known.append(target)
            except UnwindError:
                unknown.append(target)  # the caller asks again
        return HandleTargets(known=tuple(known), unknown=tuple(unknown))

    async def _leads_to(self, target: AddonTarget, key: str, secret: Object) -> bool:
        # Most Clusters have another address: no connection to them is opened.
        if _address(_connection(secret, key)) != await self._address_of(target):
            return False
        meta = secret["metadata"]
        state = (meta["uid"], meta["resourceVersion"], key, target.ref.uid)
        if state not in self._same:
            async with self._members.member(target) as member:
                same = await leads_to(secret, key, member)
            if len(self._same) >= _MOST_REMEMBERED:
                self._same.clear()
            self._same[state] = same
        return self._same[state]

    async def _address_of(self, target: AddonTarget) -> _Address:
        uid, now = target.ref.uid, self._clock.monotonic()
        last = self._addresses.get(uid)
        if last is None or now >= last[0]:
            if len(self._addresses) >= _MOST_REMEMBERED:
                self._addresses.clear()
            last = self._addresses[uid] = await self._read_address(target, now)
        if isinstance(last[1], UnwindError):
            raise last[1]
        return last[1]

    async def _read_address(self, target: AddonTarget, now: float) -> tuple[float, _Address | UnwindError]:
        try:
            return now + _RECENT, _address(
                credentials.connection(target, await credentials.read_secret(self._client, target))
            )
        except UnwindError as error:
            return now + _FAILED, error  # all handles in the namespace ask for it
