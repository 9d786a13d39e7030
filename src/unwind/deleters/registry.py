"""The registry of deleters, which selects the chain of an object."""

from __future__ import annotations

import asyncio
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import msgspec

from unwind.api.names import Reason
from unwind.deleters.chain import chain
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import External, Kinds, Match, Registration, registrations
from unwind.errors import UnwindError
from unwind.plugins import contained, error_message, missing_libraries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

    from unwind.api.resources import Resource
    from unwind.deleters.context import DeleteContext, DeleteFunc, End
    from unwind.kube.client import Object

GROUP = "unwind.deleters"
"""Entry point group of plugins. Each entry point is named after the kinds that it is for: `"example.dev/v1/Bucket"`."""
EXTERNAL_SCOPE = "External"
"""The scope of the memos of an external end in a removal. It is not a valid name of a deleter."""
_EVERYTHING = Kinds("*", "*")
# The memo key that a deleter with a predicate sets on an object that it is for.
_JOINED = "joined"


class Plugin:
    """Deleters of another package, loaded when an object of their kinds is first deleted."""

    def __init__(self, name: str, load: Callable[[], object], *, source: str) -> None:
        self.name = name
        self.source = source
        self._load = load
        self._offers: tuple[Registration | External, ...] | None = None
        self.error = ""
        try:
            self.kinds = Kinds.parse(name)
        except UnwindError as error:
            # The kinds that it is for are unknown, so it blocks every kind.
            self.kinds, self.error = _EVERYTHING, str(error)

    @property
    def loaded(self) -> bool:
        return self._offers is not None

    def load(self) -> None:
        """Import it, once. If that fails, `error` says why, and deletion of its kinds is blocked."""
        if self.loaded or self.error:
            return
        try:
            offers = tuple(registrations(self._load(), source=self.source))
            for offer in offers:
                for kinds in offer.kinds:
                    if not self.kinds.covers(kinds):
                        # If the plugin broke one day, nothing would tell that this kind must be blocked.
                        raise UnwindError(
                            f"{offer.name} is for {kinds}, which the entry point {self.name!r} does not cover",
                            remedy=f"declare an entry point for {kinds} in the package",
                        )
        except BaseException as error:  # noqa: BLE001 - an import of another package may raise anything
            self.error = str(error) if isinstance(error, UnwindError) else f"{type(error).__name__}: {error}"
            return
        self._offers = tuple(
            msgspec.structs.replace(offer, delete=contained(offer.delete)) if isinstance(offer, Registration) else offer
            for offer in offers
        )

    def offers(self) -> tuple[Registration | External, ...]:
        return self._offers or ()


def installed() -> list[Plugin]:
    """The plugins of the packages that are installed, without those that `skipped` names."""
    points = [point for point in entry_points(group=GROUP) if not missing_libraries(point)]
    return [Plugin(point.name, point.load, source=_source(point)) for point in points]


def skipped() -> dict[str, str]:
    """The entry points that are not used because their package was installed without the extra that they name, each
    with the reason. Their kinds are not held: they are deleted as if the plugin did not exist."""
    found: dict[str, str] = {}
    for point in entry_points(group=GROUP):
        if missing := missing_libraries(point):
            package = point.dist.name if point.dist else point.module
            extra = f"{package}[{','.join(point.extras)}]"
            found[point.name] = f"{', '.join(missing)} not installed; to use it: pip install '{extra}'"
    return found


