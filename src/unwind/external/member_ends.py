"""External ends for objects on member clusters, with credentials that the platform mapped to the member.

A member can name any external resource in its objects. So Unwind never uses its own identity for them, but only the
credentials in a Secret that names this member and this namespace. Only administrators can write these Secrets: they are
in Unwind's namespace, and their names begin with a prefix that an admission policy guards.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import msgspec

from unwind.api.names import (
    CREDENTIALS_PREFIX,
    DELETE_POLICY_ANNOTATION,
    EXTERNAL_LABEL,
    EXTERNAL_MEMBER_ANNOTATION,
    EXTERNAL_NAMESPACES_ANNOTATION,
    Reason,
)
from unwind.api.resources import SECRETS
from unwind.clock import SYSTEM
from unwind.concurrency import SingleFlight
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.external import external_deletion
from unwind.external.credential_secrets import EVERY_NAMESPACE, CredentialsSecret, mapped, member_name
from unwind.external.external_deletion import Ends

if TYPE_CHECKING:
    from unwind.api.meta import ObjectRef
    from unwind.clock import Clock
    from unwind.deleters.context import End
    from unwind.deleters.external_end import ReleasedFinalizers
    from unwind.deleters.registration import External
    from unwind.kube.client import Client


class MemberEnds:
    """Opens external ends with the mapped credentials. Use it as an async context manager."""

    def __init__(self, client: Client, *, namespace: str, clock: Clock = SYSTEM) -> None:
        """`client`: of the management cluster. `namespace`: Unwind's own."""
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._group = asyncio.TaskGroup()
        self._ends: Ends | None = None
        self._home: str = ""
        self._asking: SingleFlight[str] = SingleFlight()
        self._listing: SingleFlight[list[CredentialsSecret]] = SingleFlight()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._ends = Ends(self._client, self._group)
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._ends:
            self._ends.close_all()
        # An exception of the body is raised as it is, and not in a group.
        await self._group.__aexit__(None, None, None)

    async def is_home(self, system_uid: str) -> bool:
        if not self._home:
            self._home = await self._asking.ask("", self._client.cluster_uid)
        return system_uid == self._home

    async def open(self, external: External, *, cluster: ObjectRef, namespace: str) -> End:
        assert self._ends  # noqa: S101 - for the type checker
        member = member_name(cluster)
        if external.open_with is None:
            raise PermanentError(
                f"cannot delete {external.name} resources of objects on {member}: {external.name} takes no credentials",
                reason=Reason.HELD,
                remedy="delete the external resource by hand, or annotate the object with"
                f" {DELETE_POLICY_ANNOTATION}=skip",
            )
        # Many objects that are deleted together ask at once.
        secrets = await self._listing.ask(external.name, lambda: self._secrets(external.name))
        secret = mapped(secrets, member=member, namespace=namespace)
        if secret is None:
            raise TransientError(
                f"no {external.name} credentials are mapped to {member}, namespace {namespace or '(none)'}",
                reason=Reason.UNAUTHENTICATED,
                remedy=f"create a Secret {CREDENTIALS_PREFIX}… in namespace {self._namespace} with the label "
                f"{EXTERNAL_LABEL}={external.name} and the annotations {EXTERNAL_MEMBER_ANNOTATION}={member} and "
                f"{EXTERNAL_NAMESPACES_ANNOTATION}={namespace or EVERY_NAMESPACE}",
            )
        return await self._ends.get_with(external, secret)

    async def _secrets(self, name: str) -> list[CredentialsSecret]:
        found = await self._client.list(SECRETS, namespace=self._namespace, labels=f"{EXTERNAL_LABEL}={name}")
        return msgspec.convert(found, list[CredentialsSecret], strict=False)

    async def record(self, released: ReleasedFinalizers) -> None:
        wanted = external_deletion.released_entry(released, namespace=self._namespace, at=self._clock.now())
        await external_deletion.write_entry(self._client, wanted)

    async def withdraw(self, ref: ObjectRef) -> None:
        await external_deletion.withdraw(self._client, external_deletion.released_name(ref), namespace=self._namespace)
