"""The rules that come with Unwind: what each is called, where it is asked, and what it does in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from unwind.api.hooks import Hook
from unwind.hooks import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unwind.hooks import Decide


class Known(msgspec.Struct, frozen=True):
    """A rule before it is told what to go by."""

    name: str
    hooks: tuple[Hook, ...]
    about: str

    def rules(self, decide: Decide) -> Iterator[Rule]:
        """The rule at each of its hooks, decided by this."""
        for hook in self.hooks:
            yield Rule(name=self.name, hook=hook, decide=decide, about=self.about)


SOURCES_EXIST = Known(
    "sources-exist",
    (Hook.BEFORE_CLUSTER_CREATE,),
    "Wait until the ConfigMaps, Secrets and charts of the profiles for the cluster are there.",
)
DEPLOY_AT_ONCE = Known(
    "deploy-at-once",
    (Hook.AFTER_CONTROL_PLANE_INITIALIZED,),
    "Have add-ons deployed now, and not when the next event or try comes. Nobody waits for it.",
)
ADDONS_ALLOW = Known(
    "addons-allow",
    (Hook.BEFORE_CLUSTER_UPGRADE, Hook.BEFORE_CONTROL_PLANE_UPGRADE, Hook.BEFORE_WORKERS_UPGRADE),
    "Wait while add-ons fail on the cluster, or are not for the version that it is to become.",
)
ADDONS_SETTLED = Known(
    "addons-settled",
    (Hook.AFTER_CONTROL_PLANE_UPGRADE, Hook.AFTER_WORKERS_UPGRADE, Hook.AFTER_CLUSTER_UPGRADE),
    "Wait until the add-ons on the cluster are Provisioned again.",
)
CLEANUP = Known(
    "addons-removed",
    (Hook.BEFORE_CLUSTER_DELETE,),
    "The gate: wait until the add-ons of EnforceRemovePolicies were seen to be absent.",
)

KNOWN = (SOURCES_EXIST, DEPLOY_AT_ONCE, ADDONS_ALLOW, ADDONS_SETTLED, CLEANUP)
