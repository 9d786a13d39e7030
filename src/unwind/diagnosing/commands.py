"""The commands that are printed: each can be typed as it stands, and touches nothing but the object that was seen."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.diagnosing.answers import Thing


class Kubectl(msgspec.Struct, frozen=True, kw_only=True):
    """kubectl, as it is called for one cluster."""

    options: tuple[str, ...] = ()
    """What leads it to that cluster, if that is not where it goes by itself."""
    first: tuple[str, ...] = ()
    """What has to be typed before, so that these options mean something."""

    def lines(self, *commands: str) -> tuple[str, ...]:
        """These commands, with what has to come first."""
        return (*self.first, *commands)

    def call(self, *words: str) -> str:
        return " ".join(["kubectl", *self.options, shlex.join(words)])

    def on(self, verb: str, thing: Thing, *words: str) -> str:
        """`kubectl VERB KIND/NAME …`."""
        where = ("-n", thing.namespace) if thing.namespace else ()
        return self.call(verb, *where, called(thing), *words)

    def patch(self, thing: Thing, operations: Sequence[dict[str, Any]]) -> str:
        """Change the very object that was seen. Any other of its name is refused by the API server."""
        guard = [{"op": "test", "path": "/metadata/uid", "value": thing.uid}] if thing.uid else []
        return self.on("patch", thing, "--type=json", "-p", json.dumps([*guard, *operations], separators=(",", ":")))

    def merge(self, thing: Thing, patch: dict[str, Any]) -> str:
        return self.on("patch", thing, "--type=merge", "-p", json.dumps(patch, separators=(",", ":")))

    def delete(self, thing: Thing, *words: str) -> str:
        return self.on("delete", thing, "--wait=false", *words)

    def scale(self, thing: Thing, replicas: int) -> str:
        return self.on("scale", thing, f"--replicas={replicas}")


def called(thing: Thing) -> str:
    """An object as kubectl takes it, whatever else has a kind of that name."""
    it = thing.resource
    if not it.group:
        return f"{it.kind.lower()}/{thing.name}"
    version = f"{it.version}." if thing.exact else ""
    return f"{it.plural}.{version}{it.group}/{thing.name}"


def without(place: str, index: int, value: Any) -> list[dict[str, Any]]:
    """The operations that take one value out of a list, if it is still where it was."""
    path = f"{place}/{index}"
    return [{"op": "test", "path": path, "value": value}, {"op": "remove", "path": path}]
