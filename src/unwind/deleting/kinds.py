"""Matches kinds by group, version and kind, with wildcards."""

from __future__ import annotations

from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UnwindError

if TYPE_CHECKING:
    from unwind.api.resources import Resource


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
