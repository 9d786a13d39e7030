"""Addresses of Pods: local to this machine, and allowed in Endpoints, which loopback addresses are not."""

from __future__ import annotations

import random
import subprocess
from itertools import count
from typing import Self

from unwind.errors import UnwindError

# Reserved for tests of networks (RFC 2544), and never routed. A cluster uses 254 addresses of them.
_RANGES = [f"198.{second}.{third}" for second in (18, 19) for third in range(256)]


class Addresses:
    """The addresses of one cluster; use it as a context manager. Needs root."""

    def __init__(self) -> None:
        self._range = ""
        self._next = count()

    def __enter__(self) -> Self:
        said = ""
        for candidate in random.sample(_RANGES, len(_RANGES)):
            # It fails if the route exists: another cluster has this range.
            added = _ip("add", candidate)
            if not added.returncode:
                self._range = candidate
                return self
            said = added.stderr.strip()
            if "File exists" not in said:
                break
        raise UnwindError(f"cannot add addresses for Pods to the loopback interface: {said}", remedy="run it as root")

    def __exit__(self, *_: object) -> None:
        _ip("del", self._range)

    @property
    def node(self) -> str:
        """The address of the nodes."""
        return f"{self._range}.1"

    def take(self) -> str:
        """The address for another Pod. It is used again after 250 others."""
        return f"{self._range}.{next(self._next) % 250 + 2}"


def _ip(verb: str, prefix: str) -> subprocess.CompletedProcess[str]:
    # A local route: every address of the range can be bound, as with 127.0.0.0/8.
    argv = ["ip", "route", verb, "local", f"{prefix}.0/24", "dev", "lo"]
    return subprocess.run(argv, capture_output=True, text=True, check=False)
