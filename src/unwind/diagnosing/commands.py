"""kubectl commands for remedies: each can be run as printed and changes only the object that was diagnosed."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.diagnosing.answers import Thing


class Kubectl(msgspec.Struct, frozen=True, kw_only=True):
    """kubectl for one cluster."""

    options: tuple[str, ...] = ()
    """Options that select the cluster, if it is not the default."""
    first: tuple[str, ...] = ()
    """Commands to run first, such as one that saves the kubeconfig."""

    def lines(self, *commands: str) -> tuple[str, ...]:
        """These commands, preceded by the ones to run first."""
        return (*self.first, *commands)

    def call(self, *words: str) -> str:
        return " ".join(["kubectl", *self.options, shlex.join(words)])

    def on(self, verb: str, thing: Thing, *words: str) -> str:
        """`kubectl VERB KIND/NAME …`."""
        where = ("-n", thing.namespace) if thing.namespace else ()
        return self.call(verb, *where, called(thing), *words)

    def patch(self, thing: Thing, operations: Sequence[dict[str, Any]]) -> str:
        """Patch this very object: the API server refuses the patch for another object with the same name."""
        guard = [{"op": "test", "path": "/metadata/uid", "value": thing.uid}] if thing.uid else []
        return self.on("patch", thing, "--type=json", "-p", json.dumps([*guard, *operations], separators=(",", ":")))

    def merge(self, thing: Thing, patch: dict[str, Any]) -> str:
        return self.on("patch", thing, "--type=merge", "-p", json.dumps(patch, separators=(",", ":")))

    def delete(self, thing: Thing, *words: str) -> str:
        return self.on("delete", thing, "--wait=false", *words)

    def scale(self, thing: Thing, replicas: int) -> str:
        return self.on("scale", thing, f"--replicas={replicas}")


def called(thing: Thing) -> str:
    """An object as a kubectl argument, unambiguous even if other API groups have the same kind."""
    it = thing.resource
    if not it.group:
        return f"{it.kind.lower()}/{thing.name}"
    version = f"{it.version}." if thing.exact else ""
    return f"{it.plural}.{version}{it.group}/{thing.name}"


def without(place: str, index: int, value: Any) -> list[dict[str, Any]]:
    """JSON patch operations that remove one value from a list if it is still at that index."""
    path = f"{place}/{index}"
    return [{"op": "test", "path": path, "value": value}, {"op": "remove", "path": path}]
