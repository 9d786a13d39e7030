"""What every model is made of: the base of the structs, words from closed lists, and what a field says of itself."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of an object as the API writes it, in camelCase.

    Fields that Unwind does not read are skipped. That is safe because no object is ever written back whole.
    """


class Unknown(msgspec.Struct, frozen=True):
    """A word that is not on the list. It holds: nothing is deleted and no gate opens because of it."""

    text: str

    def __str__(self) -> str:
        return f"{self.text!r} is not known"


class Word(StrEnum):
    """A word from a closed list.

    The fields that carry one are `str`, and `read` makes the word of it. Were the field the enum itself, an object
    with a typo could not be decoded at all, and who cannot see an object cannot hold it; were the unknown a member
    of the enum, the type checker would let it fall into an `else`. So whoever reads one has to say what becomes of
    Unknown.
    """

    @classmethod
    def read(cls, text: str) -> Self | Unknown:
        try:
            return cls(text)
        except ValueError:
            return Unknown(text)


def doc(text: str, *, choice: type[Word] | None = None, required: bool = False, **schema: Any) -> msgspec.Meta:
    """What a field means, and what the CRD says of it beyond its type: for the API server only.

    None of it is checked when an object is decoded: what is there already has to be seen, however wrong it is.
    """
    if choice:
        schema["enum"] = [word.value for word in choice]
    return msgspec.Meta(description=text, extra_json_schema=schema, extra={"required": required})


def listed(by: str) -> dict[str, Any]:
    """A list whose items are told apart by this field, so that several may write to it side by side."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [by]}


ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""A list that is written as one."""


def rule(cel: str, message: str, **more: Any) -> dict[str, Any]:
    """A rule in CEL that the API server holds an object against."""
    return {"rule": cel, "message": message, **more}
