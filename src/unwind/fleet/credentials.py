"""The Secret with the way to a member: read, and kept for as long as something is on the member."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from unwind.api import names
from unwind.api.karmada import CA_BUNDLE_KEY, TOKEN_KEY
from unwind.api.names import Finalizer
from unwind.api.resources import SECRETS
from unwind.errors import UnwindError
from unwind.kube import kubeconfig
from unwind.kube.errors import ConflictError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from unwind.fleet.targets import Anchor, Endpoint
    from unwind.kube.client import Client, Object
    from unwind.kube.kubeconfig import Connection


# The type of a Secret with the token of a ServiceAccount of the cluster that it is in.
_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105 - a type


async def secret(client: Client, target: Anchor) -> Object:
    """The Secret as it is now. Raises UnreachableError if there is none."""
    if not target.secret:
        # Without a name, the server would show all of them.
        raise UnreachableError(f"{target} cannot be reached: it names no Secret with the way to it")
    try:
        found = await client.get(SECRETS, target.secret, namespace=target.home)
    except NotFoundError:
        raise UnreachableError(
            f"{target} cannot be reached: there is no Secret {target.home}/{target.secret} with the way to it"
        ) from None
    if not belongs(target, found):
        raise UnreachableError(
            f"{target} cannot be reached: Secret {target.home}/{target.secret} is not its own; the Secret must have an "
            f"ownerReference to it, or be {names.KARMADA_CLUSTER_NAMESPACE}/{target.ref.name}"
        )
    return found


def belongs(target: Anchor, found: Object) -> bool:
    """Whether a Secret may be used for a member (pure).

    A Cluster of Karmada names a Secret in any namespace, and the server that its token is sent to. A user who may
    write Clusters, and no Secrets, must not get another's token sent to a server of theirs. So the Secret has to say
    itself that it is this Cluster's, or stand where `join` puts the Secret of a Cluster of this name. The token of a
    ServiceAccount of the management cluster never does.
    """
    if target.endpoint is None:
        return True  # it is in the namespace of the cluster, and names the server itself
    if found.get("type") == _ACCOUNT_TOKEN:
        return False
    owners = {owner.get("uid") for owner in found["metadata"].get("ownerReferences") or ()}
    place = (target.home, target.secret)
    return target.ref.uid in owners or place == (names.KARMADA_CLUSTER_NAMESPACE, target.ref.name)


def connection(target: Anchor, found: Object) -> Connection:
    """The way to the member that its Secret tells. Raises UnreachableError where it tells none, or one that must not be
    taken."""
    name = f"Secret {target.home}/{target.secret}"
    data: dict[str, str] = found.get("data") or {}
    try:
        if target.endpoint:
            way = _by_token(target, target.endpoint, data, name)
            way.check()
        else:
            way = _by_kubeconfig(target, data, name)
    except UnreachableError:
        raise
    except UnwindError as error:
        raise UnreachableError(f"{target} cannot be reached: {error}") from error
    if urlsplit(way.server).scheme != "https":
        raise UnreachableError(f"{target} cannot be reached: {kubeconfig.shown(way.server)} is not an https address")
    return way


def _by_kubeconfig(target: Anchor, data: dict[str, str], name: str) -> Connection:
    key = target.secret_key or next(iter(sorted(data)), "")
    if key not in data:
        missing = f"has no key {key!r}" if key else "is empty"
        raise UnreachableError(f"{target} cannot be reached: {name} {missing}")
    try:
        text = base64.b64decode(data[key], validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreachableError(f"{target} cannot be reached: {name} is damaged ({error})") from error
    return kubeconfig.parse(text, source=f"{key!r} in {name}")


def _by_token(target: Anchor, endpoint: Endpoint, data: dict[str, str], name: str) -> Connection:
    if not endpoint.server:
        raise UnreachableError(f"{target} cannot be reached: it does not say where its API server is")
    if TOKEN_KEY not in data:
        raise UnreachableError(f"{target} cannot be reached: {name} has no key {TOKEN_KEY!r}")
    try:
        # Who writes a token with `echo` has a line end in it.
        token = base64.b64decode(data[TOKEN_KEY], validate=True).decode().strip()
        authority = base64.b64decode(data.get(CA_BUNDLE_KEY, ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreachableError(f"{target} cannot be reached: {name} is damaged ({error})") from error
    return kubeconfig.Connection(
        server=endpoint.server,
        authority=authority or None,
        credential=kubeconfig.Token(token),
        insecure=endpoint.insecure,
        proxy=endpoint.proxy or None,
    )


async def hold(client: Client, target: Anchor) -> None:
    """Have the Secret stay until `let_go`: who deletes a namespace deletes the Secret beside the Cluster, and without
    it nobody could take off what is on the member. Raises UnreachableError if it is gone, or going."""
    while True:
        found = await secret(client, target)
        finalizers = _finalizers(found)
        if Finalizer.CREDENTIALS in finalizers:
            return
        if found["metadata"].get("deletionTimestamp"):
            # The API server takes no new finalizer on what is being deleted.
            where = f"{target.home}/{target.secret}"
            raise UnreachableError(f"{target} cannot be kept in reach: its Secret {where} is being deleted")
        if await _write(client, found, [*finalizers, Finalizer.CREDENTIALS.value]):
            return


async def let_go(client: Client, target: Anchor) -> None:
    """Let the Secret go its way. It may have gone already."""
    while True:
        try:
            found = await client.get(SECRETS, target.secret, namespace=target.home)
        except NotFoundError:
            return
        if not belongs(target, found):
            return
        finalizers = _finalizers(found)
        left = [one for one in finalizers if one != Finalizer.CREDENTIALS]
        if left == finalizers or await _write(client, found, left):
            return


def _finalizers(found: Object) -> list[str]:
    return list(found["metadata"].get("finalizers") or ())


async def _write(client: Client, found: Object, finalizers: list[str]) -> bool:
    """Whether it was written; if not, somebody changed the Secret meanwhile, and it has to be looked at again."""
    try:
        await client.revise(SECRETS, found, {"metadata": {"finalizers": finalizers}})
    except (ConflictError, NotFoundError):
        return False
    return True
