"""An owner of shards, for tests: it owns what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Owner:
    """Owns all keys except those that it has lost."""

    def __init__(self, *lost: str) -> None:
        self._lost = set(lost)
        self._all = True
        self._subscribed: list[Callable[[], None]] = []

    def owns(self, key: str) -> bool:
        return self._all and key not in self._lost

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._subscribed.append(changed)

    def lose(self, key: str, *, told: bool = True) -> None:
        """`told`: whether subscribers are called. A replica that is cut off finds out only when it asks."""
        self._lost.add(key)
        if told:
            self._notify()

    def gain(self, key: str) -> None:
        self._lost.discard(key)
        self._notify()

    def lose_all(self, *, told: bool = True) -> None:
        self._all = False
        if told:
            self._notify()

    def gain_all(self) -> None:
        self._all = True
        self._notify()

    def _notify(self) -> None:
        for changed in self._subscribed:
            changed()
