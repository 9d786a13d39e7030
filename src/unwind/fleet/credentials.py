"""A member's kubeconfig Secret: read, and kept for as long as something is on the member."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from unwind.api.names import Finalizer
from unwind.api.resources import SECRETS
from unwind.errors import UnwindError
from unwind.kube import kubeconfig
from unwind.kube.errors import ConflictError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from unwind.fleet.targets import Target
    from unwind.kube.client import Client, Object
    from unwind.kube.kubeconfig import Connection


async def secret(client: Client, target: Target) -> Object:
    """The Secret as it is now. Raises UnreachableError if there is none."""
    try:
        return await client.get(SECRETS, target.secret, namespace=target.ref.namespace)
    except NotFoundError:
        raise UnreachableError(
            f"{target} cannot be reached: there is no Secret {target.ref.namespace}/{target.secret} with its kubeconfig"
        ) from None


def connection(target: Target, found: Object) -> Connection:
    """The way to the member that its Secret tells. Raises UnreachableError where it tells none."""
    name = f"Secret {target.ref.namespace}/{target.secret}"
    data: dict[str, str] = found.get("data") or {}
    key = target.secret_key or next(iter(sorted(data)), "")
    if key not in data:
        missing = f"has no key {key!r}" if key else "is empty"
        raise UnreachableError(f"{target} cannot be reached: {name} {missing}")
    try:
        text = base64.b64decode(data[key], validate=True)
        return kubeconfig.parse(text, source=f"{key!r} in {name}")
    except (UnwindError, binascii.Error) as error:
        raise UnreachableError(f"{target} cannot be reached: {error}") from error


async def hold(client: Client, target: Target) -> None:
    """Have the Secret stay until `let_go`: who deletes a namespace deletes the Secret beside the Cluster, and without
    it nobody could take off what is on the member. Raises UnreachableError if it is gone, or going."""
    while True:
        found = await secret(client, target)
        finalizers = _finalizers(found)
        if Finalizer.CREDENTIALS in finalizers:
            return
        if found["metadata"].get("deletionTimestamp"):
            # The API server takes no new finalizer on what is being deleted.
            where = f"{target.ref.namespace}/{target.secret}"
            raise UnreachableError(f"{target} cannot be kept in reach: its Secret {where} is being deleted")
        if await _write(client, found, [*finalizers, Finalizer.CREDENTIALS.value]):
            return


async def let_go(client: Client, target: Target) -> None:
    """Let the Secret go its way. It may have gone already."""
    while True:
        try:
            found = await client.get(SECRETS, target.secret, namespace=target.ref.namespace)
        except NotFoundError:
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
