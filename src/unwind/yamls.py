"""YAML from others, checked before it is loaded: a few hundred bytes can fill the memory, or end the process.

PyYAML composes nodes by recursion in C, without a bound: some 100 KB of `[` overflow the stack. Merge keys (`<<`) of
merge keys multiply their entries.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_DEEPEST = 250
_MOST_VALUES = 100_000
# Nesting needs brackets, or a line that begins with much indentation, or with many indicators.
_INDENTED = re.compile(rf"^[ \t?:-]{{{_DEEPEST}}}", re.MULTILINE)


class TooComplexError(yaml.YAMLError):
    """It is nested too deeply, or its aliases make far too many values of it."""


def load(text: str | bytes) -> Any:
    """The one document in a text. Raises yaml.YAMLError or UnicodeDecodeError."""
    if isinstance(text, bytes):
        text = text.decode()
    check(text)
    return yaml.load(text, Loader=yaml.CSafeLoader)


def check(text: str) -> None:
    """Raise TooComplexError for what must not be loaded. What is no YAML at all is for the loader to say."""
    aliases = "*" in text and "&" in text
    if not (aliases or _INDENTED.search(text) or _more_than(_DEEPEST, text)):
        return
    try:
        _walk(text, most=_MOST_VALUES + 2 * len(text))
    except TooComplexError:
        raise
    except yaml.YAMLError:
        return


def _more_than(most: int, text: str) -> bool:
    return text.count("[") + text.count("{") > most


def _walk(text: str, *, most: int) -> None:
    """Count values as if each alias were a copy."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise TooComplexError("an alias in it names what it is a part of")
            count += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            count += 1
            # An anchor may be defined anew: until that is complete, it names nothing.
            sizes.pop(event.anchor or "", None)
            open_nodes.append((event.anchor, count))
            if len(open_nodes) > _DEEPEST:
                raise TooComplexError(f"it is nested more than {_DEEPEST} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = count - before + 1
        if count > most:
            raise TooComplexError("its aliases make far too many values of it")
