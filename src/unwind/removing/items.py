"""One entry of an inventory, and where it is recorded (values only)."""

from __future__ import annotations

import msgspec

from unwind.api.resources import Resource
from unwind.api.unwind import Entry, EntryState


class Item(msgspec.Struct, frozen=True):
    """One object of a step: where it is written down, and what is."""

    chunk: str
    """The Inventory."""
    key: str
    """Its entry there."""
    entry: Entry

    @property
    def done(self) -> bool:
        """Whether nothing is to be done for it any more: it is gone, or was knowingly left."""
        return self.entry.state == EntryState.REMOVED or self.entry.ledger is not None

    @property
    def resource(self) -> Resource:
        it = self.entry.object
        return Resource(it.group, it.version, self.entry.resource, it.kind, namespaced=bool(it.namespace))
