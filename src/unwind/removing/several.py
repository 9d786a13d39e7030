"""Several things that are waited for together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.kube.watches import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable


class Several(Subscription):
    """Happens when all of its parts have: a thousand objects that go are not looked through again after each."""

    def __init__(self, parts: Iterable[Subscription] = ()) -> None:
        self._parts = list(parts)

    def add(self, part: Subscription) -> None:
        self._parts.append(part)

    @property
    def happened(self) -> bool:
        return all(part.happened for part in self._parts)

    @property
    def lost(self) -> bool:
        return any(part.lost for part in self._parts)

    async def wait(self) -> None:
        for part in self._parts:
            await part.wait()

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def tell(self) -> None:
        for part in self._parts:
            part.tell()
