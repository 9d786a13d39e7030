"""The chain of an object: each deleter wraps the next one, and the end performs the deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.deleters.outcomes import Gone, PermanentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unwind.deleters.context import DeleteContext, DeleteFunc, End
    from unwind.deleters.outcomes import Outcome
    from unwind.deleters.registration import Registration
    from unwind.kube.client import Object


def chain(links: Sequence[Registration], end: End) -> DeleteFunc[Object]:
    """The delete function of the first deleter, whose `next` is the second one, and so on to the end."""
    rest = _ending(end)
    for link in reversed(links):
        rest = _linked(link, rest) if link.model is None else _typed(link, link.model, rest)
    return rest


def _ending(end: End) -> DeleteFunc[Object]:
    async def finish(ctx: DeleteContext, obj: Object) -> Outcome:
        outcome = await end.delete(ctx.within(end.name), obj)
        ctx.entry.ended = isinstance(outcome, Gone)
        return outcome

    return finish


def _linked(link: Registration, rest: DeleteFunc[Object]) -> DeleteFunc[Object]:
    name, delete = link.name, link.delete

    async def go(ctx: DeleteContext, obj: Object) -> Outcome:
        return await delete(ctx.within(name), obj, rest)

    return go


def _typed(link: Registration, model: type, rest: DeleteFunc[Object]) -> DeleteFunc[Object]:
    name, delete = link.name, link.delete

    async def go(ctx: DeleteContext, obj: Object) -> Outcome:
        async def onward(ctx: DeleteContext, _: Any) -> Outcome:
            # The other deleters read the object themselves; this deleter's typed copy is its own.
            return await rest(ctx, obj)

        try:
            read: Any = msgspec.convert(obj, model, strict=False)
        except msgspec.ValidationError as error:
            raise PermanentError(
                f"cannot delete {ctx.ref}: {name} cannot decode it as {model.__name__}: {error}",
                remedy=f"correct the object, or install a version of the package of {name} that can read it",
            ) from None
        return await delete(ctx.within(name), read, onward)

    return go
