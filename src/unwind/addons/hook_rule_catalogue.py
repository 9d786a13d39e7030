"""The built-in hook rules: name, hooks, description and messages (pure).

Cluster API writes the messages into the Cluster's conditions, so a text that differs each time would be a write each
time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from unwind.api.hooks import Hook
from unwind.hooks import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unwind.hooks import Decide


class Known(msgspec.Struct, frozen=True):
    """A built-in rule without its implementation."""

    name: str
    hooks: tuple[Hook, ...]
    about: str

    def rules(self, decide: Decide) -> Iterator[Rule]:
        """The rule for each of its hooks, with this implementation."""
        for hook in self.hooks:
            yield Rule(name=self.name, hook=hook, decide=decide, about=self.about)


SOURCES_EXIST = Known(
    "sources-exist",
    (Hook.BEFORE_CLUSTER_CREATE,),
    "Wait until the ConfigMaps, Secrets and charts of the profiles for the cluster exist.",
)
DEPLOY_AT_ONCE = Known(
    "deploy-at-once",
    (Hook.AFTER_CONTROL_PLANE_INITIALIZED,),
    "Start the deployment of add-ons at once. Does not block.",
)
ADDONS_ALLOW = Known(
    "addons-allow",
    (Hook.BEFORE_CLUSTER_UPGRADE, Hook.BEFORE_CONTROL_PLANE_UPGRADE, Hook.BEFORE_WORKERS_UPGRADE),
    "Wait while add-ons on the cluster fail, or do not support the new version.",
)
ADDONS_SETTLED = Known(
    "addons-settled",
    (Hook.AFTER_CONTROL_PLANE_UPGRADE, Hook.AFTER_WORKERS_UPGRADE, Hook.AFTER_CLUSTER_UPGRADE),
    "Wait until the add-ons on the cluster are Provisioned again.",
)
CLEANUP = Known(
    "addons-removed",
    (Hook.BEFORE_CLUSTER_DELETE,),
    "Wait until the add-ons of EnforceRemovePolicies profiles are verified absent.",
)

KNOWN = (SOURCES_EXIST, DEPLOY_AT_ONCE, ADDONS_ALLOW, ADDONS_SETTLED, CLEANUP)

_LONGEST = 240
_SHOWN = 5
# `read tcp 10.0.0.3:48122->10.0.0.9:443: …`: the first port differs each time.
_FROM = re.compile(r"\S+:[0-9]+->")


def steady(text: str) -> str:
    """A message on one line, shortened, without parts that differ each time."""
    line = _FROM.sub("", " ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST].rstrip()} …"


def several(what: Iterable[str]) -> str:
    """The first few items in a stable order."""
    said = sorted(set(what))
    more = ["and more"] if len(said) > _SHOWN else []
    return "; ".join([*said[:_SHOWN], *more])
