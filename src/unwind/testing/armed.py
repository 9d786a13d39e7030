"""Contents of the Azure fake: resources, deleted vaults, subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec


class Style(Enum):
    """The style in which a long-running operation tells its URL."""

    STATUS = "Azure-AsyncOperation"
    LOCATION = "Location"
    NOWHERE = ""


class Operation(msgspec.Struct, kw_only=True):
    """A long-running operation."""

    path: str
    style: Style
    left: int
    """The number of polls that still find it running."""
    finish: Callable[[], str]
    """Called when it finishes; returns an error code, or an empty string."""
    outcome: str | None = None

    def go_on(self) -> bool:
        """Advance it by one poll; returns whether it is done."""
        if self.left:
            self.left -= 1
            return False
        if self.outcome is None:
            self.outcome = self.finish()
        return True


class Vault(msgspec.Struct, kw_only=True):
    """A soft-deleted Key Vault."""

    id: str
    location: str
    protected: bool = False
    takes: int = 0
    unlisted: int = 0
    purge_date: str = "2026-04-01T00:00:00Z"

    @property
    def path(self) -> str:
        _, _, subscription, *_, name = self.id.lower().split("/")
        return (
            f"/subscriptions/{subscription}/providers/microsoft.keyvault/locations/{self.location}/deletedvaults/{name}"
        )

    @property
    def properties(self) -> dict[str, Any]:
        return {
            "vaultId": self.id,
            "location": self.location,
            "scheduledPurgeDate": self.purge_date,
            "purgeProtectionEnabled": self.protected or None,
        }


class Resource(msgspec.Struct, kw_only=True):
    """A resource, and how its deletion behaves."""

    id: str
    takes: int = 0
    style: Style = Style.STATUS
    fails: str = ""
    lingers: int = 0
    keys: int = 0
    location: str = "westeurope"
    properties: dict[str, Any] = {}
    vault: Vault | None = None
    locked: bool = False
    """Whether it is locked; tests set and clear it."""
    deleting: bool = False
    operation: Operation | None = None
    over: bool = False


class Subscription(msgspec.Struct, kw_only=True):
    """A subscription, and whether it is Enabled."""

    id: str
    state: str = "Enabled"
