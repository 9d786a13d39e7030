"""Service account tokens of members: request, expiry, renewal and verification."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from unwind import logs
from unwind.api.karmada import CLUSTERS, TOKEN_KEY
from unwind.api.names import JOINED_LABEL, EventReason, Reason
from unwind.api.resources import SECRETS, SERVICE_ACCOUNTS
from unwind.clock import SYSTEM
from unwind.errors import UnwindError
from unwind.kube.client import Client
from unwind.kube.decoding import Key
from unwind.kube.errors import AnotherClusterError, ApiError, ConflictError, NotFoundError
from unwind.kube.events import Regarding
from unwind.kube.kubeconfig import ClusterConnection
from unwind.members import credentials, targets

if TYPE_CHECKING:
    from unwind.api.karmada import Cluster
    from unwind.clock import Clock
    from unwind.kube.client import Object
    from unwind.kube.decoding import Metadata
    from unwind.kube.events import Recorder
    from unwind.kube.informers import Informer


LIFETIME = dt.timedelta(days=30)
"""The requested lifetime; a server may grant less. Long enough to outlast a stopped manager or a blocked removal."""
_LOOK_AGAIN = 0.2


class _Account(msgspec.Struct):
    name: str = ""


class _Bound(msgspec.Struct):
    namespace: str = ""
    serviceaccount: _Account = msgspec.field(default_factory=_Account)


class _Claims(msgspec.Struct):
    exp: float | None = None
    iat: float | None = None
    kubernetes: _Bound = msgspec.field(default_factory=_Bound, name="kubernetes.io")


class TokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a service account token."""

    namespace: str = ""
    account: str = ""
    """Its service account; empty if the token does not say."""
    issued: dt.datetime
    expires: dt.datetime

    def due(self, now: dt.datetime) -> bool:
        """Whether to renew it: after a third of its lifetime, which leaves time for many retries."""
        return now >= self.issued + (self.expires - self.issued) / 3


def read_claims(token: str) -> TokenClaims | None:
    """The claims of a token; None if it does not expire, or is opaque."""
    try:
        _, payload, _ = token.split(".")
        # JWTs omit the padding that the decoder requires.
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Claims)
        if claims.exp is None or claims.iat is None:
            return None
        issued, expires = (dt.datetime.fromtimestamp(at, tz=dt.UTC) for at in (claims.iat, claims.exp))
    except (ValueError, OverflowError, OSError, binascii.Error, msgspec.MsgspecError):
        return None
    bound = claims.kubernetes
    return TokenClaims(namespace=bound.namespace, account=bound.serviceaccount.name, issued=issued, expires=expires)


async def request_token(client: Client, *, namespace: str, account: str) -> str:
    """A new token for a service account."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(LIFETIME.total_seconds())},
    }
    answer = await client.post(SERVICE_ACCOUNTS, account, "token", body, namespace=namespace)
    token: str = answer["status"]["token"]
    return token


async def prove(way: ClusterConnection, *, identity: str, within: float = 0.0) -> None:
    """Raise unless this connection leads to the cluster with this identity. `within`: seconds until it must work."""
    ends = SYSTEM.monotonic() + within
    async with Client(way) as client:
        while (uid := await _try_identity(client, last=SYSTEM.monotonic() >= ends)) is None:
            await SYSTEM.sleep(_LOOK_AGAIN)
    if uid != identity:
        raise AnotherClusterError(way.server, found=uid, expected=identity)


async def _try_identity(client: Client, *, last: bool) -> str | None:
    """The cluster's identity; None if it refuses access, unless this is the last try."""
    try:
        return await client.cluster_uid()
    except ApiError as error:
        if last or error.code not in (401, 403):
            raise
        return None


# Token renewal: while the current token still works

log = logs.get(__name__)


class _Way(msgspec.Struct, frozen=True):
    """A connection that worked, and its token, if that expires."""

    version: str
    """The resourceVersion of its Secret."""
    connection: ClusterConnection
    token: TokenClaims | None


