"""Safe YAML loading: input is checked first, because a few hundred bytes can exhaust memory or crash the process.

PyYAML composes nodes by recursion in C, without a bound: some 100 KB of `[` overflow the stack. Merge keys (`<<`) of
merge keys multiply their entries.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_DEEPEST = 250
_MOST_VALUES = 100_000
# Deep nesting needs brackets, deep indentation, or many indicators at the start of a line.
_INDENTED = re.compile(rf"^[ \t?:-]{{{_DEEPEST}}}", re.MULTILINE)


class TooComplexError(yaml.YAMLError):
    """The document is nested too deeply, or its aliases expand to too many values."""


def load(text: str | bytes) -> Any:
    """The single document in a text. Raises yaml.YAMLError or UnicodeDecodeError."""
    if isinstance(text, bytes):
        text = text.decode()
    check_complexity(text)
    return yaml.load(text, Loader=yaml.CSafeLoader)


def check_complexity(text: str) -> None:
    """Raise TooComplexError for a document that must not be loaded. Invalid YAML is left to the loader."""
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
                raise TooComplexError("an alias refers to its own parent; remove the alias")
            count += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            count += 1
            # An anchor may be redefined: until its node is complete, it refers to nothing.
            sizes.pop(event.anchor or "", None)
            open_nodes.append((event.anchor, count))
            if len(open_nodes) > _DEEPEST:
                raise TooComplexError(f"nested more than {_DEEPEST} levels deep; reduce the nesting")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = count - before + 1
        if count > most:
            raise TooComplexError("aliases expand to too many values; use fewer aliases")
