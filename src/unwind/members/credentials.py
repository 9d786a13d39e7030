"""Reads the Secret with a member's credentials and protects it with a finalizer while something is deployed on the
member."""

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
    from unwind.kube.client import Client, Object
    from unwind.kube.decoding import Metadata
    from unwind.kube.kubeconfig import ClusterConnection
    from unwind.members.targets import APIEndpoint, ClusterTarget


# The type of a Secret with a token for a ServiceAccount of the cluster that it is in.
_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105 - a type


async def read_secret(client: Client, target: ClusterTarget) -> Object:
    """The current Secret. Raises UnreachableError if it does not exist."""
    if not target.secret:
        # Without a name, the request would list all Secrets.
        raise UnreachableError(
            f"cannot connect to {target}: it does not name a Secret with credentials", remedy="set its spec.secretRef"
        )
    try:
        found = await client.get(SECRETS, target.secret, namespace=target.home)
    except NotFoundError:
        raise UnreachableError(
            f"cannot connect to {target}: Secret {target.home}/{target.secret} with its credentials not found",
            remedy="create the Secret",
        ) from None
    if not belongs(target, found):
        raise UnreachableError(
            f"cannot connect to {target}: Secret {target.home}/{target.secret} does not belong to it; "
            f"the Secret must have an ownerReference to it, or be {names.KARMADA_CLUSTER_NAMESPACE}/{target.ref.name}"
        )
    return found


def belongs(target: ClusterTarget, found: Object) -> bool:
    """Whether a Secret may be used for a member (pure).

    A Karmada Cluster can name a Secret in any namespace, and the server that the token is sent to. A user who can write
    Clusters but not Secrets must not be able to send another user's token to a server of their own. So the Secret must
    have an ownerReference to this Cluster, or be where `join` puts the Secret of a Cluster with this name. A token for
    a ServiceAccount of the management cluster is never used.
    """
    if target.endpoint is None:
        return True  # it is in the cluster's namespace, and contains the server's address itself
    if found.get("type") == _ACCOUNT_TOKEN:
        return False
    owners = {owner.get("uid") for owner in found["metadata"].get("ownerReferences") or ()}
    place = (target.home, target.secret)
    return target.ref.uid in owners or place == (names.KARMADA_CLUSTER_NAMESPACE, target.ref.name)


def connection(target: ClusterTarget, found: Object) -> ClusterConnection:
    """The connection to a member, from its Secret. Raises UnreachableError if the Secret is invalid, or must not be
    used."""
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
        raise UnreachableError(f"cannot connect to {target}: {error}") from error
    if urlsplit(way.server).scheme != "https":
        raise UnreachableError(
            f"cannot connect to {target}: {kubeconfig.shown(way.server)} is not an https address",
            remedy=f"correct it in {name}, or in spec.apiEndpoint",
        )
    return way


def _by_kubeconfig(target: ClusterTarget, data: dict[str, str], name: str) -> ClusterConnection:
    key = target.secret_key or next(iter(sorted(data)), "")
    if key not in data:
        missing = f"has no key {key!r}" if key else "is empty"
        raise UnreachableError(f"cannot connect to {target}: {name} {missing}", remedy="add the kubeconfig to it")
    try:
        text = base64.b64decode(data[key], validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreachableError(
            f"cannot connect to {target}: {name} cannot be decoded ({error})", remedy="correct its base64 data"
        ) from error
    return kubeconfig.parse(text, source=f"{key!r} in {name}")


def _by_token(target: ClusterTarget, endpoint: APIEndpoint, data: dict[str, str], name: str) -> ClusterConnection:
    if not endpoint.server:
        raise UnreachableError(
            f"cannot connect to {target}: it has no API server address", remedy="set its spec.apiEndpoint"
        )
    if TOKEN_KEY not in data:
        raise UnreachableError(
            f"cannot connect to {target}: {name} has no key {TOKEN_KEY!r}", remedy="add a service account token to it"
        )
    try:
        # A token that was written with `echo` ends with a newline.
        token = base64.b64decode(data[TOKEN_KEY], validate=True).decode().strip()
        authority = base64.b64decode(data.get(CA_BUNDLE_KEY, ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnreachableError(
            f"cannot connect to {target}: {name} cannot be decoded ({error})", remedy="correct its base64 data"
        ) from error
    return kubeconfig.ClusterConnection(
        server=endpoint.server,
        authority=authority or None,
        credential=kubeconfig.Token(token),
        insecure=endpoint.insecure,
        proxy=endpoint.proxy or None,
    )


def is_held(secret: Metadata | None) -> bool:
    """Whether a cached Secret has Unwind's finalizer and is not being deleted: `hold` would only read it again."""
    return secret is not None and not secret.deletion_timestamp and Finalizer.CREDENTIALS in secret.finalizers


async def hold_secret(client: Client, target: ClusterTarget) -> None:
    """Add Unwind's finalizer to the Secret, to keep it until `let_go`: deleting a namespace deletes the Secret beside
    the Cluster, and without it the member's objects cannot be removed. Raises UnreachableError if it is gone or being
    deleted."""
    while True:
        found = await read_secret(client, target)
        finalizers = _finalizers(found)
        if Finalizer.CREDENTIALS in finalizers:
            return
        if found["metadata"].get("deletionTimestamp"):
            # The API server accepts no new finalizer on an object that is being deleted.
            where = f"{target.home}/{target.secret}"
            raise UnreachableError(
                f"cannot keep the credentials of {target}: Secret {where} is being deleted",
                remedy="wait until it is gone, then create it again",
            )
        if await _write(client, found, [*finalizers, Finalizer.CREDENTIALS.value]):
            return


async def let_go(client: Client, target: ClusterTarget) -> None:
    """Remove Unwind's finalizer from the Secret, which may already be gone."""
    while True:
        try:
            found = await client.get(SECRETS, target.secret, namespace=target.home)
        except NotFoundError:
            return
        if not belongs(target, found):
            return
        finalizers = _finalizers(found)
        left = [finalizer for finalizer in finalizers if finalizer != Finalizer.CREDENTIALS]
        if left == finalizers or await _write(client, found, left):
            return


def _finalizers(found: Object) -> list[str]:
    return list(found["metadata"].get("finalizers") or ())


async def _write(client: Client, found: Object, finalizers: list[str]) -> bool:
    """Whether the write succeeded; if not, the Secret has changed and must be read again."""
    try:
        await client.revise(SECRETS, found, {"metadata": {"finalizers": finalizers}})
    except (ConflictError, NotFoundError):
        return False
    return True
