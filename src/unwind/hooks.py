"""The public API for rules at Cluster API's lifecycle hooks: what a cluster waits for before it continues.

    class Freeze(msgspec.Struct):
        frozen_until: str = ""

    @hook(Hook.BEFORE_CLUSTER_UPGRADE, settings=Freeze)
    async def freeze(request: BeforeClusterUpgrade, ctx: HookContext[Freeze]) -> Wait | None: ...

A rule that returns None lets the cluster go on, as far as it is concerned. It is asked again as long as it says Wait.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from types import ModuleType
from typing import Any, Generic, TypeVar

import msgspec

from unwind.api.hooks import (
    AfterClusterUpgrade,
    AfterControlPlaneInitialized,
    AfterControlPlaneUpgrade,
    AfterWorkersUpgrade,
    BeforeClusterCreate,
    BeforeClusterDelete,
    BeforeClusterUpgrade,
    BeforeControlPlaneUpgrade,
    BeforeWorkersUpgrade,
    Hook,
)
from unwind.errors import UnwindError
from unwind.kube.client import Client

__all__ = [
    "AfterClusterUpgrade",
    "AfterControlPlaneInitialized",
    "AfterControlPlaneUpgrade",
    "AfterWorkersUpgrade",
    "BeforeClusterCreate",
    "BeforeClusterDelete",
    "BeforeClusterUpgrade",
    "BeforeControlPlaneUpgrade",
    "BeforeWorkersUpgrade",
    "Hook",
    "HookContext",
    "Wait",
    "hook",
]

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__unwind_hook__"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

LONGEST = 10
"""Seconds. Cluster API asks no sooner than it was told to, whatever happens meanwhile."""


class Wait(msgspec.Struct, frozen=True):
    """The cluster has to wait."""

    why: str
    """For what, for people; it lands in the Cluster's conditions, so there is no time and no count in it that moves."""
    seconds: int = LONGEST
    """When to ask again."""


class HookContext(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What a rule can use."""

    client: Client
    """The management cluster."""
    settings: S
    """Of the ExtensionConfig, as the rule's type says; the plain `dict[str, str]` where it names none."""
    remaining: float
    """Seconds until Cluster API gives up waiting for the answer."""


Decide = Callable[[Any, HookContext[Any]], Awaitable[Wait | None]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook is answered with, as far as one rule is concerned."""

    name: str
    hook: Hook
    decide: Decide
    settings: type | None = None
    """What the ExtensionConfig's settings are read into: every field with a default, names as in the settings."""
    source: str = "unwind"
    about: str = ""
    """What it does, in a line."""


def hook(which: Hook, *, name: str = "", settings: type | None = None) -> Callable[[F], F]:
    """Mark an async function as a rule at a hook. May be used several times on one. It can still be called."""

    def mark(it: F) -> F:
        if not inspect.iscoroutinefunction(it):
            raise UnwindError(f"{it!r} is no rule", remedy="write it as an async function of a request and a context")
        called = name or it.__name__.replace("_", "-").lower().strip("-")
        if not _NAME.fullmatch(called):
            raise UnwindError(f"{called!r} cannot be the name of a rule", remedy="use up to 63 of a-z, 0-9 and -")
        about = (inspect.getdoc(it) or "").partition("\n")[0]
        rule = Rule(name=called, hook=which, decide=it, settings=settings, about=about)
        setattr(it, _MARK, (rule, *vars(it).get(_MARK, ())))
        return it

    return mark


def rules(it: object, *, source: str) -> Iterable[Rule]:
    """What something has to offer: a module, a rule, or several of these."""
    if isinstance(it, Rule):
        yield msgspec.structs.replace(it, source=source)
    elif isinstance(it, ModuleType):
        found = {id(one): one for one in vars(it).values() if isinstance(one, Rule) or _marked(one)}
        for one in found.values():
            yield from rules(one, source=source)
    elif marked := _marked(it):
        for rule in marked:
            yield msgspec.structs.replace(rule, source=source)
    elif isinstance(it, Iterable) and not isinstance(it, str):
        for one in it:
            yield from rules(one, source=source)
    else:
        raise UnwindError(f"{it!r} is no rule", remedy="mark it with @hook(…), or name a module with some in it")


def _marked(it: object) -> tuple[Rule, ...]:
    found = getattr(it, "__dict__", {}).get(_MARK, ())
    return found if isinstance(found, tuple) else ()
