"""A link of the chain that keeps objects, for removers that add one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.deleters.registration import FIRST, Kinds, Registration

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.deleters.context import DeleteContext, DeleteFunc
    from unwind.deleters.outcomes import Kept, Outcome
    from unwind.kube.client import Object


def keep_link(
    name: str, kept: Callable[[Object], Kept | None], *, about: str, when: Callable[[Object], bool] | None = None
) -> Registration:
    """A deleter that keeps the objects for which `kept` says why, and leaves all others to the next link. It comes
    first, and needs only the metadata."""

    async def delete(ctx: DeleteContext, obj: Object, next: DeleteFunc[Object]) -> Outcome:  # noqa: A002
        if ctx.absent or not (found := kept(obj)):
            return await next(ctx, obj)
        ctx.log.info("object kept", why=found.message)
        return found

    return Registration(
        name=name,
        kinds=(Kinds("*", "*"),),
        delete=delete,
        order=FIRST,
        when=when,
        metadata_only=True,
        about=about,
    )
