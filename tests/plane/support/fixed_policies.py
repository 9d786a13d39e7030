"""Policies for tests of step sources: what they say about each handle is fixed, and no TeardownPolicy is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from unwind.api.unwind import Effort
from unwind.companions.step_source import HandleDecision

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from unwind.api.policies import SourceKind
    from unwind.api.unwind import Step
    from unwind.companions.companion import Handle
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import PolicyTerms, TeardownNotice
    from unwind.teardown.step_sources import StepPause


class FixedPolicies:
    """They enforce every handle. `efforts`: others, by the name of the handle. `namespaces`: where handles count."""

    enforced = True
    said: tuple[TeardownNotice, ...] = ()
    terms: PolicyTerms | None = None
    sources: ClassVar[frozenset[SourceKind]]

    def __init__(self, efforts: Mapping[str, Effort] | None = None, *, namespaces: Collection[str] = ()) -> None:
        self._efforts = efforts or {}
        self._namespaces = namespaces

    async def of(self, target: ClusterTarget) -> Self:
        return self

    def conflict(self, step: Step, source: SourceKind, target: ClusterTarget) -> StepPause | None:
        return None

    def follow(self, changed: Callable[[], None]) -> None:
        pass

    def namespaces(self, source: SourceKind) -> Collection[str]:
        return self._namespaces

    def decide(self, handle: Handle) -> HandleDecision | None:
        return HandleDecision(effort=self._efforts.get(handle.ref.name, Effort.ENFORCE), policies=("example",))
