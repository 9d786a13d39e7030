"""Which Azure credentials count for an object, and which Secrets are refused."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.names import AZURE_CREDENTIAL_ANNOTATION, Reason
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import NamespaceCredentials
from unwind.errors import UnwindError
from unwind.external.azure.credentials import credential_secret, identity_of

IDENTITY = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "s"}


def naming(secret: str) -> dict[str, Any]:
    annotations = {AZURE_CREDENTIAL_ANNOTATION: secret}
    return {"metadata": {"namespace": "team", "name": "cache", "annotations": annotations}}


def test_the_secret_that_an_object_names_must_exist_and_comes_before_that_of_its_namespace() -> None:
    assert credential_secret(naming("own")) == NamespaceCredentials("own", required=True)
    unnamed = {"metadata": {"namespace": "team", "name": "cache", "annotations": None}}
    assert credential_secret(unnamed) == NamespaceCredentials("aso-credential", required=False)


@pytest.mark.parametrize("name", ["", "kube-system/own", "../own", "Own", "own\n"])
def test_an_object_cannot_name_what_is_no_secret_of_its_namespace(name: str) -> None:
    with pytest.raises(PermanentError, match="is not the name of a Secret in namespace team") as caught:
        credential_secret(naming(name))
    assert caught.value.reason == Reason.UNAUTHENTICATED


def test_a_secret_without_a_client_secret_is_refused() -> None:
    assert identity_of({**IDENTITY, "AZURE_SUBSCRIPTION_ID": "x"}) == ("t", "c", "s")
    with pytest.raises(UnwindError, match="has no AZURE_CLIENT_SECRET"):
        identity_of({**IDENTITY, "AZURE_CLIENT_SECRET": ""})
    with pytest.raises(UnwindError, match="has no AZURE_TENANT_ID and no AZURE_CLIENT_SECRET"):
        identity_of({"AZURE_CLIENT_ID": "c"})
