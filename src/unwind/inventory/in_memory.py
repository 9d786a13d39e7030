"""Inventories that exist only in this process, for a removal that a command runs itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectMeta
from unwind.api.unwind import Inventory
from unwind.inventory.inventories import Inventories
from unwind.kube.updates import merged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.inventory.inventories import Note
    from unwind.kube.client import Client


class MemoryInventories(Inventories):
    """The Inventories of one removal. Nothing is written to a cluster: what was removed is observed again later."""

    def __init__(self, client: Client, *chunks: Inventory) -> None:
        super().__init__(client, namespace="")
        self._chunks = {chunk.metadata.name: chunk for chunk in chunks}

    @property
    def chunks(self) -> list[Inventory]:
        """All of them, as they are now."""
        return list(self._chunks.values())

    async def of(self, owner: str) -> list[Inventory]:
        return [chunk for chunk in self.chunks if chunk.spec.owner.uid == owner]

    async def get(self, name: str) -> Inventory | None:
        return self._chunks.get(name)

    async def patch(self, name: str, uid: str, entries: Mapping[str, Mapping[str, Any] | None]) -> None:
        del uid  # nothing else writes them
        now = msgspec.to_builtins(self._chunks[name])
        self._chunks[name] = msgspec.convert(merged(now, {"spec": {"entries": dict(entries)}}), Inventory)

    async def amend(self, chunk: Inventory, notes: Mapping[str, Note]) -> None:
        entries = self._chunks[chunk.metadata.name].spec.entries
        await self.write(
            chunk,
            {key: note.change for key, note in notes.items() if key in entries and note.is_about(entries[key])},
        )

    async def extend(self, like: Inventory, number: int) -> Inventory:
        name = f"{like.spec.owner.uid}-{number}"
        made = Inventory(
            metadata=ObjectMeta(name=name), spec=msgspec.structs.replace(like.spec, chunk=number, entries={})
        )
        return self._chunks.setdefault(name, made)
