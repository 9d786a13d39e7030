"""CRDs, waited for until their resources can be made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.resources import CUSTOM_RESOURCE_DEFINITIONS
from unwind.deleting.deletion import pause
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from unwind.fleet.member import Member
    from unwind.kube.client import Object

# The API server needs well under a second. What takes longer is tried again with the whole deployment.
_PATIENCE = 30.0


class NotServedError(UnwindError):
    """A CRD is there, and its resources are not served."""


async def until_established(member: Member, name: str) -> None:
    """Return when the resources of a CRD are served. Raises NotServedError where they are not going to be."""
    clock = member.watches.clock
    ends = clock.monotonic() + _PATIENCE
    while True:
        # Asked for before looking, so that no change in between is missed.
        changes = await member.watches.changes(CUSTOM_RESOURCE_DEFINITIONS, name=name)
        try:
            conditions = _conditions(await member.client.get(CUSTOM_RESOURCE_DEFINITIONS, name))
            if conditions.get("Established", {}).get("status") == "True":
                return
            refused = conditions.get("NamesAccepted", {})
            if refused.get("status") == "False":
                raise NotServedError(f"its names are not accepted: {refused.get('message', '')}")
            left = ends - clock.monotonic()
            if left <= 0:
                raise NotServedError(f"its resources are not served after {_PATIENCE:.0f} s")
            await pause(clock, left, changes)
        finally:
            changes.close()


def _conditions(definition: Object) -> dict[str, dict[str, str]]:
    found = (definition.get("status") or {}).get("conditions") or []
    return {one["type"]: one for one in found}
