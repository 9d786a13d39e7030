"""Safe YAML loading: input is checked first, because a few hundred bytes can exhaust memory or crash the process.

PyYAML composes nodes by recursion in C, without a bound: some 100 KB of `[` overflow the stack. Merge keys (`<<`) of
merge keys multiply their entries.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEEPEST = 250
_MOST_VALUES = 100_000
# Deep nesting needs brackets, deep indentation, or many indicators at the start of a line.
_INDENTED = re.compile(rf"^[ \t?:-]{{{_DEEPEST}}}", re.MULTILINE)


class TooComplexError(yaml.YAMLError):
    """The document is nested too deeply, or its aliases expand to too many values."""


class NotJsonError(yaml.YAMLError):
    """The document has a value that JSON does not have."""


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


# As Kubernetes reads it


def documents(text: str) -> Iterator[Any]:
    """All documents in a text, as kubectl and Helm read them. Raises yaml.YAMLError."""
    check_complexity(text)
    for document in yaml.load_all(text, Loader=KubernetesLoader):
        yield as_json(document, most=_MOST_VALUES + 2 * len(text))


def as_json(value: Any, *, most: int) -> Any:
    """A value of KubernetesLoader as JSON types. `most`: the number of values that are allowed."""
    return _plain(value, [most])


def _plain(value: Any, most: list[int]) -> Any:
    most[0] -= 1
    if most[0] < 0:
        raise NotJsonError("aliases expand to too many values; use fewer aliases")
    if isinstance(value, dict):
        return {_as_key(key): _plain(one, most) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(item, most) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise NotJsonError(f"{value} is not a JSON number; write it as a string")
    if not isinstance(value, str | int | float | bool | bytes | None):
        raise NotJsonError(f"a value of type {type(value).__name__} is not supported in JSON; write it as a string")
    return value


def _as_key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise NotJsonError("a key is not a string; write it as a string")


class KubernetesLoader(yaml.CSafeLoader):
    """YAML as kubectl reads it: dates, times and base-60 numbers stay strings."""

    # PyYAML reads 2026-01-01 as a date and 22:30 as a number; as annotation values they are strings.
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own is one
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.rpartition(":")[2] not in ("timestamp", "int", "float", "value")
        ]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


KubernetesLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
KubernetesLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)
