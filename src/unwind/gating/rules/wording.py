"""How a wait is put into words that stay the same as long as the reason does (pure).

Cluster API writes them into the Cluster's conditions: a text that differs each time would be a write each time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST = 240
_SHOWN = 5
# `read tcp 10.0.0.3:48122->10.0.0.9:443: …`: the first port is another one each time.
_FROM = re.compile(r"\S+:[0-9]+->")


def steady(text: str) -> str:
    """Somebody's message on one line, short, without what is different each time."""
    line = _FROM.sub("", " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST].rstrip()} …"


def several(what: Iterable[str]) -> str:
    """All of it, always in the same order, as far as people read."""
    said = sorted(set(what))
    more = ["and others"] if len(said) > _SHOWN else []
    return "; ".join([*said[:_SHOWN], *more])
