"""Label selectors in the syntax of `kubectl --selector`: `env in (prod,staging),!legacy,team=a,tier!=test`."""

from __future__ import annotations

import re

from unwind.api.meta import LabelSelector, SelectorRequirement

_TOKENS = re.compile(r"==|!=|[=!(),<>]|[^\s=!(),<>]+")
_OPERATORS = frozenset(("==", "!=", "=", "!", "(", ")", ",", "<", ">"))
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(_PART)
_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LONGEST_PREFIX = 253


class InvalidSelectorError(ValueError):
    """The text is not a label selector."""


def parse(text: str) -> LabelSelector:
    """Parse a selector. Raises InvalidSelectorError.

    Equality becomes matchLabels, everything else matchExpressions. Empty text selects everything, as in kubectl. The
    operators `<` and `>` are refused, because a LabelSelector of the API has none.
    """
    tokens = _Tokens(text)
    labels: dict[str, str] = {}
    expressions: list[SelectorRequirement] = []
    if tokens.at_end:
        return LabelSelector()
    while True:
        key, operator, values = _requirement(tokens)
        if operator == "=":
            [value] = values
            if labels.setdefault(key, value) != value:
                raise InvalidSelectorError(f"label {key!r} cannot be both {labels[key]!r} and {value!r}")
        else:
            expressions.append(SelectorRequirement(key=key, operator=operator, values=values))
        if tokens.at_end:
            break
        tokens.expect(",")
    return LabelSelector(match_labels=labels, match_expressions=tuple(expressions))


class _Tokens:
    """The tokens of a selector, read one by one."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKENS.findall(text)
        self._next = 0

    @property
    def at_end(self) -> bool:
        return self._next == len(self._tokens)

    @property
    def found(self) -> str:
        """The next token; empty at the end."""
        return "" if self.at_end else self._tokens[self._next]

    def take(self, *wanted: str) -> str:
        """Read the next token if it is one of these; otherwise return an empty string."""
        token = self.found
        if token not in wanted:
            return ""
        self._next += 1
        return token

    def word(self) -> str:
        """Read the next token if it is a key or a value; otherwise return an empty string."""
        return "" if self.at_end or self.found in _OPERATORS else self.take(self.found)

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            raise self.unexpected(repr(wanted))

    def unexpected(self, wanted: str) -> InvalidSelectorError:
        return InvalidSelectorError(f"expected {wanted}, found {repr(self.found) if self.found else 'the end'}")


def _requirement(tokens: _Tokens) -> tuple[str, str, tuple[str, ...]]:
    """Key, operator and values of one requirement; the operator is `=` or one of the API."""
    if tokens.take("!"):
        return _key(tokens), "DoesNotExist", ()
    key = _key(tokens)
    if tokens.at_end or tokens.found == ",":
        return key, "Exists", ()
    if tokens.take("=", "=="):
        return key, "=", (_value(tokens, key),)
    if tokens.take("!="):
        return key, "NotIn", (_value(tokens, key),)
    if operator := tokens.take("in", "notin"):
        return key, "In" if operator == "in" else "NotIn", _values(tokens, key, operator)
    if operator := tokens.take("<", ">"):
        raise InvalidSelectorError(f"operator {operator!r} for label {key!r} is not supported by label selectors")
    raise tokens.unexpected("one of '=', '==', '!=', 'in', 'notin'")


def _key(tokens: _Tokens) -> str:
    if not (key := tokens.word()):
        raise tokens.unexpected("a label key")
    prefix, slash, name = key.rpartition("/")
    valid = _NAME.fullmatch(name) and (
        not slash or (len(prefix) <= _LONGEST_PREFIX and _PREFIX.fullmatch(prefix) is not None)
    )
    if not valid:
        raise InvalidSelectorError(f"invalid label key {key!r}")
    return key


def _value(tokens: _Tokens, key: str) -> str:
    """The next value. It may be empty, as the value of a label may be."""
    value = tokens.word()
    if value and not _NAME.fullmatch(value):
        raise InvalidSelectorError(f"invalid value {value!r} for label {key!r}")
    return value


def _values(tokens: _Tokens, key: str, operator: str) -> tuple[str, ...]:
    tokens.expect("(")
    if tokens.take(")"):
        raise InvalidSelectorError(f"operator {operator!r} for label {key!r} needs at least one value")
    values = [_value(tokens, key)]
    while tokens.take(","):
        values.append(_value(tokens, key))
    tokens.expect(")")
    return tuple(dict.fromkeys(values))
