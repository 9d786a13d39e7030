"""Determines the Azure resource of an object (pure)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.names import AZURE_FINALIZER, AZURE_RESOURCE_ID_ANNOTATION, Reason
from unwind.deleters.outcomes import PermanentError

if TYPE_CHECKING:
    from unwind.api.resources import Resource
    from unwind.kube.client import Object

GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Characters that would change the meaning of a URL or path; no Azure name contains them.
_SEGMENT = re.compile(r"[^/\\?#%<>\x00-\x1f\x7f]{1,260}")
_NAMESPACE = re.compile(r"[A-Za-z0-9]+(\.[A-Za-z0-9]+)+")
# v1api20230701, v1api20220801preview, v20230701; older ones: v1beta20200601, v1alpha1api20200601. Storage versions may
# end in storage.
_VERSION = re.compile(r"v(?:1(?:alpha1)?api|1beta)?(\d{4})(\d{2})(\d{2})(preview)?(?:storage)?")


class ArmId(msgspec.Struct, frozen=True):
    """A parsed ARM id."""

    text: str
    subscription: str
    """Empty for a resource without one: a subscription alias."""
    resource_group: str
    type: str
    """Including the provider: `Microsoft.KeyVault/vaults`."""
    name: str

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> ArmId:
        """Parse an ARM id; raises PermanentError if it is not the id of a resource or a resource group."""
        segments = text.split("/")[1:] if text.startswith("/") else []
        if not segments or not all(_SEGMENT.fullmatch(segment) and segment not in (".", "..") for segment in segments):
            raise _malformed(text)
        subscription = group = ""
        if segments[0].lower() == "subscriptions":
            subscription, segments = segments[1] if len(segments) > 1 else "", segments[2:]
            if not GUID.fullmatch(subscription):
                raise _malformed(text)
            if segments and segments[0].lower() == "resourcegroups":
                group, segments = segments[1] if len(segments) > 1 else "", segments[2:]
                if not group:
                    raise _malformed(text)
        if not segments:
            if not group:
                raise _malformed(text)  # a whole subscription is never deleted by its id
            return cls(text, subscription, group, "Microsoft.Resources/resourceGroups", group)
        namespace, types, name = "", [""], ""
        for key, value in zip(segments[::2], segments[1::2], strict=False):
            if key.lower() == "providers":
                # An extension resource of the preceding one follows: a lock, a role assignment.
                namespace, types, name = value, [], ""
            else:
                types, name = [*types, key], value
        if len(segments) % 2 or segments[0].lower() != "providers" or not name or not _NAMESPACE.fullmatch(namespace):
            raise _malformed(text)
        return cls(text, subscription, group, "/".join([namespace, *types]), name)


class AzureTarget(msgspec.Struct, frozen=True):
    """A resource, and the API version for requests about it."""

    id: str
    api_version: str


class NeverCreated(msgspec.Struct, frozen=True):
    """The object never had an Azure resource."""

    why: str


def api_version(resource: Resource) -> str:
    """The version of Azure's API for a version of Azure Service Operator's kinds."""
    found = _VERSION.fullmatch(resource.version)
    if found is None:
        # Kinds of version v1, such as a database user or an Entra group, are not in Azure Resource Manager.
        raise PermanentError(
            f"cannot delete {resource.api_version} {resource.kind}: it has no Azure Resource Manager API version",
            reason=Reason.HELD,
            remedy="delete it with Azure Service Operator, or set its delete policy to detach-on-delete",
        )
    year, month, day, preview = found.groups()
    return f"{year}-{month}-{day}" + ("-preview" if preview else "")


def is_of_type(resource: Resource, arm_type: str) -> bool:
    """Whether a kind of Azure Service Operator is for resources of an ARM type.

    A user can write any id into the annotation, and the manager deletes with its own permissions at Azure. The group of
    a kind is the provider (cache.azure.com: Microsoft.Cache), and a kind ends in its type (RedisFirewallRule:
    redis/firewallRules). Records of DNS zones are the exception (DnsZonesARecord: dnsZones/A).
    """
    provider, *types = arm_type.lower().split("/")
    if provider.rpartition(".")[2] != resource.group.lower().partition(".")[0] or not types:
        return False
    kind, last = resource.kind.lower(), types[-1]
    singular = {last, last.removesuffix("s"), last.removesuffix("es"), last.removesuffix("ies") + "y"}
    return kind.endswith(tuple(singular)) or ("zone" in kind and kind.endswith(f"{last}record"))


def target(obj: Object, resource: Resource) -> AzureTarget | NeverCreated:
    """The Azure resource of an object. Raises PermanentError if that is unknown, which is not the same as none."""
    metadata: dict[str, Any] = obj["metadata"]
    status: dict[str, Any] = obj.get("status") or {}
    noted = (metadata.get("annotations") or {}).get(AZURE_RESOURCE_ID_ANNOTATION, "")
    told = status.get("id")
    told = told if isinstance(told, str) and told.startswith("/") else ""
    if noted and told and noted.lower() != told.lower():  # ARM ids are case-insensitive
        raise PermanentError(
            f"cannot delete {metadata['name']}: its ARM id is {noted} in its annotation, but {told} in its status",
            reason=Reason.HELD,
            remedy=f"correct the annotation {AZURE_RESOURCE_ID_ANNOTATION}",
        )
    if noted or told:
        id_ = ArmId.parse(noted or told)
        if not is_of_type(resource, id_.type):
            raise PermanentError(
                f"cannot delete {resource.kind} {metadata['name']}: its ARM id has the type {id_.type}",
                reason=Reason.HELD,
                remedy=f"correct the annotation {AZURE_RESOURCE_ID_ANNOTATION}, or set the delete policy to "
                "detach-on-delete",
            )
        return AzureTarget(id_.text, api_version(resource))
    # Azure Service Operator writes the id and its finalizer in one request, before it sends anything to Azure. So
    # without both, and without anything that came from Azure, no resource was created. With its finalizer and without
    # an id, the id was removed.
    traces = sorted(key for key in status if key != "conditions")
    if AZURE_FINALIZER in (metadata.get("finalizers") or ()):
        traces.append("finalizer")
    if any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    ):
        traces.append("Ready")
    if not traces:
        return NeverCreated("never created at Azure: no ARM id, no finalizer and no status")
    raise PermanentError(
        f"cannot delete {metadata['name']}: it has no ARM id, but its {', '.join(traces)} shows that it was created",
        reason=Reason.HELD,
        remedy=f"set the annotation {AZURE_RESOURCE_ID_ANNOTATION}, or set the delete policy to detach-on-delete",
    )


def _malformed(text: str) -> PermanentError:
    return PermanentError(
        f"invalid ARM id {text[:200]!r}",
        reason=Reason.HELD,
        remedy=f"correct the annotation {AZURE_RESOURCE_ID_ANNOTATION}",
    )
