"""Addresses of Pods: local to this machine, and allowed in Endpoints, which loopback addresses are not."""

from __future__ import annotations

import random
import subprocess
from itertools import cycle
from typing import Self

from unwind.errors import UnwindError

# Reserved for tests of networks (RFC 2544), and never routed. A cluster uses 254 addresses of them.
_RANGES = [f"198.{second}.{third}" for second in (18, 19) for third in range(256)]


class Addresses:
    """The addresses of one cluster; use it as a context manager. Needs root."""

    def __init__(self) -> None:
        self._range = ""
        self._turn = cycle(range(2, 255))
        self._used: set[str] = set()

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
        """An address for another Pod or Service; those that were freed last are used last."""
        for _ in range(253):
            address = f"{self._range}.{next(self._turn)}"
            if address not in self._used:
                self._used.add(address)
                return address
        raise UnwindError(f"all addresses of {self._range}.0/24 are in use", remedy="delete some Pods")

    def free(self, address: str) -> None:
        """Allow the address to be used again."""
        self._used.discard(address)


def _ip(verb: str, prefix: str) -> subprocess.CompletedProcess[str]:
    # A local route: every address of the range can be bound, as with 127.0.0.0/8.
    argv = ["ip", "route", verb, "local", f"{prefix}.0/24", "dev", "lo"]
    return subprocess.run(argv, capture_output=True, text=True, check=False)
