"""Base of the API types: the struct base class, enumerated values, and schema metadata of fields."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of an API object, with field names in camelCase.

    Unknown fields are skipped. That is safe because no object is ever written back whole.
    """


class Unknown(msgspec.Struct, frozen=True):
    """A value that is not in the enumeration. It blocks: nothing is deleted and no gate opens because of it."""

    text: str
    valid: str = ""
    """What would be known."""

    def __str__(self) -> str:
        return f"{self.text!r} is not known{f' (valid: {self.valid})' if self.valid else ''}"


class Word(StrEnum):
    """A value of an enumeration.

    Fields that hold one are `str`; `read` converts the text. If the field were the enum itself, an object with a typo
    could not be decoded and so could not be held. If the unknown value were a member of the enum, the type checker
    would let it fall into an `else`. So every reader has to handle Unknown.
    """

    @classmethod
    def read(cls, text: str) -> Self | Unknown:
        try:
            return cls(text)
        except ValueError:
            return Unknown(text, ", ".join(cls))


def doc(
    text: str, *, choice: type[Word] | None = None, required: bool = False, brief: bool = False, **schema: Any
) -> msgspec.Meta:
    """Metadata of a field: its description and what the CRD schema says beyond its type.

    The API server enforces it. Decoding does not: existing objects must be readable, however invalid they are.
    `brief`: the CRD has only the required fields of the objects in this field.
    """
    if choice:
        schema["enum"] = [word.value for word in choice]
    return msgspec.Meta(description=text, extra_json_schema=schema, extra={"required": required, "brief": brief})


def list_map(by: str) -> dict[str, Any]:
    """Schema of a list with this key field, so that several field managers can own items of it."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [by]}


ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""Schema of a list that is replaced as a whole."""


def rule(cel: str, message: str, **more: Any) -> dict[str, Any]:
    """A CEL validation rule of a CRD."""
    return {"rule": cel, "message": message, **more}
