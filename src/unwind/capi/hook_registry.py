"""The rules of each hook, built-in and from plugins."""

from __future__ import annotations

import asyncio
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from unwind import logs
from unwind.api.fields import Unknown
from unwind.api.hooks import Hook
from unwind.errors import UnwindError
from unwind.hooks import rules

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from importlib.metadata import EntryPoint

    from unwind.hooks import Rule


log = logs.get(__name__)

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
                raise UnwindError(
                    f"unknown hook {self.name!r}", remedy=f"name the entry point by its hook: {', '.join(Hook)}"
                )
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
                log.warning(
                    "hook plugin failed to load",
                    package=plugin.source,
                    hook=plugin.name,
                    why=plugin.error,
                    remedy="fix or uninstall it, then restart the manager",
                )
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
            f"cannot load the hook rules of package {plugin.source} for {plugin.name}: {plugin.error};"
            " fix or uninstall the package, then restart the manager"
            for plugin in self._plugins
            if plugin.error and plugin.concerns(hook)
        ]


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value