class DeleterRegistry:
    """All deleters: the built-in ones and those of plugins."""

    def __init__(
        self,
        known: Iterable[Registration | External] = (),
        *,
        plugins: Iterable[Plugin] = (),
        broken: Callable[[Plugin], None] = lambda _: None,
    ) -> None:
        """`broken` is called for every plugin that fails to load."""
        self.plugins = tuple(plugins)
        self._broken = broken
        self._known = tuple(known)
        self._untried = set(self.plugins)
        self._loading = asyncio.Lock()
        self._links: dict[Resource, tuple[Registration, ...]] = {}
        self._choosy: dict[Resource, bool] = {}
        """Whether some of them have a predicate."""
        self._chains: dict[tuple[Resource, tuple[str, ...]], tuple[End, DeleteFunc[Object]]] = {}
        """The last chain of these deleters of a resource, with its end: most objects of a kind go through the same."""
        self._externals: dict[Resource, External | None] = {}

    async def load(self, resource: Resource | None = None) -> None:
        """Load the plugins that may be for a resource; all of them if none is given."""
        wanted = [plugin for plugin in self.plugins if plugin in self._untried and _concerns(plugin, resource)]
        if wanted:
            async with self._loading:
                for plugin in self._untried.intersection(wanted):
                    # An import reads files and may take a second: not on the event loop.
                    await asyncio.to_thread(plugin.load)
                    self._untried.discard(plugin)
                    if plugin.error:
                        self._broken(plugin)

    async def deleters(self, resource: Resource) -> tuple[Registration, ...]:
        """The deleters for a resource, in order, before predicates are applied.

        Raises PermanentError if they cannot be determined: nothing of the kind is then deleted.
        """
        if resource not in self._links:
            await self.load(resource)
            self._refuse_broken(resource)
            self._links[resource] = links = tuple(self._matching(resource))
            self._choosy[resource] = any(link.when for link in links)
        return self._links[resource]

    async def external(self, resource: Resource) -> External | None:
        """The external end for a resource; None if its objects represent nothing outside the cluster."""
        if resource in self._externals:
            return self._externals[resource]
        await self.load(resource)
        self._refuse_broken(resource)
        found = [item for item in self.all() if isinstance(item, External) and _for(item, resource)]
        if len(found) > 1:
            who = " and ".join(item.name for item in found)
            raise PermanentError(
                f"cannot delete {resource.kind} objects: {who} both register an external end for them",
                reason=Reason.HELD,
                remedy="remove one of them",
            )
        self._externals[resource] = external = found[0] if found else None
        return external

    async def chain(
        self, ctx: DeleteContext, obj: Object, end: End, *, left_to_others: bool = False
    ) -> DeleteFunc[Object]:
        """The chain for an object. Raises PermanentError if it cannot be determined. `left_to_others`: the external
        resource is deleted by others, so deleters that act on it are not called."""
        links = await self.deleters(ctx.resource)
        others: set[str] = set()
        if left_to_others:
            others = {link.name for link in links if link.external}
            links = tuple(link for link in links if link.name not in others)
            # What was recorded while Unwind deleted the external resource itself does not matter any more.
            others.add(EXTERNAL_SCOPE)
        if self._choosy[ctx.resource]:
            links = tuple([link for link in links if link.when is None or await self._joins(link, ctx, obj)])
        begun = ctx.memo.scopes()
        if begun and (missing := begun.difference([link.name for link in links], [end.name], others)):
            raise PermanentError(
                f"cannot delete {ctx.ref}: {' and '.join(sorted(missing))} started its deletion and is not installed",
                reason=Reason.HELD,
                remedy="install it again (`unwind deleters` lists what is installed)",
            )
        # No two deleters of a resource have the same name.
        key = ctx.resource, tuple([link.name for link in links])
        last = self._chains.get(key)
        if last is None or last[0] is not end:
            self._chains[key] = last = (end, chain(links, end))
        return last[1]

    def all(self) -> Iterable[Registration | External]:
        """Everything that is registered so far: the built-in deleters and those of loaded plugins."""
        yield from self._known
        for plugin in self.plugins:
            yield from plugin.offers()

    def _matching(self, resource: Resource) -> list[Registration]:
        links = [item for item in self.all() if isinstance(item, Registration) and _for(item, resource)]
        links.sort(key=lambda link: (link.order, link.name))
        twice = {link.name for link in links if sum(other.name == link.name for other in links) > 1}
        if twice:
            who = ", ".join(f"{link.name} of {link.source}" for link in links if link.name in twice)
            raise PermanentError(
                f"two deleters have the same name: {who}",
                reason=Reason.HELD,
                remedy="uninstall one of their packages, or rename one of the deleters",
            )
        return links

    def _refuse_broken(self, resource: Resource) -> None:
        for plugin in self.plugins:
            if plugin.error and _concerns(plugin, resource):
                raise PermanentError(
                    f"cannot delete {resource.kind} objects: plugin {plugin.source} cannot be loaded: {plugin.error}",
                    reason=Reason.HELD,
                    remedy="fix or uninstall it, then restart the manager",
                )

    async def _joins(self, link: Registration, ctx: DeleteContext, obj: Object) -> bool:
        """Whether a deleter is for this object. The answer is recorded: once the object is gone, it cannot be asked
        again."""
        memo = ctx.memo.of(link.name)
        if link.when is None or _JOINED in memo:
            return True
        if ctx.absent:
            return False
        try:
            joins = bool(link.when(obj if link.model is None else msgspec.convert(obj, link.model, strict=False)))
        except BaseException as error:
            # A plain function cannot be cancelled, so whatever it raises is its own error.
            raise PermanentError(
                f"cannot delete {ctx.ref}: deleter {link.name} failed to check whether it applies:"
                f" {error_message(error)}",
                reason=Reason.HELD,
                remedy="fix the plugin, then restart the manager",
            ) from error
        if joins:
            await memo.put(_JOINED)
        return joins


def _source(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _for(one: Registration | External, resource: Resource) -> bool:
    """Whether it is for a resource. Raises if it is for another version of the kind: it might misread the object, and
    it must not be skipped."""
    matches = [kinds.match(resource) for kinds in one.kinds]
    if Match.YES in matches:
        return True
    if Match.OTHER_VERSION in matches:
        wanted = ", ".join(str(kinds) for kinds in one.kinds)
        raise PermanentError(
            f"cannot delete {resource.kind} objects: deleter {one.name} is registered for {wanted},"
            f" not for {resource.api_version}",
            reason=Reason.HELD,
            remedy=f"change the version in its registration to {resource.group}/*",
        )
    return False


def _concerns(plugin: Plugin, resource: Resource | None) -> bool:
    return resource is None or plugin.kinds.match(resource) is not Match.NO
