"""What is sent to whoever answers questions in JSON on a bad day: bodies of every bad sort, and good ones."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Bodies:
    """Bodies from one seed."""

    def __init__(
        self,
        seed: int,
        valid: Callable[[random.Random], Any],
        *,
        words: Sequence[str],
        versioned: Callable[[Any], Sequence[Any]],
        swell: Callable[[Any, random.Random], None],
    ) -> None:
        """`valid` makes what is understood. `words`: what `apiVersion` and `kind` may say instead, in the objects that
        `versioned` finds in it. `swell` makes it large."""
        self._chance = random.Random(seed)
        self._make = valid
        self._words = words
        self._versioned = versioned
        self._swell = swell
        self._sorts: dict[str, Callable[[], bytes]] = {
            "valid": lambda: self._sent(self._valid()),
            "truncated": self._truncated,
            "flipped": self._flipped,
            "spliced": self._spliced,
            "random": lambda: self._chance.randbytes(self._chance.randrange(400)),
            "retyped": self._retyped,
            "missing": self._missing,
            "versions": self._versions,
            "doubled": self._doubled,
            "deep": self._deep,
            "huge": self._huge,
            "encoded": self._encoded,
        }

    def next(self) -> tuple[str, bytes]:
        sort = self._chance.choice(list(self._sorts))
        return sort, self._sorts[sort]()

    def _valid(self) -> Any:
        return self._make(self._chance)

    def _sent(self, it: Any) -> bytes:
        return json.dumps(it).encode()

    def _truncated(self) -> bytes:
        sent = self._sent(self._valid())
        return sent[: self._chance.randrange(len(sent))]

    def _flipped(self) -> bytes:
        sent = bytearray(self._sent(self._valid()))
        for _ in range(self._chance.randint(1, 8)):
            sent[self._chance.randrange(len(sent))] = self._chance.randrange(256)
        return bytes(sent)

    def _spliced(self) -> bytes:
        one, other = self._sent(self._valid()), self._sent(self._valid())
        cut = self._chance.randrange(len(one))
        return one[:cut] + other[self._chance.randrange(len(other)) :]

    def _place(self, it: Any) -> tuple[Any, Any]:
        """Somewhere in it: what holds it, and under which key."""
        holder, key = it, self._chance.choice(list(it))
        while isinstance(holder[key], dict | list) and holder[key] and self._chance.random() < 0.8:
            holder = holder[key]
            key = self._chance.choice(list(holder)) if isinstance(holder, dict) else 0
        return holder, key

    def _retyped(self) -> bytes:
        it = self._valid()
        holder, key = self._place(it)
        strange: list[Any] = [
            None,
            True,
            -1,
            2**70,
            1e308,
            float("nan"),
            "",
            "null",
            "../..",
            "\x00",
            [],
            {},
            [[]],
            {"": 0},
        ]
        holder[key] = self._chance.choice(strange)
        return self._sent(it)

    def _missing(self) -> bytes:
        it = self._valid()
        holder, key = self._place(it)
        del holder[key]
        return self._sent(it)

    def _versions(self) -> bytes:
        it = self._valid()
        words = [*self._words, "", "X" * 5000]
        holder = self._chance.choice(self._versioned(it))
        holder[self._chance.choice(["apiVersion", "kind"])] = self._chance.choice(words)
        return self._sent(it)

    def _doubled(self) -> bytes:
        it = self._valid()
        again = copy.deepcopy(it)
        key = self._chance.choice(list(it))
        first, second = self._sent(it), self._sent({key: self._chance.choice([again[key], None, {}, "x"])})
        return first[:-1] + b"," + second[1:]

    def _deep(self) -> bytes:
        it = self._valid()
        holder, key = self._place(it)
        holder[key] = "DEEP"
        depth = self._chance.choice([10, 100, 1_000, 10_000, 100_000])
        opened, closed = self._chance.choice([(b"[", b"]"), (b'{"a":', b"}")])
        inside = opened * depth + (b"1" + closed * depth if self._chance.random() < 0.8 else b"")
        return self._sent(it).replace(b'"DEEP"', inside)

    def _huge(self) -> bytes:
        it = self._valid()
        self._swell(it, self._chance)
        return self._sent(it)

    def _encoded(self) -> bytes:
        text = json.dumps(self._valid(), ensure_ascii=False)
        return self._chance.choice(
            [
                text.encode("utf-16"),
                text.encode("utf-8-sig"),
                text.replace("e", "\\u0065").encode(),
                text.replace("prod", "pr\udcffod").encode("utf-8", "surrogatepass"),
                b" " * 5000 + text.encode() + b"\n",
                text.encode() + b"{}",
            ]
        )
