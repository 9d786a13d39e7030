"""Kinds that are followed together: who is told when one of them is known, and which cannot be followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.resources import Resource

log = logs.get(__name__)


class Followed:
    """What several informers have in common."""

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []
        self._troubles: dict[str, str] = {}
        """Kinds, by their plural, that cannot be followed, and why."""

    def subscribe(self, listed: Callable[[], None]) -> None:
        """Have it told whenever a cache has become whole."""
        self._told.append(listed)

    def _listed(self) -> None:
        for told in self._told:
            told()

    def _troubled(self, resource: Resource) -> Callable[[Exception], None]:
        def troubled(error: Exception) -> None:
            if self._troubles.get(resource.plural) != str(error):
                log.warning("a kind cannot be followed", kind=resource.kind, api=resource.api_version, why=str(error))
            self._troubles[resource.plural] = str(error)

        return troubled
