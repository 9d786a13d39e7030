"""The public API for rules at Cluster API's lifecycle hooks: what a cluster waits for before it continues.

    class Freeze(msgspec.Struct):
        frozen_until: str = ""

    @hook(Hook.BEFORE_CLUSTER_UPGRADE, settings=Freeze)
    async def freeze(request: BeforeClusterUpgrade, ctx: HookContext[Freeze]) -> Wait | None: ...

A rule that returns None does not block the cluster. A rule that returns Wait is called again later.
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
"""Seconds. Cluster API does not retry sooner, even if something changes meanwhile."""


class Wait(msgspec.Struct, frozen=True):
    """Block the cluster for now."""

    why: str
    """The reason, shown in the Cluster's conditions; it must not contain times or counts that change."""
    seconds: int = LONGEST
    """When to call the rule again."""


class HookContext(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The context of a rule."""

    client: Client
    """The client of the management cluster."""
    settings: S
    """The settings of the ExtensionConfig as the rule's type, or as `dict[str, str]` if it has none."""
    remaining: float
    """Seconds until Cluster API's timeout for the response."""


Decide = Callable[[Any, HookContext[Any]], Awaitable[Wait | None]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule on a hook: one part of the hook's response."""

    name: str
    hook: Hook
    decide: Decide
    settings: type | None = None
    """The type of the ExtensionConfig's settings: field names as in the settings, each with a default."""
    source: str = "unwind"
    about: str = ""
    """A one-line description."""


def hook(which: Hook, *, name: str = "", settings: type | None = None) -> Callable[[F], F]:
    """Mark an async function as a rule on a hook. May be repeated. The function stays callable."""

    def mark(it: F) -> F:
        if not inspect.iscoroutinefunction(it):
            raise UnwindError(f"{it!r} is not a rule", remedy="use an async function of a request and a context")
        called = name or it.__name__.replace("_", "-").lower().strip("-")
        if not _NAME.fullmatch(called):
            raise UnwindError(f"invalid rule name {called!r}", remedy="use up to 63 of a-z, 0-9 and -")
        about = (inspect.getdoc(it) or "").partition("\n")[0]
        rule = Rule(name=called, hook=which, decide=it, settings=settings, about=about)
        setattr(it, _MARK, (rule, *vars(it).get(_MARK, ())))
        return it

    return mark


def rules(it: object, *, source: str) -> Iterable[Rule]:
    """The rules in a module, a rule, or several of these."""
    if isinstance(it, Rule):
        yield msgspec.structs.replace(it, source=source)
    elif isinstance(it, ModuleType):
        found = {id(var): var for var in vars(it).values() if isinstance(var, Rule) or _marked(var)}
        for item in found.values():
            yield from rules(item, source=source)
    elif marked := _marked(it):
        for rule in marked:
            yield msgspec.structs.replace(rule, source=source)
    elif isinstance(it, Iterable) and not isinstance(it, str):
        for item in it:
            yield from rules(item, source=source)
    else:
        raise UnwindError(f"{it!r} is not a rule", remedy="mark it with @hook(…), or name a module that contains rules")


def _marked(it: object) -> tuple[Rule, ...]:
    found = getattr(it, "__dict__", {}).get(_MARK, ())
    return found if isinstance(found, tuple) else ()
