"""What the value `Cascading` of the label counts in an object: its dependents, by one of its fields (pure).

Each count is evaluated in Python, for the webhook and the removals, and in CEL, by the admission policies. What it
counts in Namespaces and CRDs is in `rules`: `Contents`, and `with_contents`, which decides. `namespace_cache` and
`contents_reader` count it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Form(Enum):
    """How a field gives the number of dependents."""

    NUMBER = auto()
    ITEMS = auto()
    """The length of the list."""
    BOUND = auto()
    """One if the phase is Bound."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """A field of an object that gives the number of its dependents."""

    path: tuple[str, str]
    form: Form
    what: str
    """Its name in a denial."""
    default: int = 0
    """The value if the field is missing: the default of the API."""

    def of(self, obj: Mapping[str, Any]) -> int:
        """The number. Raises ValueError if the field has another type."""
        outer = obj.get(self.path[0])
        value = outer.get(self.path[1]) if isinstance(outer, dict) else None
        if value is None:
            return self.default
        match self.form:
            case Form.NUMBER if isinstance(value, int) and not isinstance(value, bool):
                return value
            case Form.ITEMS if isinstance(value, list):
                return len(value)
            case Form.BOUND if isinstance(value, str):
                return int(value == "Bound")
        raise ValueError(f"{'.'.join(self.path)} is {value!r}")

    def cel(self, obj: str, *, some: Callable[[str], str], none: str, unread: str) -> str:
        """The same as a CEL expression over the object `obj`.

        Its value is `some` of the count if that is positive, `none` if it is zero, and `unread` if the field has
        another type.
        """
        outer = f"{obj}.{self.path[0]}"
        value = f"{outer}.{self.path[1]}"
        there = f"has({outer}) && has({value}) && {value} != null"
        unsaid = some(str(self.default)) if self.default > 0 else none
        # The type is checked at run time: a custom resource may have anything there.
        type_, holds, count = {
            Form.NUMBER: ("int", f"{value} > 0", value),
            Form.ITEMS: ("list", f"size({value}) > 0", f"size({value})"),
            Form.BOUND: ("string", f"{value} == 'Bound'", "1"),
        }[self.form]
        return f"(!({there}) ? {unsaid} : type({value}) != {type_} ? {unread} : {holds} ? {some(count)} : {none})"


REPLICAS = Count(path=("spec", "replicas"), form=Form.NUMBER, what="replicas", default=1)
SCHEDULED_PODS = Count(path=("status", "currentNumberScheduled"), form=Form.NUMBER, what="scheduled pods")
JOB_ACTIVE = Count(path=("status", "active"), form=Form.NUMBER, what="active pods")
CRON_JOB_ACTIVE = Count(path=("status", "active"), form=Form.ITEMS, what="active jobs")
CLAIM_BOUND = Count(path=("status", "phase"), form=Form.BOUND, what='"Bound" status pvc')
VOLUME_BOUND = Count(path=("status", "phase"), form=Form.BOUND, what='"Bound" status pv')
MATCHING_CLUSTERS = Count(path=("status", "matchingClusters"), form=Form.ITEMS, what="matching clusters")
