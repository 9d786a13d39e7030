"""Are a cluster's add-ons there again after an upgrade? (pure)

What Unwind itself refuses to put anywhere is not waited for: that would never be over because of us, and the profile
says so already. Nor is what a DryRun would do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.sveltos_status import FeatureStatus
from unwind.gating.rules.addons import failures
from unwind.gating.rules.wording import several, steady
from unwind.hooks import Wait

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.gating.rules.addons import AddOn

SOON = 2
"""Seconds. What is waited for is mostly under way."""


def after(add_ons: Iterable[AddOn]) -> Wait | None:
    """Wait until each add-on is on the cluster as its profile says now."""
    missing = [why for one in add_ons if not one.dry_run and (why := unsettled(one))]
    return waiting(missing) if missing else None


def waiting(missing: Iterable[str]) -> Wait:
    """The wait for what is missing."""
    return Wait(f"waiting for add-ons to be Provisioned: {several(missing)}", SOON)


def unsettled(it: AddOn) -> str:
    """Why an add-on is not there yet; empty if it is, or if nobody is going to put it there."""
    if it.features is None:
        return "" if it.refused else f"{it.profile} is about to be put on this cluster by Unwind"
    if failing := failures(it):
        return f"{it.profile} fails ({steady(several(failing))}), and whoever looks after it has to mend it"
    there = {one.feature_id for one in it.features if one.status == FeatureStatus.PROVISIONED}
    if any(feature not in there for feature in it.wanted):
        return f"{it.profile} {steady(it.waits) or 'is being deployed by Unwind'}"
    if not it.in_step and not it.refused:
        return f"{it.profile} has changed and is about to be deployed by Unwind"
    return ""
