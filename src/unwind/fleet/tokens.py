"""Tokens that a member gives for a while: how long one lasts, when it is time for the next, and whether it serves."""

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
"""What is asked for; a server may give less. Long enough to outlast a manager that is away, or a removal that waits."""
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
    """What a service account's token says of itself."""

    namespace: str = ""
    account: str = ""
    """Whose it is; empty where it does not say."""
    issued: dt.datetime
    expires: dt.datetime

    def due(self, now: dt.datetime) -> bool:
        """Whether it is time for another one: with two thirds of it left there is time for many a try."""
        return now >= self.issued + (self.expires - self.issued) / 3


def read(token: str) -> Token | None:
    """What a token says; None for one that does not end, or that only its server can read."""
    try:
        _, payload, _ = token.split(".")
        # Written without the padding that the decoder insists on.
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
    """Raise unless this way leads into the cluster with this identity. `within`: seconds in which it may begin to."""
    ends = SYSTEM.monotonic() + within
    async with Client(way) as client:
        while (uid := await _let_in(client, last=SYSTEM.monotonic() >= ends)) is None:
            await SYSTEM.sleep(_LOOK_AGAIN)
    if uid != identity:
        raise UnreachableError(f"another cluster answers at {way.server} ({uid}, not {identity})")


async def _let_in(client: Client, *, last: bool) -> str | None:
    """Which cluster it is; None if it does not let us in, unless that was the last try."""
    try:
        return await client.cluster_uid()
    except ApiError as error:
        if last or error.code not in (401, 403):
            raise
        return None
