"""What a running process is made of."""

from __future__ import annotations

from typing import Protocol


class Part(Protocol):
    """Something that runs as long as the process does: a controller, a certificate that is kept fresh.

    It starts when `run` is called and stops when that is cancelled. If `run` raises, the process ends: whoever started
    it starts it again, and all state is in the API server (DESIGN, rule 6). What can be waited out is waited out inside.
    """

    @property
    def name(self) -> str:
        """What `/readyz` calls it while it is not ready."""

    @property
    def ready(self) -> bool:
        """Whether it can do its work, such as: its caches are synced."""

    async def run(self) -> None:
        """Do the work, until cancelled."""
