"""Service account tokens of members: request, expiry, renewal and verification."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from unwind.api.resources import SERVICE_ACCOUNTS
from unwind.clock import SYSTEM
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, UnreachableError

if TYPE_CHECKING:
    from unwind.kube.kubeconfig import Connection

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


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a service account token."""

    namespace: str = ""
    account: str = ""
    """Its service account; empty if the token does not say."""
    issued: dt.datetime
    expires: dt.datetime

    def due(self, now: dt.datetime) -> bool:
        """Whether to renew it: after a third of its lifetime, which leaves time for many retries."""
        return now >= self.issued + (self.expires - self.issued) / 3


def read(token: str) -> Token | None:
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
    return Token(namespace=bound.namespace, account=bound.serviceaccount.name, issued=issued, expires=expires)


async def request(client: Client, *, namespace: str, account: str) -> str:
    """A new token for a service account."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": int(LIFETIME.total_seconds())},
    }
    answer = await client.post(SERVICE_ACCOUNTS, account, "token", body, namespace=namespace)
    token: str = answer["status"]["token"]
    return token


async def prove(way: Connection, *, identity: str, within: float = 0.0) -> None:
    """Raise unless this connection leads to the cluster with this identity. `within`: seconds until it must work."""
    ends = SYSTEM.monotonic() + within
    async with Client(way) as client:
        while (uid := await _let_in(client, last=SYSTEM.monotonic() >= ends)) is None:
            await SYSTEM.sleep(_LOOK_AGAIN)
    if uid != identity:
        raise UnreachableError(f"another cluster answers at {way.server} ({uid}, not {identity})")


async def _let_in(client: Client, *, last: bool) -> str | None:
    """The cluster's identity; None if it refuses access, unless this is the last try."""
    try:
        return await client.cluster_uid()
    except ApiError as error:
        if last or error.code not in (401, 403):
            raise
        return None