class Renewing:
    """Renews the tokens that `unwind join` requested; not those of others."""

    def __init__(self, client: Client, secrets: Informer[Metadata], *, recorder: Recorder, clock: Clock) -> None:
        self._client = client
        self._secrets = secrets
        self._recorder = recorder
        self._clock = clock
        self._connections: dict[str, _Way] = {}
        """The last connection that worked, by the Cluster's uid."""

    async def look(self, cluster: Cluster, member: Client) -> None:
        """Renew the token of a reachable member if it is due. On failure it is retried at the next probe, of which
        there are many before the token expires."""
        meta = self._ours(cluster)
        if meta is None or not cluster.spec.id:
            return
        way = self._connections.get(cluster.metadata.uid)
        try:
            if way is None or way.version != meta.resource_version:
                target = targets.of_karmada(cluster)
                secret = await credentials.read_secret(self._client, target)
                if credentials.connection(target, secret) != member.connection:
                    return  # just written; the event triggers the next probe
                way = _Way(secret["metadata"]["resourceVersion"], member.connection, _token(secret))
                self._connections[cluster.metadata.uid] = way
            if way.token and way.token.due(self._clock.now()):
                await self._renew(cluster, member, way.token)
        except UnwindError as error:
            self._log_failed(cluster, error)

    async def refused(self, cluster: Cluster) -> bool:
        """Whether a member that rejected the token in its Secret accepted the previous one, and the Secret has a new
        token now."""
        way = self._connections.get(cluster.metadata.uid)
        if self._ours(cluster) is None or way is None or way.token is None or not cluster.spec.id:
            return False
        try:
            secret = await credentials.read_secret(self._client, targets.of_karmada(cluster))
            if secret["metadata"]["resourceVersion"] == way.version:
                return False  # it is the rejected one
            async with Client(way.connection) as member:
                await prove(way.connection, identity=cluster.spec.id)
                return await self._renew(cluster, member, way.token)
        except UnwindError as error:
            self._log_failed(cluster, error)
            return False

    def forget(self, uid: str) -> None:
        self._connections.pop(uid, None)

    async def _renew(self, cluster: Cluster, member: Client, old: TokenClaims) -> bool:
        if not old.account:
            return False
        target = targets.of_karmada(cluster)
        secret = await credentials.read_secret(self._client, target)
        fresh = await request_token(member, namespace=old.namespace, account=old.account)
        patch = {"data": {TOKEN_KEY: base64.b64encode(fresh.encode()).decode()}}
        way = credentials.connection(target, {**secret, "data": {**(secret.get("data") or {}), **patch["data"]}})
        # Never replace a working token by one that is not verified.
        await prove(way, identity=cluster.spec.id)
        try:
            written = await self._client.revise(SECRETS, secret, patch)
        except (ConflictError, NotFoundError):
            return False  # changed or deleted by another client: handled at the next probe
        self._connections[cluster.metadata.uid] = _Way(written["metadata"]["resourceVersion"], way, read_claims(fresh))
        note = f"renewed the token in Secret {target.home}/{target.secret}"
        self._recorder.report(_regarding(cluster), EventReason.TOKEN_RENEWED, note, action="Renew")
        log.info("member token renewed", cluster=cluster.metadata.name)
        return True

    def _ours(self, cluster: Cluster) -> Metadata | None:
        """Its Secret, if Unwind renews it."""
        ref = cluster.spec.secret_ref
        found = self._secrets.cache.get(Key(ref.namespace, ref.name)) if ref else None
        return found if found and JOINED_LABEL in (found.labels or {}) else None

    def _log_failed(self, cluster: Cluster, error: UnwindError) -> None:
        note = f"cannot renew the token of member {cluster.metadata.name}: {error}; will retry"
        self._recorder.report(_regarding(cluster), Reason.FAILED, note, action="Renew", type="Warning")
        log.warning("member token renewal failed, will retry", cluster=cluster.metadata.name, why=str(error))


def unauthorized(error: UnwindError) -> bool:
    """Whether a member responded but rejected our token."""
    cause = error.__cause__
    return isinstance(cause, ApiError) and cause.code == 401


def _token(secret: Object) -> TokenClaims | None:
    try:
        return read_claims(base64.b64decode((secret.get("data") or {}).get(TOKEN_KEY, ""), validate=True).decode())
    except (binascii.Error, UnicodeDecodeError):
        return None


def _regarding(cluster: Cluster) -> Regarding:
    return Regarding(CLUSTERS.api_version, CLUSTERS.kind, cluster.metadata.name, cluster.metadata.uid)
