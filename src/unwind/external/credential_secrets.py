"""Secrets with the credentials of external systems: of a namespace, or mapped to a member."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.api.names import CREDENTIALS_PREFIX, EXTERNAL_MEMBER_ANNOTATION, EXTERNAL_NAMESPACES_ANNOTATION, Reason
from unwind.api.resources import SECRETS
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.meta import ObjectRef
    from unwind.deleters.registration import External
    from unwind.kube.client import Client, Object

EVERY_NAMESPACE = "*"


class CredentialsSecret(msgspec.Struct, frozen=True):
    """A Secret with credentials. The annotations of one in Unwind's namespace map it to a member."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None

    @property
    def member(self) -> str:
        return self.metadata.annotations.get(EXTERNAL_MEMBER_ANNOTATION, "")

    @property
    def namespaces(self) -> frozenset[str]:
        words = self.metadata.annotations.get(EXTERNAL_NAMESPACES_ANNOTATION, "").replace(" ", "").split(",")
        return frozenset(word for word in words if word)

    def values(self) -> dict[str, str]:
        """The decoded values. Raises PermanentError if one is not text; the value itself is never shown."""
        found = {}
        for key, value in (self.data or {}).items():
            try:
                found[key] = base64.b64decode(value, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                raise PermanentError(
                    f"cannot decode {key!r} of Secret {self.metadata.namespace}/{self.metadata.name}: not UTF-8 text",
                    reason=Reason.UNAUTHENTICATED,
                    remedy="correct the value",
                ) from None
        return found


async def of_namespace(client: Client, external: External, obj: Object) -> CredentialsSecret | None:
    """The Secret with the credentials for an object on the management cluster; None if the identity of the manager
    counts. It is in the namespace of the object, whatever the object says.

    Raises TransientError if the object names a Secret that does not exist: another identity might have more rights.
    """
    wanted = external.credentials(obj) if external.credentials else None
    namespace = obj["metadata"].get("namespace")
    if wanted is None or (not namespace and not wanted.required):
        return None
    name = wanted.name
    if not namespace:
        raise PermanentError(
            f"cannot use Secret {name} with the {external.name} credentials: the object has no namespace",
            reason=Reason.UNAUTHENTICATED,
            remedy="correct the object",
        )
    try:
        found = await client.get(SECRETS, name, namespace=namespace, type=CredentialsSecret)
    except NotFoundError:
        if not wanted.required:
            return None
        raise TransientError(
            f"cannot find Secret {namespace}/{name} with the {external.name} credentials",
            reason=Reason.UNAUTHENTICATED,
            remedy="create it, or correct the object",
        ) from None
    return found


def member_name(cluster: ObjectRef) -> str:
    """The name of a member in the annotation of a Secret: GROUP/KIND/NAMESPACE/NAME, without an empty namespace."""
    return "/".join(part for part in (cluster.group, cluster.kind, cluster.namespace, cluster.name) if part)


def mapped(secrets: Iterable[CredentialsSecret], *, member: str, namespace: str) -> CredentialsSecret | None:
    """The Secret for a member and a namespace; None if there is none (pure). One that names the namespace is preferred
    to one for all namespaces. Raises TransientError if two fit equally well.

    Other names are ignored, because any user with the right to create Secrets could have chosen them.
    """
    fitting = [
        secret for secret in secrets if secret.metadata.name.startswith(CREDENTIALS_PREFIX) and secret.member == member
    ]
    for words in ({namespace} - {""}, {EVERY_NAMESPACE}):
        found = [secret for secret in fitting if secret.namespaces & words]
        if len(found) > 1:
            who = " and ".join(sorted(secret.metadata.name for secret in found))
            raise TransientError(
                f"Secrets {who} both map credentials to {member}, namespace {namespace or '(none)'}",
                reason=Reason.UNAUTHENTICATED,
                remedy="remove one of them",
            )
        if found:
            return found[0]
    return None
