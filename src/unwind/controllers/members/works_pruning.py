"""What has dropped out of Works, on its way: each Work's in a task of its own, because it may wait for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.errors import UnwindError
from unwind.kube import fencing
from unwind.kube.fencing import FencedError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from unwind.api.karmada import Cluster, Work
    from unwind.controllers.members.works_putting import Putting
    from unwind.deleting.entering import Failed, Waiting
    from unwind.removing.removal import Removal


class Pruning:
    """That of one Work."""

    def __init__(self) -> None:
        self.removals: list[Removal] = []
        self.error: Exception | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def waits(self) -> list[Waiting | Failed]:
        return [what for removal in self.removals for what in removal.progress.waits.values()]


class Prunings:
    """All that this process carries out, by the uid of the Work."""

    def __init__(self, putting: Putting, tasks: asyncio.TaskGroup, *, changed: Callable[[str], None]) -> None:
        """`changed` is told the uid of a Work of which there is something new."""
        self._putting = putting
        self._tasks = tasks
        self._changed = changed
        self._under_way: dict[str, Pruning] = {}

    def get(self, uid: str) -> Pruning | None:
        return self._under_way.get(uid)

    def begin(self, work: Work, cluster: Cluster, wanted: frozenset[str], *, done: Callable[[], None]) -> None:
        """Have what a Work no longer wants removed; `done` is told when nothing else is there any more. `wanted`: the
        keys of all that it does want."""
        uid = work.metadata.uid
        self.give_up(uid)
        it = self._under_way[uid] = Pruning()
        it.task = self._tasks.create_task(self._run(it, work, cluster, wanted, done))

    def give_up(self, uid: str) -> None:
        """Have nothing more removed for a Work; what was is seen when it is begun again."""
        if (it := self._under_way.pop(uid, None)) and it.task:
            it.task.cancel()

    async def _run(
        self, it: Pruning, work: Work, cluster: Cluster, wanted: frozenset[str], done: Callable[[], None]
    ) -> None:
        uid = work.metadata.uid
        try:
            async with fencing.scope():
                await self._putting.prune(
                    work,
                    cluster,
                    wanted,
                    started=it.removals.append,
                    changed=lambda: self._changed(uid),
                )
            done()
            self._under_way.pop(uid, None)
        except FencedError as error:
            it.error = UnwindError(str(error))  # if the shard is ours again, it is begun again
        except Exception as error:  # noqa: BLE001 - it is told on the Work, and tried again
            it.error = error
        self._changed(uid)
