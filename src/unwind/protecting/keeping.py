"""What has to be written so that an object is as it should be (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unwind.kube.client import Object


def mended(found: Object, wanted: Object) -> Object:
    """The merge patch that makes `found` what is wanted, for all that `wanted` says of; empty if it is already.

    What nobody wants inside of that is taken out. Lists are written whole: an object in one may have been put there
    by somebody else, such as a condition under which a policy holds no longer.
    """
    return {
        key: _mended(found.get(key), value)
        for key, value in wanted.items()
        if key not in ("apiVersion", "kind", "metadata") and found.get(key) != value
    }


def with_authorities(wanted: Object, found: Object) -> Object:
    """The webhooks that are wanted, each with the authority that is written at the one of its name now.

    Who writes those is somebody else.
    """
    bundles = {one.get("name"): (one.get("clientConfig") or {}).get("caBundle") for one in found.get("webhooks") or ()}
    if "webhooks" not in wanted:
        return wanted
    asking = [
        one | {"clientConfig": one["clientConfig"] | {"caBundle": bundle}}
        if (bundle := bundles.get(one["name"]))
        else one
        for one in wanted["webhooks"]
    ]
    return wanted | {"webhooks": asking}


def _mended(found: Any, wanted: Any) -> Any:
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        return wanted
    changed = {key: _mended(found.get(key), value) for key, value in wanted.items() if found.get(key) != value}
    return changed | {key: None for key in found if key not in wanted}
