"""Holds Secrets with copied kubeconfigs while handles need them.

Without its Secret, Flux lets go of a HelmRelease at once, and Unwind cannot tell which cluster it deployed on. So a
copy has a finalizer from when the first handle that uses it is held until the last one is released.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.meta import ObjectMeta
from unwind.api.names import Finalizer
from unwind.api.resources import SECRETS
from unwind.companions.handle_kinds import HandleObject
from unwind.kube.errors import NotFoundError
from unwind.kube.installed_kinds import list_if_installed
from unwind.kube.updates import set_finalizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.api.resources import Resource
    from unwind.kube.client import Client


class KubeconfigCopies:
    """The finalizers on copied kubeconfigs of one management cluster."""

    def __init__(self, client: Client, *, kinds: Iterable[Resource] = (KUSTOMIZATIONS, HELM_RELEASES)) -> None:
        """`kinds`: of the handles that name kubeconfigs."""
        self._client = client
        self._kinds = tuple(kinds)
        self._leaving: set[str] = set()
        """The uids of handles whose finalizer is removed next."""
        self._turn = asyncio.Lock()

    async def hold(self, namespace: str, name: str) -> None:
        """Keep a copy. One that is missing or being deleted cannot be kept."""
        meta = await self._read(namespace, name)
        if meta and not meta.terminating and Finalizer.COPIED_KUBECONFIG not in meta.finalizers:
            await set_finalizer(self._client, SECRETS, meta, Finalizer.COPIED_KUBECONFIG, wanted=True)

    async def let_go(self, namespace: str, name: str, handle: str = "") -> None:
        """Release a copy, unless another handle that is held uses it. `handle`: the uid of the one that is next.

        It is called before that, because a copy whose handles are all gone is not found again. Of several handles that
        are released at the same time, the last one releases the copy.
        """
        async with self._turn:
            if handle:
                self._leaving.add(handle)
            meta = await self._read(namespace, name)
            if meta is None or Finalizer.COPIED_KUBECONFIG not in meta.finalizers:
                return
            if not await self._is_used(namespace, name):
                await set_finalizer(self._client, SECRETS, meta, Finalizer.COPIED_KUBECONFIG, wanted=False)

    def stays(self, handle: str) -> None:
        """A handle with this uid is held, maybe again."""
        self._leaving.discard(handle)

    async def _read(self, namespace: str, name: str) -> ObjectMeta | None:
        try:
            found = await self._client.get_metadata(SECRETS, name, namespace=namespace)
        except NotFoundError:
            return None
        return msgspec.convert(found["metadata"], ObjectMeta)

    async def _is_used(self, namespace: str, name: str) -> bool:
        for kind in self._kinds:
            listed = await list_if_installed(self._client, kind, namespace=namespace)
            for found in msgspec.convert(listed, list[HandleObject]):
                meta = found.metadata
                held = Finalizer.HANDLE in meta.finalizers and meta.uid not in self._leaving
                if held and found.secret and found.secret.name == name:
                    return True
        return False
