"""Which Azure credentials count for an object on the management cluster, in the order of Azure Service Operator (pure).

1. the Secret that the object names in `serviceoperator.azure.com/credential-from`,
2. the Secret `aso-credential`, both in the namespace of the object,
3. the identity of the manager (`arm_client.connected`).

The Secrets are read in `external/credential_secrets.py`. On members only mapped ones count: `external/member_ends.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from unwind.api.names import AZURE_CREDENTIAL_ANNOTATION, Reason
from unwind.deleters.outcomes import PermanentError
from unwind.deleters.registration import NamespaceCredentials
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The Secret with the credentials for all objects of its namespace.
_NAMESPACE_SECRET = "aso-credential"  # noqa: S105 - a name
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_IDENTITY = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")


def credential_secret(obj: Mapping[str, Any]) -> NamespaceCredentials:
    """The Secret with the credentials for an object: the one that the object names, which must exist, otherwise
    `aso-credential`. Without that, the identity of the manager counts."""
    metadata = obj["metadata"]
    named = (metadata.get("annotations") or {}).get(AZURE_CREDENTIAL_ANNOTATION)
    if named is None:
        return NamespaceCredentials(_NAMESPACE_SECRET)
    if not _SECRET_NAME.fullmatch(named):
        raise PermanentError(
            f"invalid {AZURE_CREDENTIAL_ANNOTATION}: {named[:253]!r} is not the name of a Secret in namespace "
            f"{metadata.get('namespace', '')}",
            reason=Reason.UNAUTHENTICATED,
            remedy="correct the annotation",
        )
    return NamespaceCredentials(named, required=True)


def identity_of(values: Mapping[str, str]) -> tuple[str, str, str]:
    """The tenant, the client id and the client secret in a Secret, with the keys of Azure Service Operator. Raises
    UnwindError if one of them is missing.

    A client id alone, as for a workload identity, is refused, and another identity does not take its place: the author
    of a Secret could name any identity that trusts the manager, and another one might have more rights.
    """
    tenant, client, secret = (values.get(name, "") for name in _IDENTITY)
    missing = [name for name in _IDENTITY if not values.get(name)]
    if missing:
        raise UnwindError(f"the Secret with the Azure credentials has no {' and no '.join(missing)}", remedy="add it")
    return tenant, client, secret
