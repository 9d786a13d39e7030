"""Build progress of local binaries: progress bars on a terminal, periodic lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from unwind.cli import console
from unwind.local.tools import Origin

if TYPE_CHECKING:
    from types import TracebackType

    from unwind.local.tools import Condition, Found

_LINE_EVERY = 15.0


class BuildProgress:
    """Progress callbacks for `unwind.local.building`; use it as a context manager."""

    def __init__(self, *, list_found: bool = False) -> None:
        self._list_found = list_found
        self._bars: dict[str, TaskID] = {}
        self._said: dict[str, float] = {}
        self._shown = Progress(
            TextColumn("{task.fields[name]:<24}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[doing]}"),
            TimeElapsedColumn(),
            console=console.err,
            transient=True,
            disable=not console.err.is_terminal,
        )

    def __enter__(self) -> Self:
        self._shown.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._shown.stop()

    def found(self, found: Found) -> None:
        if self._list_found:
            where = "cached" if found.origin is Origin.CACHE else f"{found.path} (from {found.origin})"
            console.err.print(f"{found.name:<24} {where}")

    def mending(self, name: str, condition: Condition) -> None:
        console.err.print(f"rebuilding {name}: cached binary {condition}")

    def waiting(self, module: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        console.err.print(f"waiting for {who} to build {module}")

    def downloading(self, name: str, what: str, count: int) -> None:
        self._show(name, f"{count} modules downloaded", done=0, total=None)

    def building(self, name: str, done: int, total: int) -> None:
        doing = f"{done} of {total} packages compiled" if done < total else "linking"
        self._show(name, doing, done=done, total=total)

    def built(self, found: Found, seconds: float) -> None:
        if found.name in self._bars:
            self._shown.remove_task(self._bars.pop(found.name))
        console.err.print(f"{found.name:<24} built in {seconds:.0f}s")

    def _show(self, name: str, doing: str, *, done: int, total: int | None) -> None:
        if name not in self._bars:
            self._bars[name] = self._shown.add_task(name, name=name, doing=doing, total=total)
        self._shown.update(self._bars[name], doing=doing, completed=done, total=total)
        now = time.monotonic()
        if self._shown.disable and now - self._said.get(name, 0.0) >= _LINE_EVERY:
            self._said[name] = now
            console.err.print(f"{name:<24} {doing}")
