"""Tokens that members are reached by: renewed while the one that there is still opens the door."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.karmada import CLUSTERS, TOKEN_KEY
from unwind.api.names import JOINED_LABEL, EventReason, Reason
from unwind.api.resources import SECRETS
from unwind.errors import UnwindError
from unwind.fleet import credentials, targets, tokens
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, ConflictError, NotFoundError
from unwind.kube.events import Regarding
from unwind.kube.kubeconfig import Connection
from unwind.kube.views import Key

if TYPE_CHECKING:
    from unwind.api.karmada import Cluster
    from unwind.clock import Clock
    from unwind.kube.client import Object
    from unwind.kube.events import Recorder
    from unwind.kube.informers import Informer
    from unwind.kube.views import Metadata

log = logs.get(__name__)


class _Way(msgspec.Struct, frozen=True):
    """A way in that has served, and the token in it, if it ends."""

    version: str
    """Of the Secret that it was read from."""
    connection: Connection
    token: tokens.Token | None


class Renewing:
    """Keeps the tokens fresh that `unwind join` asked for. Those of others are theirs."""

    def __init__(self, client: Client, secrets: Informer[Metadata], *, recorder: Recorder, clock: Clock) -> None:
        self._client = client
        self._secrets = secrets
        self._recorder = recorder
        self._clock = clock
        self._ways: dict[str, _Way] = {}
        """The last one that served, by the Cluster's uid."""

    async def look(self, cluster: Cluster, member: Client) -> None:
        """Renew the token of a member that has just let us in, if it is time. Should that fail, it is tried again
        when the member is next looked at, of which there are many before the token ends."""
        meta = self._ours(cluster)
        if meta is None or not cluster.spec.id:
            return
        way = self._ways.get(cluster.metadata.uid)
        try:
            if way is None or way.version != meta.resource_version:
                target = targets.of_karmada(cluster)
                secret = await credentials.secret(self._client, target)
                if credentials.connection(target, secret) != member.connection:
                    return  # it was written this moment, and is looked at when that is told
                way = _Way(secret["metadata"]["resourceVersion"], member.connection, _token(secret))
                self._ways[cluster.metadata.uid] = way
            if way.token and way.token.due(self._clock.now()):
                await self._renew(cluster, member, way.token)
        except UnwindError as error:
            self._tell_failed(cluster, error)

    async def refused(self, cluster: Cluster) -> bool:
        """Whether a member that did not take the token in its Secret has let us in by the one before, and the Secret
        has a new one now."""
        way = self._ways.get(cluster.metadata.uid)
        if self._ours(cluster) is None or way is None or way.token is None or not cluster.spec.id:
            return False
        try:
            secret = await credentials.secret(self._client, targets.of_karmada(cluster))
            if secret["metadata"]["resourceVersion"] == way.version:
                return False  # it is the one that was refused
            async with Client(way.connection) as member:
                await tokens.prove(way.connection, identity=cluster.spec.id)
                return await self._renew(cluster, member, way.token)
        except UnwindError as error:
            self._tell_failed(cluster, error)
            return False

    def forget(self, uid: str) -> None:
        self._ways.pop(uid, None)

    async def _renew(self, cluster: Cluster, member: Client, old: tokens.Token) -> bool:
        if not old.account:
            return False
        target = targets.of_karmada(cluster)
        secret = await credentials.secret(self._client, target)
        fresh = await tokens.request(member, namespace=old.namespace, account=old.account)
        patch = {"data": {TOKEN_KEY: base64.b64encode(fresh.encode()).decode()}}
        way = credentials.connection(target, {**secret, "data": {**(secret.get("data") or {}), **patch["data"]}})
        # A token that serves is never given up for one that was not seen to.
        await tokens.prove(way, identity=cluster.spec.id)
        try:
            written = await self._client.revise(SECRETS, secret, patch)
        except (ConflictError, NotFoundError):
            return False  # somebody else wrote it, or took it away: that is looked at next
        self._ways[cluster.metadata.uid] = _Way(written["metadata"]["resourceVersion"], way, tokens.read(fresh))
        note = f"the token in Secret {target.home}/{target.secret} was renewed"
        self._recorder.report(_regarding(cluster), EventReason.TOKEN_RENEWED, note, action="Renew")
        log.info("the token of a member was renewed", cluster=cluster.metadata.name)
        return True

    def _ours(self, cluster: Cluster) -> Metadata | None:
        """Its Secret, if it is to be renewed here."""
        ref = cluster.spec.secret_ref
        found = self._secrets.cache.get(Key(ref.namespace, ref.name)) if ref else None
        return found if found and JOINED_LABEL in (found.labels or {}) else None

    def _tell_failed(self, cluster: Cluster, error: UnwindError) -> None:
        note = f"its token could not be renewed: {error}"
        self._recorder.report(_regarding(cluster), Reason.FAILED, note, action="Renew", type="Warning")
        log.warning("the token of a member could not be renewed", cluster=cluster.metadata.name, why=str(error))


def unauthorized(error: UnwindError) -> bool:
    """Whether a member answered and did not take our token."""
    cause = error.__cause__
    return isinstance(cause, ApiError) and cause.code == 401


def _token(secret: Object) -> tokens.Token | None:
    try:
        return tokens.read(base64.b64decode((secret.get("data") or {}).get(TOKEN_KEY, ""), validate=True).decode())
    except (binascii.Error, UnicodeDecodeError):
        return None


def _regarding(cluster: Cluster) -> Regarding:
    return Regarding(CLUSTERS.api_version, CLUSTERS.kind, cluster.metadata.name, cluster.metadata.uid)
