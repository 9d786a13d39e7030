"""Key Vaults: deleted, kept, purged; against a fake over HTTPS."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.external.azure.scenes import GROUP, SUBSCRIPTION, Azure, made
from tests.unit.external.azure.test_deleters import link
from unwind.api.names import DELETE_MODE_ANNOTATION, Reason
from unwind.api.resources import Resource
from unwind.deleters.chain_attempt import Failed, Waiting
from unwind.deleters.outcomes import Gone, Kept, PermanentError
from unwind.external.azure.key_vaults import DeleteMode, delete_mode, purge_vault

VAULTS = Resource("keyvault.azure.com", "v1api20230701", "vaults", "Vault")
VAULT = f"{GROUP}/providers/Microsoft.KeyVault/vaults/safe"
DELETED = f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.KeyVault/locations/westeurope/deletedVaults/safe"
PURGING = link(purge_vault)


def vault(mode: str | None = "Purge", **more: Any) -> dict[str, Any]:
    annotations = {DELETE_MODE_ANNOTATION: mode} if mode else {}
    return made(VAULTS, VAULT, annotations=annotations, **more)


@pytest.mark.parametrize(
    ("annotation", "spec", "expected"),
    [
        (None, None, DeleteMode.SOFT_DELETE),
        ("SoftDelete", None, DeleteMode.SOFT_DELETE),
        ("Purge", None, DeleteMode.PURGE),
        (None, "Purge", DeleteMode.PURGE),
        ("Purge", "Purge", DeleteMode.PURGE),
        ("Purge", "SoftDelete", DeleteMode.SOFT_DELETE),
        ("SoftDelete", "Purge", DeleteMode.SOFT_DELETE),
    ],
)
def test_of_two_modes_the_one_that_keeps_more_holds(
    annotation: str | None, spec: str | None, expected: DeleteMode
) -> None:
    assert delete_mode(vault(annotation, spec={"deleteMode": spec} if spec else {})) is expected


@pytest.mark.parametrize("word", ["purge", "PURGE", "Purge ", "", "true"])
def test_a_mode_that_is_not_known_holds(word: str) -> None:
    with pytest.raises(PermanentError, match="is not known"):
        delete_mode({"metadata": {"name": "safe", "annotations": {DELETE_MODE_ANNOTATION: word}}})


async def test_a_vault_is_soft_deleted_unless_more_is_asked_for(azure: Azure) -> None:
    azure.arm.vault(VAULT)
    assert isinstance(await azure.enter(vault(None), VAULTS, PURGING), Gone)
    assert list(azure.arm.deleted_vaults) == [DELETED.lower()]
    assert azure.arm.sent("POST") == []


async def test_a_vault_is_purged_when_it_is_deleted(azure: Azure) -> None:
    azure.arm.vault(VAULT, location="West Europe".replace(" ", "").lower(), takes=1, purge_takes=1)
    entries: list[object] = []
    while not entries or not isinstance(entries[-1], Gone):
        entries.append(await azure.enter(vault(), VAULTS, PURGING))
        assert len(entries) < 10
    assert all(isinstance(obj, Waiting) for obj in entries[:-1])
    assert azure.arm.deleted_vaults == {}
    assert azure.arm.sent("DELETE") == [VAULT]
    assert azure.arm.sent("POST") == [f"{DELETED}/purge"]


async def test_purge_protection_is_respected_and_its_date_is_told(azure: Azure) -> None:
    azure.arm.vault(VAULT, purge_protection=True)
    outcome = await azure.enter(vault(), VAULTS, PURGING)
    assert isinstance(outcome, Kept)
    assert outcome.reason == Reason.PURGE_PROTECTED
    assert "2026-04-01T00:00:00Z" in outcome.message
    assert azure.arm.sent("POST") == []


async def test_a_vault_that_is_not_yet_among_the_deleted_ones_is_waited_for(azure: Azure) -> None:
    azure.arm.vault(VAULT, unlisted=2)
    for _ in range(2):
        waiting = await azure.enter(vault(), VAULTS, PURGING)
        assert isinstance(waiting, Waiting)
        assert "waiting for Azure to list" in waiting.reason
        azure.clock.advance(10)
    assert isinstance(await azure.enter(vault(), VAULTS, PURGING), Waiting), "the purge has begun"
    assert isinstance(await azure.enter(vault(), VAULTS, PURGING), Gone)
    assert azure.arm.deleted_vaults == {}


async def test_a_vault_that_never_comes_to_be_among_the_deleted_ones_is_gone(azure: Azure) -> None:
    azure.arm.vault(VAULT, unlisted=100)
    assert isinstance(await azure.enter(vault(), VAULTS, PURGING), Waiting)
    azure.clock.advance(300)
    assert isinstance(await azure.enter(vault(), VAULTS, PURGING), Gone)


async def test_a_vault_that_somebody_else_deleted_is_purged_where_its_spec_says(azure: Azure) -> None:
    azure.arm.deleted_vaults[DELETED.lower()] = azure.arm.vault(VAULT).vault  # type: ignore[assignment]
    azure.arm.resources.clear()
    obj = vault(spec={"location": "West Europe"})
    assert isinstance(await azure.enter(obj, VAULTS, PURGING), Waiting)
    assert isinstance(await azure.enter(obj, VAULTS, PURGING), Gone)
    assert azure.arm.deleted_vaults == {}


async def test_a_deleted_vault_of_another_resource_group_is_left_alone(azure: Azure) -> None:
    other = azure.arm.vault(VAULT.replace("/rg/", "/other/")).vault
    assert other
    azure.arm.resources.clear()
    azure.arm.deleted_vaults[other.path] = other
    outcome = await azure.enter(vault(spec={"location": "westeurope"}), VAULTS, PURGING)
    assert isinstance(outcome, Gone)
    assert "is another one" in outcome.why
    assert azure.arm.sent("POST") == []


async def test_a_purge_that_nobody_wants_any_more_is_not_done(azure: Azure) -> None:
    azure.arm.vault(VAULT, takes=1)
    assert isinstance(await azure.enter(vault(), VAULTS, PURGING), Waiting)
    assert isinstance(await azure.enter(vault("SoftDelete"), VAULTS, PURGING), Waiting)
    assert not any(key.startswith("purge-vault.") for key in azure.memo)
    assert isinstance(await azure.enter(vault("SoftDelete"), VAULTS, PURGING), Gone)
    assert azure.arm.sent("POST") == []


async def test_a_purge_that_azure_refuses_is_tried_again(azure: Azure) -> None:
    azure.arm.vault(VAULT)
    azure.arm.fail_next(403, "ForbiddenByRbac", method="POST")
    failed = await azure.enter(vault(), VAULTS, PURGING)
    assert isinstance(failed, Failed)
    assert failed.reason == "ForbiddenByRbac"
    assert isinstance(await azure.enter(vault(), VAULTS, PURGING), Waiting)
    assert isinstance(await azure.enter(vault(), VAULTS, PURGING), Gone)
    assert azure.arm.sent("DELETE") == [VAULT]
