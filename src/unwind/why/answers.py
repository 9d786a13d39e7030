"""The result of a diagnosis: what blocks a deletion, who must act, and which commands help (values only)."""

from __future__ import annotations

import json
import shlex
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.meta import ObjectRef, ref_of
from unwind.api.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Sequence


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """One object, with its name in commands."""

    resource: Resource
    name: str
    namespace: str = ""
    uid: str = ""
    exact: bool = False
    """Commands must name this version, because the others are not served."""

    @property
    def ref(self) -> ObjectRef:
        return ref_of(self.resource, self)

    def __str__(self) -> str:
        return str(self.ref)


class Effect(StrEnum):
    """The side effects of a remedy."""

    LOOKS = "only looks"
    """Changes nothing: it only shows more information."""
    SAFE = "safe"
    """Leaves nothing behind and deletes nothing else."""
    DELETES = "deletes something"
    """Leaves nothing behind, but deletes an object whose deletion was not requested yet."""
    LEAVES = "leaves something behind"
    """Skips a cleanup or a check of another component."""


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Commands to run one after the other."""

    commands: tuple[str, ...]
    effect: Effect
    about: str
    """What the commands do; if they leave something behind, what."""
    by: str = ""
    """Who has to run them; empty for any user with the permissions."""
    afterwards: tuple[str, ...] = ()
    """Commands that restore what was changed, once the object is gone."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why an object is blocked, or why its deletion would be denied."""

    reason: str
    message: str
    actor: str = ""
    """Who must act."""
    since: datetime | None = None
    behind: tuple[ObjectRef, ...] = ()
    """The objects that it waits for. Each of them is diagnosed as well."""
    stands: bool = False
    """The deletion of the objects in `behind` was not requested: their owner has to delete or stop them."""
    elsewhere: ObjectRef | None = None
    """The cluster of the objects in `behind`; None for the same cluster."""
    remedies: tuple[Remedy, ...] = ()


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One link in the chain of blockers."""

    depth: int
    object: ObjectRef
    cluster: str = ""
    """The cluster of the object, if it is another one."""
    reason: str
    message: str
    actor: str = ""
    since: datetime | None = None


def link_to(finding: Finding, ref: ObjectRef, *, cluster: str, depth: int) -> Link:
    """The link of an object that a finding is about."""
    return Link(
        depth=depth,
        object=ref,
        cluster=cluster,
        reason=finding.reason,
        message=finding.message,
        actor=finding.actor,
        since=finding.since,
    )


class AnswerState(StrEnum):
    """The result as a CamelCase word."""

    HELD = "Held"
    """It is being deleted, and something blocks it."""
    GOING = "Going"
    """It is being deleted, and no blocker was found."""
    REFUSED = "Refused"
    """It is not being deleted, and its deletion would be denied."""
    DELETABLE = "Deletable"
    """It is not being deleted, and its deletion would be accepted."""
    NOT_KNOWN = "NotKnown"
    """Whether it can be deleted could not be determined."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Why an object still exists or cannot be deleted, and what to do about it."""

    object: ObjectRef
    cluster: str = ""
    """The member that the object is on, if the question was about a member."""
    state: AnswerState
    verdict: str
    """A summary in one line."""
    since: datetime | None = None
    """When deletion was requested."""
    chain: tuple[Link, ...] = ()
    only: str = ""
    """Who must act, if none of the remedies unblocks the object."""
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    """Further information: what could not be read, what would happen next."""


# kubectl commands for remedies: each can be run as printed and changes only the object that was diagnosed.


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
        return self.call(verb, *where, kubectl_name(thing), *words)

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


def kubectl_name(thing: Thing) -> str:
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
