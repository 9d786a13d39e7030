"""The answer to "why is it still there, or why may I not delete it?" (values only)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from unwind.api.meta import ObjectRef
from unwind.api.resources import Resource


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """One object, with what it is called in a command."""

    resource: Resource
    name: str
    namespace: str = ""
    uid: str = ""
    exact: bool = False
    """Only this version of it can be spoken of: another does not answer."""

    @property
    def ref(self) -> ObjectRef:
        it = self.resource
        return ObjectRef(
            group=it.group, version=it.version, kind=it.kind, namespace=self.namespace, name=self.name, uid=self.uid
        )

    def __str__(self) -> str:
        return str(self.ref)


class Effect(StrEnum):
    """What is to be known of a command before it is typed."""

    LOOKS = "only looks"
    """It changes nothing: for whoever has to find out more."""
    SAFE = "safe"
    """Nothing is left behind that nobody looks after."""
    DELETES = "deletes something"
    """Nothing is left behind, but something goes for good whose deletion nobody has asked for yet."""
    LEAVES = "leaves something behind"
    """Somebody was to clean something up, or to check something, and now does not."""


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """Something that can be done, as commands to be typed one after the other."""

    commands: tuple[str, ...]
    effect: Effect
    about: str
    """What it does; where it leaves something behind, what."""
    by: str = ""
    """Who has to type it, if not anyone who has the right."""
    afterwards: tuple[str, ...] = ()
    """What puts back what was changed, once the object is gone."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that holds an object, or speaks against its deletion."""

    reason: str
    message: str
    actor: str = ""
    """Who must act."""
    since: datetime | None = None
    behind: tuple[ObjectRef, ...] = ()
    """What it waits for: the same question is asked about each of them."""
    stands: bool = False
    """Nobody deletes what is behind it, and nobody will: whoever runs it has to."""
    elsewhere: ObjectRef | None = None
    """The cluster that what is behind it is on; None for the one that was asked."""
    remedies: tuple[Remedy, ...] = ()


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One reason in the chain: what waits for what."""

    depth: int
    object: ObjectRef
    cluster: str = ""
    """Where the object is, if not where it was asked."""
    reason: str
    message: str
    actor: str = ""
    since: datetime | None = None


class State(StrEnum):
    """The answer, as one word."""

    HELD = "Held"
    """It is being deleted, and something holds it."""
    GOING = "Going"
    """It is being deleted, and nothing is known to hold it."""
    REFUSED = "Refused"
    """Nobody deletes it, and its deletion would be refused."""
    DELETABLE = "Deletable"
    """Nobody deletes it, and its deletion would be accepted."""
    NOT_KNOWN = "NotKnown"
    """Whether it could be deleted cannot be found out."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Why an object is still there, or may not be deleted, and what can be done."""

    object: ObjectRef
    cluster: str = ""
    """The member it is on, if one was asked."""
    state: State
    verdict: str
    """In one line."""
    since: datetime | None = None
    """Since when it is being deleted."""
    chain: tuple[Link, ...] = ()
    only: str = ""
    """Who alone can act, where nothing that can be typed here frees it."""
    remedies: tuple[Remedy, ...] = ()
    notes: tuple[str, ...] = ()
    """What else is to be known: what could not be looked at, what would happen next."""
