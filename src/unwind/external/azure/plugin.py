"""The entry point of the Azure plugin: its end of the chain, and the deleters of its kinds."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.api.names import AZURE_FINALIZER
from unwind.deleters.registration import External, Kinds
from unwind.errors import UnwindError
from unwind.external.azure.credentials import credential_secret

try:
    from unwind.external.azure.api_management_products import product_with_subscriptions
    from unwind.external.azure.arm_client import connected, connected_with
    from unwind.external.azure.key_vaults import purge_vault
    from unwind.external.azure.resource_deletion import ArmEnd
    from unwind.external.azure.service_operator import azure_operator_away, running_operator
    from unwind.external.azure.subscription_aliases import cancel_subscription
except ImportError as error:
    # They are installed (otherwise the entry point is skipped) and broken, so the kinds are held.
    what = f"cannot import Azure's libraries: {error}"
    raise UnwindError(what, remedy="pip install 'kube-unwind[azure]'") from error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from unwind.deleters.context import End
    from unwind.kube.client import Client

__all__ = ["AZURE", "azure_operator_away", "cancel_subscription", "product_with_subscriptions", "purge_vault"]


@asynccontextmanager
async def opened(_: Client) -> AsyncIterator[End]:
    """Azure Resource Manager, with the identity in the AZURE_* variables."""
    async with connected() as arm:
        yield ArmEnd(arm)


@asynccontextmanager
async def opened_with(values: Mapping[str, str]) -> AsyncIterator[End]:
    """Azure Resource Manager, with the identity in a Secret."""
    async with connected_with(values) as arm:
        yield ArmEnd(arm)


AZURE = External(
    name="azure",
    kinds=(Kinds("*.azure.com/*", "*"),),
    open=opened,
    open_with=opened_with,
    credentials=credential_secret,
    operator=running_operator,
    finalizers=(AZURE_FINALIZER,),
    about="Delete the Azure resource of an object of Azure Service Operator.",
)
