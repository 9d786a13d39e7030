"""Registers deleters: functions, classes, and those of plugins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from fnmatch import fnmatchcase
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from unwind.deleters.context import Delete, End
from unwind.deleters.memo import NAME
from unwind.errors import UnwindError
from unwind.kube.client import Client

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Object


# Matches kinds by group, version and kind, with wildcards.


class Match(Enum):
    """Whether a resource matches."""

    YES = "yes"
    NO = "no"
    OTHER_VERSION = "other version"
    """The kind matches but its version does not: the same object in another schema."""


class Kinds(msgspec.Struct, frozen=True):
    """One kind, or a pattern with `*`: `apps/v1` `Deployment`, `*.azure.com/*` `*`."""

    api_version: str
    kind: str

    @classmethod
    def parse(cls, text: str) -> Kinds:
        """Parse `group/version/Kind`, `version/Kind` for the core group, or `*` for everything."""
        if text == "*":
            return cls("*", "*")
        api_version, _, kind = text.rpartition("/")
        if not api_version or not kind or api_version.count("/") > 1:
            raise UnwindError(f"invalid kind {text!r}", remedy="use group/version/Kind, with * as a wildcard")
        return cls(api_version, kind)

    def match(self, resource: Resource) -> Match:
        """Whether a resource matches."""
        if not fnmatchcase(resource.kind, self.kind):
            return Match.NO
        if fnmatchcase(resource.api_version, self.api_version):
            return Match.YES
        group, _, _ = self.api_version.rpartition("/")
        return Match.OTHER_VERSION if fnmatchcase(resource.group, group) else Match.NO

    def covers(self, other: Kinds) -> bool:
        """Whether everything that the other pattern matches is matched by this one, too."""
        return fnmatchcase(other.api_version, self.api_version) and fnmatchcase(other.kind, self.kind)

    def __str__(self) -> str:
        return "*" if (self.api_version, self.kind) == ("*", "*") else f"{self.api_version}/{self.kind}"


F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__unwind_deleter__"

# The built-in deleters are far apart, so that others fit before, between and after them.
FIRST, EARLY, USUAL, LATE = -1000, -100, 0, 100


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A deleter, and the objects that it is for."""

    name: str
    """Its name, which is also its scope in memos."""
    kinds: tuple[Kinds, ...]
    delete: Delete
    order: int = USUAL
    """Lower runs first, and so finishes last. Ties are ordered by name."""
    when: Callable[[Any], bool] | None = None
    """Restricts it to objects for which this is true. Called until it is true; a deleter that has started stays in the
    chain."""
    model: type | None = None
    """The type that objects are decoded into; without one they are dicts."""
    metadata_only: bool = False
    """It reads only `metadata`, so the full object need not be fetched for it."""
    external: bool = False
    """It acts on the external resource. It is called only where Unwind itself deletes that resource: not while the
    operator of the kind is running."""
    source: str = "unwind"
    """The package that it comes from."""
    about: str = ""
    """What it does, in one line."""


class NamespaceCredentials(msgspec.Struct, frozen=True):
    """A Secret with credentials, in the namespace of the object that it is for."""

    name: str
    required: bool = False
    """Whether the object is held without the Secret. Otherwise the identity of the manager is used then."""


class External(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds whose objects represent resources outside the cluster, and how to delete those."""

    name: str
    kinds: tuple[Kinds, ...]
    open: Callable[[Client], AbstractAsyncContextManager[End]]
    """Called with the client of the cluster when the first object of these kinds is deleted; closed at shutdown."""
    open_with: Callable[[Mapping[str, str]], AbstractAsyncContextManager[End]] | None = None
    """The same for objects on a member cluster: called with the values of the Secret that maps credentials to the
    member and the namespace. Without it, objects on members are held."""
    credentials: Callable[[Any], NamespaceCredentials] | None = None
    """For an object on the management cluster: the Secret in its namespace whose values `open_with` is called with.
    Without it, `open` is called. It raises PermanentError if the object names the Secret in an invalid way."""
    operator: Callable[[Client], Awaitable[str]] | None = None
    """The name of the operator that deletes these resources itself, if it is running on this cluster; empty if it is
    not running. It raises if that is unknown."""
    finalizers: tuple[str, ...] = ()
    """The finalizers of that operator. Unwind removes them if the operator is not running, after the external resource
    is verified absent."""
    source: str = "unwind"
    about: str = ""


def deleter(
    api_version: str,
    kind: str,
    *,
    name: str = "",
    order: int = USUAL,
    when: Callable[[Any], bool] | None = None,
    model: type | None = None,
    external: bool = False,
) -> Callable[[F], F]:
    """Register a function, or a class with a method `delete`, as a deleter for a kind. Can be repeated.

        @deleter("example.dev/v1", "Bucket")
        async def empty_first(ctx, obj, next): ...

    Both arguments may contain `*`. `external`: it acts on the external resource, with a client of the external end, so
    it is not called while the operator of the kind is running. The function itself is unchanged and can be called.
    """

    def mark(it: F) -> F:
        before: Registration | None = vars(it).get(_MARK)
        kinds = (Kinds(api_version, kind), *(before.kinds if before else ()))
        called = name or (before.name if before else "") or _kebab(it.__name__)
        _check(called, model)
        delete: Any = it  # of a class, an instance takes its place
        marked = Registration(
            name=called, kinds=kinds, delete=delete, order=order, when=when, model=model, external=external
        )
        setattr(it, _MARK, marked)
        return it

    return mark


def registrations(it: object, *, source: str) -> Iterable[Registration | External]:
    """The registrations that a value provides: a module, a deleter, an external end, or several of these."""
    if isinstance(it, Registration | External):
        yield msgspec.structs.replace(it, source=source)
    elif isinstance(it, ModuleType):
        # The same deleter under two names counts once.
        found = {id(var): var for var in vars(it).values() if _marked(var) or isinstance(var, Registration | External)}
        for item in found.values():
            yield from registrations(item, source=source)
    elif _marked(it):
        yield _registration(it, source=source)
    elif isinstance(it, Iterable) and not isinstance(it, str):
        for item in it:
            yield from registrations(item, source=source)
    else:
        raise UnwindError(f"not a deleter: {it!r}", remedy="use @deleter(…), or a module that contains deleters")


def _marked(it: object) -> bool:
    return isinstance(getattr(it, "__dict__", {}).get(_MARK), Registration)


def _registration(it: Any, *, source: str) -> Registration:
    mark: Registration = vars(it)[_MARK]
    made: Any = it() if inspect.isclass(it) else it
    delete: Delete = made.delete if made is not it else it
    about = (inspect.getdoc(it) or "").partition("\n")[0]
    return msgspec.structs.replace(mark, delete=delete, source=source, about=about)


def _check(name: str, model: type | None) -> None:
    if not NAME.fullmatch(name):
        raise UnwindError(f"invalid deleter name {name!r}", remedy="use up to 32 of a-z, 0-9 and -")
    if model is None:
        return
    tombstone: Object = {"apiVersion": "v1", "kind": "Any", "metadata": {"name": "n", "namespace": "", "uid": "u"}}
    try:
        msgspec.convert(tombstone, model, strict=False)
    except msgspec.ValidationError as error:
        # Fail here, and not when an object is gone and its deleter runs for the last time.
        raise UnwindError(
            f"cannot decode {model.__name__} from the tombstone of an object: {error}",
            remedy="give every field except metadata a default",
        ) from None


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", name).lower().strip("-")
