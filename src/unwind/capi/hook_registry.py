"""What the rules at a hook say together."""

from __future__ import annotations

import asyncio
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import msgspec

from unwind import logs
from unwind.api.fields import Unknown
from unwind.api.hooks import Hook
from unwind.errors import UnwindError
from unwind.hooks import LONGEST, HookContext, Wait, rules
from unwind.plugins import Cancellation, described

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from importlib.metadata import EntryPoint

    from unwind.api.hooks import HookRequest
    from unwind.hooks import Rule
    from unwind.kube.client import Client


log = logs.get(__name__)

_TOLD = 500


async def ask(rules: Sequence[Rule], request: HookRequest, *, client: Client, within: float) -> list[Wait]:
    """What the cluster has to wait for, as these rules say. They are asked side by side, each for so many seconds.

    None of them can let a cluster go on by failing: whatever goes wrong is something to wait for.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_asked(rule, request, client, within)) for rule in rules]
    # A rule that cancels its own task has no result.
    said = [
        _broken(rule, "it was cancelled") if task.cancelled() else task.result()
        for rule, task in zip(rules, tasks, strict=True)
    ]
    return [item for item in said if item is not None]


def together(waits: Iterable[Wait]) -> Wait | None:
    """All of it as one: asked again as soon as the first of them may have changed, whatever the order they come in."""
    found = list(waits)
    if not found:
        return None
    return Wait("; ".join(sorted({item.why for item in found})), min(item.seconds for item in found))


async def _asked(rule: Rule, request: HookRequest, client: Client, within: float) -> Wait | None:
    try:
        settings: Any = request.settings
        if rule.settings is not None:
            settings = msgspec.convert(request.settings, rule.settings, strict=False)
    except BaseException as error:  # noqa: BLE001 - the type is of another package, and may raise anything
        return _broken(rule, f"its settings cannot be read: {described(error)}")
    cancellation = Cancellation()
    try:
        async with asyncio.timeout(within) as limit:
            said = await rule.decide(request, HookContext(client=client, settings=settings, remaining=within))
        cancellation.check()
        if limit.expired():  # a rule may have swallowed that
            raise TimeoutError
        return _bounded(rule, said)
    except TimeoutError:
        cancellation.check()
        return _broken(rule, "it gave no answer in time")
    except BaseException as error:  # a rule of another package may raise anything
        cancellation.check(error)
        if isinstance(error, asyncio.CancelledError):
            return _broken(rule, "it was cancelled")
        log.warning("a rule failed", rule=rule.name, source=rule.source, hook=rule.hook.value, exc_info=error)
        return _broken(rule, f"it failed: {type(error).__name__}: {error}")


def _bounded(rule: Rule, said: Wait | None) -> Wait | None:
    if said is None:
        return None
    if not isinstance(said, Wait):
        return _broken(rule, f"it answered {type(said).__name__}, which is neither None nor Wait")
    # 0 would mean to go on, and after less than that Cluster API never asks again.
    return Wait(str(said.why), min(LONGEST, max(1, int(said.seconds))))


def _broken(rule: Rule, why: str) -> Wait:
    told = " ".join(why.split())
    return Wait(f"the rule {rule.name} of {rule.source} holds it: {told[:_TOLD]}", LONGEST)


# The rules that there are at each hook: those that come along, and those of other packages.

GROUP = "unwind.hooks"
"""The entry points of other packages. Each is named by the hook that it has rules for: `BeforeClusterUpgrade`."""


class HookPlugin:
    """Rules of another package at one hook."""

    def __init__(self, name: str, load: Callable[[], object], *, source: str, beside: Collection[str] = ()) -> None:
        """`beside`: the names of all entry points of that package."""
        self.name = name
        self.source = source
        self.rules: tuple[Rule, ...] = ()
        self.error = ""
        self._load = load
        self._known = {name, *beside}

    def concerns(self, hook: Hook) -> bool:
        """Whether it has a say at a hook. Where its name is none, nobody knows at which it would, so it is all."""
        return self.name == hook.value or isinstance(Hook.read(self.name), Unknown)

    def load(self) -> None:
        """Import it. If that fails, `error` says why, and its hook is held."""
        try:
            if isinstance(Hook.read(self.name), Unknown):
                raise UnwindError(f"there is no hook {self.name!r}")
            found = tuple(rules(self._load(), source=self.source))
            for rule in found:
                if rule.hook.value not in self._known:
                    # Were it to break one day, nobody would know to hold that hook.
                    raise UnwindError(f"{rule.name} is for {rule.hook.value}, for which there is no entry point")
            self.rules = tuple(rule for rule in found if rule.hook.value == self.name)
            if not self.rules:
                raise UnwindError(f"there is no rule for {self.name} in it")
        except BaseException as error:  # noqa: BLE001 - an import of another package may raise anything
            self.error = str(error) if isinstance(error, UnwindError) else f"{type(error).__name__}: {error}"


def installed() -> list[HookPlugin]:
    """The plugins of the packages that are installed."""
    points = [(_source(point), point) for point in entry_points(group=GROUP)]
    return [
        HookPlugin(
            point.name,
            point.load,
            source=source,
            beside=[other.name for whose, other in points if whose == source],
        )
        for source, point in points
    ]


class HookRegistry:
    """All rules, as a part of the process that loads those of others."""

    name = "hook rules"

    def __init__(self, known: Iterable[Rule] = (), *, plugins: Iterable[HookPlugin] = ()) -> None:
        self._known = tuple(known)
        self._plugins = tuple(plugins)
        self._loaded = not self._plugins

    @property
    def ready(self) -> bool:
        """Whether it is known who has a say."""
        return self._loaded

    async def run(self) -> None:
        """Load them, and be there until cancelled."""
        if not self._loaded:
            # An import reads files, and may take a second: not on the loop.
            await asyncio.to_thread(self.load)
        await asyncio.Event().wait()

    def load(self) -> None:
        """Import the plugins, one after the other."""
        for plugin in self._plugins:
            plugin.load()
            if plugin.error:
                log.warning("rules of a package do not load", package=plugin.source, hook=plugin.name, why=plugin.error)
        self._loaded = True

    def rules(self, hook: Hook) -> tuple[Rule, ...]:
        """Those at a hook."""
        found = [rule for rule in self._known if rule.hook is hook]
        for plugin in self._plugins:
            found += [rule for rule in plugin.rules if rule.hook is hook]
        return tuple(found)

    def broken(self, hook: Hook) -> list[str]:
        """Why a hook is held, whatever its rules say."""
        return [
            f"{plugin.source} has rules at {plugin.name}, and does not load: {plugin.error}"
            for plugin in self._plugins
            if plugin.error and plugin.concerns(hook)
        ]


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
