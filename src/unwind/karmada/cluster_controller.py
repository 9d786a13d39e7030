"""The controller of Karmada Clusters: member health and identity, token renewal, execution namespaces.

A member that fails sends no event, so each is probed periodically as well as on changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from unwind import logs
from unwind.api.karmada import CLUSTERS, Cluster
from unwind.api.meta import ObjectMeta, find, ref_of
from unwind.api.names import MEMBER_LABEL, ConditionType, Finalizer, Reason
from unwind.api.resources import NAMESPACES
from unwind.errors import UnwindError, will_retry
from unwind.karmada import join_objects, member_health, tokens
from unwind.karmada.caches import executes_for
from unwind.karmada.member_health import MemberHealth
from unwind.karmada.tokens import Renewing
from unwind.kube import updates
from unwind.kube.controller import Controller
from unwind.kube.decoding import Key
from unwind.kube.errors import AlreadyExistsError, ApiError, NotFoundError, UnreachableError
from unwind.kube.events import Regarding
from unwind.kube.workqueue import JITTER, Backoff
from unwind.members import credentials, targets
from unwind.members.targets import ClusterTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.karmada.caches import KarmadaCaches
    from unwind.kube.cache import Change
    from unwind.kube.client import Object
    from unwind.kube.controller import ControllerDeps
    from unwind.kube.decoding import Metadata
    from unwind.kube.informers import Informer
    from unwind.members.member import Member
    from unwind.members.members import Members

log = logs.get(__name__)

PROBE = 30.0
"""Seconds between two probes of a member that responds."""
SILENT = Backoff(first=1.0, limit=60.0)
"""Between two probes of one that does not."""


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""


class ClusterController(Controller[str]):
    """Reconciles Clusters, each on its own: one that hangs delays no other."""

    name = "members"
    _caches: KarmadaCaches

    def __init__(
        self,
        shared: ControllerDeps,
        caches: KarmadaCaches,
        secrets: Informer[Metadata],
        members: Members,
    ) -> None:
        super().__init__(shared, caches)
        self._secrets = secrets
        self._chance = JITTER
        self._failed_probes: dict[str, int] = {}
        """Consecutive failed probes per member."""
        self._left: dict[str, ClusterTarget] = {}
        """Deleted Clusters by name: their Secret still has our finalizer."""
        self._renewing = Renewing(shared.client, secrets, recorder=shared.recorder, clock=shared.clock)
        self._members = members
        caches.clusters.subscribe(self._cluster_changed)
        caches.namespaces.subscribe(self._namespace_changed)
        secrets.subscribe(self._secret_changed)

    # Events

    def _enqueue_all(self) -> None:
        for key in list(self._caches.clusters.cache.keys()):
            self._queue.add(key.name)
        for name in self._left:
            self._queue.add(name)

    def _cluster_changed(self, change: Change[Cluster]) -> None:
        old, new = change.old, change.new
        if old and (new is None or new.metadata.uid != old.metadata.uid):
            self._renewing.forget(old.metadata.uid)
            if old.spec.secret_ref:
                self._left[change.key.name] = targets.of_karmada(old)
        # Most writes to it are our own status.
        if old is None or new is None or _asked(old) != _asked(new):
            self._queue.add(change.key.name)

    def _namespace_changed(self, change: Change[Metadata]) -> None:
        name = executes_for(change.key.name)
        if name and change.new is None:
            self._queue.add(name)

    def _secret_changed(self, change: Change[Metadata]) -> None:
        for cluster in self._caches.clusters.cache.by("secret", change.key):
            self._members.reread(cluster.metadata.uid)
            self._queue.add(cluster.metadata.name)
        secret = change.new
        if secret is None or Finalizer.CREDENTIALS not in secret.finalizers:
            for name in [name for name, one in self._left.items() if Key(one.home, one.secret) == change.key]:
                del self._left[name]
        elif secret.deletion_timestamp:
            # Its Cluster may have been deleted while no manager ran.
            for owner in secret.owner_references:
                if (owner.api_version, owner.kind) == (CLUSTERS.api_version, CLUSTERS.kind):
                    ref = ref_of(CLUSTERS, ObjectMeta(name=owner.name, uid=owner.uid))
                    self._left[owner.name] = ClusterTarget(
                        ref=ref, secret=secret.name, secret_namespace=secret.namespace
                    )
                    self._queue.add(owner.name)

    def _describe(self, key: str) -> dict[str, str]:
        return {"cluster": key}

    # Reconcile

    async def _reconcile(self, name: str) -> float | None:
        if not self._caches.clusters.synced or not self._owner.owns(name):
            return None
        cluster = self._caches.cluster(name)
        if (left := self._left.get(name)) and (cluster is None or cluster.metadata.uid != left.ref.uid):
            await self._release_secret(name, left, cluster)
        if cluster is None:
            self._failed_probes.pop(name, None)
            return None
        if Key("", name) in self._caches.clusters.broken:
            return None  # the cache is stale
        if unlooked := member_health.unlooked(cluster):
            await self._write_health(cluster, unlooked)
            return None
        # Before anything else: from here on it must not be deleted without us.
        if cluster := await self._held(cluster):
            await self._ensure_execution_namespace(cluster)
            found = await self._look(cluster)
            await self._write_health(cluster, found)
            return self._next(name, found)
        return None

    async def _held(self, cluster: Cluster) -> Cluster | None:
        """The Cluster with our finalizer, or terminating; None if it is gone."""
        if cluster.metadata.terminating or Finalizer.MEMBER in cluster.metadata.finalizers:
            return cluster
        return await self._revised(cluster, member_health.finalizer_patch)

    async def _ensure_execution_namespace(self, cluster: Cluster) -> None:
        """Create the execution namespace if it is missing."""
        name, namespaces = cluster.execution_namespace, self._caches.namespaces
        if cluster.metadata.terminating or not namespaces.synced or namespaces.cache.get(Key("", name)):
            return
        if await self._goes(cluster):
            return  # and its namespace with it; the caches may see these events in another order
        try:
            body = join_objects.member_namespace(name, labels={MEMBER_LABEL: cluster.metadata.uid})
            await self._client.create(NAMESPACES, body)
        except AlreadyExistsError:
            return  # the cache is stale
        log.info("execution namespace created", cluster=cluster.metadata.name, object=f"Namespace/{name}")

    async def _goes(self, cluster: Cluster) -> bool:
        """Whether it is terminating or gone, by a fresh read."""
        try:
            now = await self._client.get(CLUSTERS, cluster.metadata.name, type=Cluster)
        except NotFoundError:
            return True
        return now.metadata.terminating or now.metadata.uid != cluster.metadata.uid

    async def _look(self, cluster: Cluster) -> MemberHealth:
        target = targets.of_karmada(cluster)
        try:
            if not cluster.metadata.terminating and not self._kept(target):
                await credentials.hold_secret(self._client, target)
            async with self._members.member(target) as member:
                if stranger := member_health.stranger(cluster, member.system_uid):
                    return stranger
                version = await _version(member)
                await self._renewing.look(cluster, member.client)
                return MemberHealth(
                    ready=True,
                    reason=Reason.CLUSTER_READY,
                    message="the member is reachable",
                    version=version,
                    identity=member.system_uid,
                )
        except UnwindError as error:
            if tokens.unauthorized(error):
                await self._renewing.refused(cluster)  # on success the Secret changes, which is an event
            return MemberHealth(ready=False, reason=Reason.CLUSTER_NOT_REACHABLE, message=will_retry(error))

    def _kept(self, target: ClusterTarget) -> bool:
        """Whether the Secret already has our finalizer, by the cache."""
        found = self._secrets.cache.get(Key(target.home, target.secret))
        return found is not None and Finalizer.CREDENTIALS in found.finalizers

    async def _write_health(self, cluster: Cluster, found: MemberHealth) -> None:
        before = find(cluster.status.conditions, ConditionType.READY)
        now = self._clock.now()
        if not cluster.metadata.terminating:
            await self._revised(cluster, lambda read: member_health.taint_patch(read, found))
        if (
            await self._revised(
                cluster, lambda read: member_health.health_patch(read, found, now), subresource="status"
            )
            is None
        ):
            return
        if before is None or before.reason != found.reason:
            kind: Literal["Normal", "Warning"] = "Warning" if found.ready is False else "Normal"
            meta = cluster.metadata
            regarding = Regarding(CLUSTERS.api_version, CLUSTERS.kind, meta.name, meta.uid)
            self._recorder.report(regarding, found.reason, found.message, action="Probe", type=kind)
            log.info("member health changed", cluster=meta.name, ready=found.ready, why=found.message)

    def _next(self, name: str, found: MemberHealth) -> float:
        if found.ready:
            self._failed_probes.pop(name, None)
            # With jitter, because many may have been probed at the same moment.
            return PROBE * self._chance.uniform(0.8, 1.2)
        self._failed_probes[name] = self._failed_probes.get(name, 0) + 1
        return SILENT.after(self._failed_probes[name], self._chance)

    async def _release_secret(self, name: str, left: ClusterTarget, now: Cluster | None) -> None:
        """Remove our finalizer from the Secret of a deleted Cluster."""
        # Read fresh: without the Secret the member could not be reached any more.
        if not (await self._client.sighting(CLUSTERS, name, uid=left.ref.uid)).absent:
            return
        secret = Key(left.home, left.secret)
        found = self._secrets.cache.get(secret)
        # A new Cluster may have the name by now and own the Secret, unless the Secret is terminating anyway.
        if now is None or _secret(now) != secret or (found and found.deletion_timestamp):
            await credentials.let_go(self._client, left)
        self._left.pop(name, None)

    async def _revised(
        self, cluster: Cluster, change: Callable[[Object], Object | None], *, subresource: str | None = None
    ) -> Cluster | None:
        """The patched Cluster; None if there was nothing to change, or it is gone."""
        # The cached object is enough to tell whether there is something to do.
        if change(msgspec.to_builtins(cluster)) is None:
            return None
        try:
            read = await self._client.get(CLUSTERS, cluster.metadata.name)
        except NotFoundError:
            return None
        if read["metadata"]["uid"] != cluster.metadata.uid:
            return None
        written = await updates.revise(self._client, CLUSTERS, read, change, subresource=subresource)
        if written is None:
            return None
        now = msgspec.convert(written, Cluster)
        self._caches.clusters.take(now)
        return now


def _secret(cluster: Cluster) -> Key:
    target = targets.of_karmada(cluster)
    return Key(target.home, target.secret)


async def _version(member: Member) -> str:
    """The Kubernetes version. A member that fails at this moment counts as unreachable."""
    try:
        return msgspec.json.decode(await member.client.raw("/version"), type=_Version).git_version
    except (ApiError, UnreachableError, msgspec.MsgspecError) as error:
        raise UnreachableError(f"{member.ref} does not answer: {error}") from error


def _asked(cluster: Cluster) -> object:
    """The fields of a Cluster that others write."""
    meta, spec = cluster.metadata, cluster.spec
    return meta.uid, meta.terminating, meta.finalizers, msgspec.structs.replace(spec, taints=())
