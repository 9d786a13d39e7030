"""The rules of each hook, built-in and from plugins, and their combined answer."""

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
from unwind.plugins import TaskCancellation, error_message

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from importlib.metadata import EntryPoint

    from unwind.api.hooks import HookRequest
    from unwind.hooks import Rule
    from unwind.kube.client import Client


log = logs.get(__name__)

_TOLD = 500


async def ask_rules(rules: Sequence[Rule], request: HookRequest, *, client: Client, within: float) -> list[Wait]:
    """The waits of these rules. They run concurrently, each with a timeout of so many seconds.

    A rule that fails never lets a cluster proceed: every failure is a wait.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_asked(rule, request, client, within)) for rule in rules]
    # A rule that cancels its own task has no result.
    said = [
        _broken(rule, "cancelled") if task.cancelled() else task.result()
        for rule, task in zip(rules, tasks, strict=True)
    ]
    return [item for item in said if item is not None]


def together(waits: Iterable[Wait]) -> Wait | None:
    """All waits as one: retried after the shortest, with a message that does not depend on their order."""
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
        return _broken(rule, f"cannot read its settings: {error_message(error)}")
    cancellation = TaskCancellation()
    try:
        async with asyncio.timeout(within) as limit:
            said = await rule.decide(request, HookContext(client=client, settings=settings, remaining=within))
        cancellation.check()
        if limit.expired():  # a rule may have swallowed the cancellation
            raise TimeoutError
        return _bounded(rule, said)
    except TimeoutError:
        cancellation.check()
        return _broken(rule, "timed out")
    except BaseException as error:  # a rule of another package may raise anything
        cancellation.check(error)
        if isinstance(error, asyncio.CancelledError):
            return _broken(rule, "cancelled")
        log.warning("hook rule failed", rule=rule.name, source=rule.source, hook=rule.hook.value, exc_info=error)
        return _broken(rule, f"failed: {type(error).__name__}: {error}")


def _bounded(rule: Rule, said: Wait | None) -> Wait | None:
    if said is None:
        return None
    if not isinstance(said, Wait):
        return _broken(rule, f"returned {type(said).__name__}, want None or Wait")
    # 0 would mean proceed, and after less than that Cluster API never calls again.
    return Wait(str(said.why), min(LONGEST, max(1, int(said.seconds))))


def _broken(rule: Rule, why: str) -> Wait:
    told = " ".join(why.split())
    return Wait(f"rule {rule.name} of {rule.source} blocks the cluster: {told[:_TOLD]}", LONGEST)


# The rules of each hook: built-in ones and those of other packages

GROUP = "unwind.hooks"
"""The entry point group of other packages. An entry point is named after its hook: `BeforeClusterUpgrade`."""


class HookPlugin:
    """The rules of another package for one hook."""

    def __init__(self, name: str, load: Callable[[], object], *, source: str, beside: Collection[str] = ()) -> None:
        """`beside`: the names of all entry points of that package."""
        self.name = name
        self.source = source
        self.rules: tuple[Rule, ...] = ()
        self.error = ""
        self._load = load
        self._known = {name, *beside}

    def concerns(self, hook: Hook) -> bool:
        """Whether it applies to a hook. An unknown name applies to all, because its hook is not known."""
        return self.name == hook.value or isinstance(Hook.read(self.name), Unknown)

    def load(self) -> None:
        """Import the plugin. On failure `error` is set, and its hook is blocked."""
        try:
            if isinstance(Hook.read(self.name), Unknown):
                raise UnwindError(f"unknown hook {self.name!r}")
            found = tuple(rules(self._load(), source=self.source))
            for rule in found:
                if rule.hook.value not in self._known:
                    # Without an entry point, a later failure of this rule could not block its hook.
                    raise UnwindError(
                        f"rule {rule.name} is for {rule.hook.value}, but the package has no entry point of that name",
                        remedy=f"declare an entry point {rule.hook.value} in the package",
                    )
            self.rules = tuple(rule for rule in found if rule.hook.value == self.name)
            if not self.rules:
                raise UnwindError(
                    f"the entry point has no rule for {self.name}",
                    remedy=f"mark a rule with @hook for {self.name}, or remove the entry point",
                )
        except BaseException as error:  # noqa: BLE001 - an import of another package may raise anything
            self.error = str(error) if isinstance(error, UnwindError) else f"{type(error).__name__}: {error}"


def installed() -> list[HookPlugin]:
    """The plugins of the installed packages."""
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
    """All rules, as a component that loads plugins."""

    name = "hook rules"

    def __init__(self, known: Iterable[Rule] = (), *, plugins: Iterable[HookPlugin] = ()) -> None:
        self._known = tuple(known)
        self._plugins = tuple(plugins)
        self._loaded = not self._plugins

    @property
    def ready(self) -> bool:
        """Whether all plugins are loaded."""
        return self._loaded

    async def run(self) -> None:
        """Load the plugins, then wait until cancelled."""
        if not self._loaded:
            # An import reads files and may take a second: not on the event loop.
            await asyncio.to_thread(self.load)
        await asyncio.Event().wait()

    def load(self) -> None:
        """Import the plugins, one by one."""
        for plugin in self._plugins:
            plugin.load()
            if plugin.error:
                log.warning("hook plugin failed to load", package=plugin.source, hook=plugin.name, why=plugin.error)
        self._loaded = True

    def rules(self, hook: Hook) -> tuple[Rule, ...]:
        """The rules of a hook."""
        found = [rule for rule in self._known if rule.hook is hook]
        for plugin in self._plugins:
            found += [rule for rule in plugin.rules if rule.hook is hook]
        return tuple(found)

    def broken(self, hook: Hook) -> list[str]:
        """Why a hook is blocked, whatever its rules answer."""
        return [
            f"cannot load the rules of {plugin.source} for {plugin.name}: {plugin.error}"
            for plugin in self._plugins
            if plugin.error and plugin.concerns(hook)
        ]


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
