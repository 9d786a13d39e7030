"""Runs the unjoin of one member: its teardown, then the cleanup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.karmada.unjoin_cleanup import UnjoinCleanup, UnjoinDeps
from unwind.teardown.runner import TeardownRunner
from unwind.teardown.step_sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unwind.api.unwind import Blocker, Inventory, Teardown
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.drafts import TeardownNotice
    from unwind.teardown.force_release import LetGo


class UnjoinRunner:
    """The unjoin of one member, from its plan to the end; can be restarted at any time."""

    def __init__(
        self,
        teardown: Teardown,
        target: ClusterTarget,
        deps: UnjoinDeps,
        *,
        namespace: str,
        said: tuple[TeardownNotice, ...] = (),
        written: Callable[[Teardown], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
        owns: Callable[[], bool] = lambda: True,
        read: Iterable[Inventory] = (),
    ) -> None:
        """`namespace`: the execution namespace. `written`: called with the record when its end is written. `changed`:
        called when the blockers of the cleanup change. `owns`: whether this replica may still act for it. `read`: as
        for `TeardownRunner`."""
        self.target = target
        self._teardown = teardown
        self._deps = deps
        self._namespace = namespace
        self._written = written
        self._changed = changed
        self._closing: UnjoinCleanup | None = None
        self._let_go: LetGo | None = None
        self._execution = (
            None
            if teardown.finished
            else TeardownRunner(
                teardown,
                target,
                deps.removal,
                deps.client,
                said=said,
                sources=Sources((deps.source,)),
                owns=owns,
                read=read,
            )
        )

    @property
    def teardown(self) -> Teardown:
        """The current record."""
        return self._execution.teardown if self._execution else self._teardown

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What the cleanup waits for."""
        return self._closing.blockers if self._closing else ()

    def release(self, let_go: LetGo) -> None:
        """Force-release the member now; each remaining object is recorded in the ledger."""
        if self._execution:
            self._execution.release(*let_go)
        self._let_go = let_go
        if self._closing:
            self._closing.release(let_go)

    def target_gone(self) -> None:
        """The Cluster is gone: what could not be verified is recorded in the ledger."""
        if self._execution:
            self._execution.target_gone()

    def go_another_way(self, target: ClusterTarget) -> None:
        """The connection of the member changed, or works again."""
        self.target = target
        if self._execution:
            self._execution.go_another_way(target)

    async def run(self) -> None:
        if self._execution:
            await self._execution.run()
            self._written(self._execution.teardown)
        self._closing = UnjoinCleanup(
            self.teardown,
            self.target,
            self._deps,
            namespace=self._namespace,
            changed=self._changed,
        )
        if self._let_go:
            self._closing.release(self._let_go)
        await self._closing.run()
