"""What became of a deployment, object by object."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from unwind.api.fields import Word
from unwind.api.meta import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN = 3


class ObjectOutcome(Word):
    """What became of one object, or would."""

    CREATED = "Created"
    UPDATED = "Updated"
    UNCHANGED = "Unchanged"
    CONFLICT = "Conflict"
    """Somebody else's: it was not touched."""
    FAILED = "Failed"
    REMOVED = "Removed"
    """It dropped out of the profile."""
    LEFT = "Left"
    """It dropped out of the profile, and was knowingly left; the ledger says why."""


class ObjectResult(msgspec.Struct, frozen=True, kw_only=True):
    """One object."""

    object: ObjectRef
    outcome: ObjectOutcome
    source: str = ""
    message: str = ""
    taken_from: str = ""
    """The uid of the owner that it was taken over from."""

    def __str__(self) -> str:
        return f"{self.object}: {self.message}" if self.message else f"{self.object}: {self.outcome}"


class DeploymentReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    results: tuple[ObjectResult, ...] = ()
    faults: tuple[str, ...] = ()
    """What is wrong with the sources."""
    wanted: frozenset[str] = frozenset()
    """The keys of all objects that shall be there."""
    whole: bool = True
    """Whether `wanted` is all of them: only then is known what has dropped out."""
    dry_run: bool = False

    def of(self, *outcomes: ObjectOutcome) -> list[ObjectResult]:
        """Those with one of these outcomes."""
        return [result for result in self.results if result.outcome in outcomes]

    @property
    def counts(self) -> dict[ObjectOutcome, int]:
        return dict(Counter(result.outcome for result in self.results))

    @property
    def complete(self) -> bool:
        """Whether everything is there as it shall be."""
        return not self.faults and not self.of(ObjectOutcome.FAILED, ObjectOutcome.CONFLICT)

    @property
    def trouble(self) -> str:
        """What is in the way, the first of it by name; empty if nothing is."""
        return first(self.troubles)

    @property
    def troubles(self) -> list[str]:
        """All that is in the way, each by name."""
        return [*self.faults, *(str(item) for item in self.of(ObjectOutcome.FAILED, ObjectOutcome.CONFLICT))]


def first(told: Iterable[str], *, shown: int = _SHOWN) -> str:
    """The first few, and how many more."""
    told = list(told)
    more = f"; and {len(told) - shown} more" if len(told) > shown else ""
    return "; ".join(told[:shown]) + more
