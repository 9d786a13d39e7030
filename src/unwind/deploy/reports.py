"""The report of a deployment: the result of each object."""

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
    """The result for one object, or the expected one in a dry run."""

    CREATED = "Created"
    UPDATED = "Updated"
    UNCHANGED = "Unchanged"
    CONFLICT = "Conflict"
    """Managed by another owner, and not changed."""
    FAILED = "Failed"
    REMOVED = "Removed"
    """It is no longer in the profile."""
    LEFT = "Left"
    """It is no longer in the profile and was left on purpose; the ledger tells why."""


class ObjectResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one object."""

    object: ObjectRef
    outcome: ObjectOutcome
    source: str = ""
    message: str = ""
    taken_from: str = ""
    """The uid of the owner that it was taken over from."""

    def __str__(self) -> str:
        return f"{self.object}: {self.message}" if self.message else f"{self.object}: {self.outcome}"


class DeploymentReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all objects."""

    results: tuple[ObjectResult, ...] = ()
    faults: tuple[str, ...] = ()
    """Errors in the sources."""
    wanted: frozenset[str] = frozenset()
    """The keys of all wanted objects."""
    whole: bool = True
    """Whether `wanted` is complete: only then can objects be pruned."""
    dry_run: bool = False

    def of(self, *outcomes: ObjectOutcome) -> list[ObjectResult]:
        """The results with one of these outcomes."""
        return [result for result in self.results if result.outcome in outcomes]

    @property
    def counts(self) -> dict[ObjectOutcome, int]:
        return dict(Counter(result.outcome for result in self.results))

    @property
    def complete(self) -> bool:
        """Whether all objects were deployed."""
        return not self.faults and not self.of(ObjectOutcome.FAILED, ObjectOutcome.CONFLICT)

    @property
    def trouble(self) -> str:
        """The first errors as one text; empty if there are none."""
        return first(self.troubles)

    @property
    def troubles(self) -> list[str]:
        """All errors, each with its object."""
        return [*self.faults, *(str(item) for item in self.of(ObjectOutcome.FAILED, ObjectOutcome.CONFLICT))]


def first(told: Iterable[str], *, shown: int = _SHOWN) -> str:
    """The first few texts, and the number of others."""
    told = list(told)
    more = f"; and {len(told) - shown} more" if len(told) > shown else ""
    return "; ".join(told[:shown]) + more
