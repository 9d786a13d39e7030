"""Output of objects as YAML documents or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

Format = Literal["yaml", "json"]


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        # Repeat shared values instead of using anchors: the output is for people.
        return True


def show(objects: Sequence[dict[str, Any]], form: Format) -> None:
    """Write objects to standard output in a form that `kubectl apply -f -` accepts."""
    sys.stdout.write(as_yaml(objects) if form == "yaml" else as_json(objects))


def as_yaml(objects: Sequence[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120, allow_unicode=True)


def as_json(objects: Sequence[dict[str, Any]]) -> str:
    whole = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    return msgspec.json.format(msgspec.json.encode(whole)).decode() + "\n"
