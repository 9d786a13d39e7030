"""Admission reviews of profiles: a dependsOn that closes a cycle is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from unwind.addons.manifests import PROFILES_PATH
from unwind.api import admission
from unwind.api.fields import Model
from unwind.api.sveltos import CLUSTER_PROFILES, PROFILES
from unwind.errors import UnwindError
from unwind.planning.dependency_graph import Declared, closes_cycle, spelled
from unwind.server.routes import Response, Route, refusal

if TYPE_CHECKING:
    from unwind.kube.client import Client
    from unwind.server.routes import Request

_KINDS = {resource.kind: resource for resource in (CLUSTER_PROFILES, PROFILES)}
_UNCHECKED = "the profile is written without this check"


class _Metadata(Model, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""


class _Spec(Model, frozen=True, kw_only=True):
    depends_on: tuple[str, ...] | None = None


class _Profile(Model, frozen=True, kw_only=True):
    """The fields of a profile that the rule uses."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()

    def declared(self, kind: str) -> Declared:
        meta = self.metadata
        return Declared(
            kind=kind, namespace=meta.namespace, name=meta.name, depends_on=tuple(self.spec.depends_on or ())
        )


_PROFILE = msgspec.json.Decoder(_Profile)
_WRITTEN = msgspec.json.Decoder(_Profile | None)


Existing = Callable[[str, str], Awaitable[list[Declared]]]
"""Reads the current profiles of a kind, in a namespace if the kind is namespaced."""


def route(existing: Existing) -> Route:
    """The route of the admission webhook for profiles."""
    return Route(path=PROFILES_PATH, handler=partial(answer, existing), name="profiles")


async def answer(existing: Existing, body: bytes, _: Request) -> Response:
    """The response to a review. If the check is not possible, an error, which allows the write (failurePolicy
    Ignore)."""
    try:
        asked = admission.admission_request(body)
        new, old = _WRITTEN.decode(asked.object), _WRITTEN.decode(asked.old_object)
    except msgspec.DecodeError as error:
        return refusal(400, f"cannot decode the profile: {error}; {_UNCHECKED}")
    except ValueError as error:
        return refusal(400, str(error))
    kind = asked.kind.kind
    if new is None or kind not in _KINDS:
        return Response(admission.allowed(asked))
    written = new.declared(kind)
    before = [old.declared(kind)] if old else []
    # Other changes need not wait until all profiles are read.
    if not set(written.depends_on).difference(*(item.depends_on for item in before)):
        return Response(admission.allowed(asked))
    try:
        # The old version goes last, because this write replaces it.
        others = [*await existing(kind, asked.namespace), *before]
    except UnwindError as error:
        return refusal(503, f"cannot check dependsOn for a cycle: {error}; {_UNCHECKED}")
    cycle = closes_cycle(others, written)
    return Response(admission.denied(asked, denial(written, cycle)) if cycle else admission.allowed(asked))


async def existing_profiles(client: Client, kind: str, namespace: str) -> list[Declared]:
    """The profiles that dependsOn may name, read from the API server.

    Not from a cache: three profiles in one file are written within milliseconds, and a cache that has not seen the
    first two would let the third one close the cycle. Only writes that add a name to `dependsOn` come here.
    """
    found: list[Declared] = []
    pages = client.pages(_KINDS[kind], namespace=namespace or None)
    async with aclosing(pages):
        async for page in pages:
            found += [_PROFILE.decode(item).declared(kind) for item in page.items or ()]
    return found


def denial(written: Declared, cycle: tuple[str, ...]) -> str:
    """The message of a denied write."""
    about = f"{written.namespace}/{written.name}" if written.namespace else written.name
    needed = cycle[(cycle.index(written.name) + 1) % len(cycle)]
    elsewhere = ", or break the cycle at another profile first" if len(cycle) > 1 else ""
    return f"{written.kind} {about}: dependency cycle {spelled(cycle)}; remove {needed} from its dependsOn{elsewhere}"
