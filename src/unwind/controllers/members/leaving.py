"""A member on its way out: its teardown is carried out, and then what stood for it on this side goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.controllers.members.closing import Closing
from unwind.controllers.teardowns.executing import Execution
from unwind.controllers.teardowns.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.unwind import Blocker, Teardown
    from unwind.controllers.members.work_steps import WorkSteps
    from unwind.controllers.teardowns.drafting import Said
    from unwind.controllers.teardowns.releasing import LetGo
    from unwind.controllers.teardowns.removers import Means
    from unwind.fleet.targets import Anchor
    from unwind.kube.client import Client


class Leaving:
    """One member's unjoining, from its plan to the end; can be begun again at any moment."""

    def __init__(
        self,
        teardown: Teardown,
        target: Anchor,
        means: Means,
        client: Client,
        *,
        namespace: str,
        source: WorkSteps,
        said: tuple[Said, ...] = (),
        written: Callable[[Teardown], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
        owns: Callable[[], bool] = lambda: True,
    ) -> None:
        """`namespace`: the execution namespace. `written` is told of the record when its end is written down,
        `changed` of another thing that is waited for after that. `owns`: whether this replica may still act for it."""
        self.target = target
        self._teardown = teardown
        self._means = means
        self._client = client
        self._namespace = namespace
        self._source = source
        self._written = written
        self._changed = changed
        self._closing: Closing | None = None
        self._execution = (
            None
            if teardown.finished
            else Execution(
                teardown,
                target,
                means,
                client,
                said=said,
                sources=Sources((source,)),
                owns=owns,
            )
        )

    @property
    def teardown(self) -> Teardown:
        """The record, as far as it has come."""
        return self._execution.teardown if self._execution else self._teardown

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What is waited for after the teardown."""
        return self._closing.blockers if self._closing else ()

    def release(self, let_go: LetGo) -> None:
        """Let the member go now, with each object that is left in the ledger."""
        if self._execution:
            self._execution.release(*let_go)

    def target_gone(self) -> None:
        """The Cluster has vanished: what could not be verified goes into the ledger."""
        if self._execution:
            self._execution.target_gone()

    def go_another_way(self, target: Anchor) -> None:
        """The way to the member has changed, or is open again."""
        self.target = target
        if self._execution:
            self._execution.go_another_way(target)

    async def run(self) -> None:
        if self._execution:
            await self._execution.run()
            self._written(self._execution.teardown)
        self._closing = Closing(
            self.teardown,
            self.target,
            self._means,
            self._client,
            namespace=self._namespace,
            source=self._source,
            changed=self._changed,
        )
        await self._closing.run()
