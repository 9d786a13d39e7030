"""The objects that a join creates, and whether the cluster may join under this name (pure)."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import names
from unwind.api.karmada import CA_BUNDLE_KEY, CLUSTERS, TOKEN_KEY, Cluster, ClusterSyncMode, RemoveStrategy
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Resource
from unwind.errors import UnwindError
from unwind.kube.absence import is_newer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.kube.kubeconfig import ClusterConnection

Object = dict[str, Any]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# Karmada's own limit: the prefix must fit as well.
_LONGEST = 48
_LONGEST_NAMESPACE = 63


class JoinOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a join."""

    name: str
    namespace: str = names.KARMADA_CLUSTER_NAMESPACE
    """The namespace of the credentials, in the member and in the control plane."""
    provider: str = ""
    region: str = ""
    zones: tuple[str, ...] = ()
    remove_strategy: RemoveStrategy | None = None

    def check(self) -> None:
        """Raise UnwindError for an invalid name."""
        for option, text, longest in (
            ("name", self.name, _LONGEST),
            ("--cluster-namespace", self.namespace, _LONGEST_NAMESPACE),
        ):
            if len(text) > longest or not _LABEL.fullmatch(text):
                raise UnwindError(
                    f"invalid {option} {text!r}",
                    remedy=f"use lower case letters, digits and '-' between them, at most {longest}",
                )

    @property
    def account(self) -> str:
        return account(self.name)


def account(name: str) -> str:
    """The service account in the member."""
    return f"{names.KARMADA_ACCOUNT}{name}"


def role(name: str) -> str:
    """The name of its ClusterRole and ClusterRoleBinding."""
    return f"{names.KARMADA_ROLE}{account(name)}"


def member_namespace(name: str, *, labels: dict[str, str] | None = None) -> Object:
    return _object(NAMESPACES, name, labels=labels)


def member_objects(options: JoinOptions, *, home: str) -> list[tuple[Resource, Object]]:
    """Unwind's objects in a member, in order of creation. `home`: the uid of the control plane's kube-system
    namespace."""
    mark = {names.JOINED_LABEL: home}
    # A Work may contain any kind, so this role allows everything, as with Karmada.
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
        {"nonResourceURLs": ["*"], "verbs": ["get"]},
    ]
    subject = {"kind": SERVICE_ACCOUNTS.kind, "name": options.account, "namespace": options.namespace}
    role_ref = {"apiGroup": CLUSTER_ROLES.group, "kind": CLUSTER_ROLES.kind, "name": role(options.name)}
    return [
        (SERVICE_ACCOUNTS, _object(SERVICE_ACCOUNTS, options.account, namespace=options.namespace, labels=mark)),
        (CLUSTER_ROLES, {**_object(CLUSTER_ROLES, role(options.name), labels=mark), "rules": rules}),
        (
            CLUSTER_ROLE_BINDINGS,
            {
                **_object(CLUSTER_ROLE_BINDINGS, role(options.name), labels=mark),
                "roleRef": role_ref,
                "subjects": [subject],
            },
        ),
    ]


def credentials_secret(options: JoinOptions, connection: ClusterConnection, token: str, *, home: str) -> Object:
    """The Secret with the member's credentials."""
    data = {TOKEN_KEY: token.encode()} | ({CA_BUNDLE_KEY: connection.authority} if connection.authority else {})
    body = _object(SECRETS, options.name, namespace=options.namespace, labels={names.JOINED_LABEL: home})
    return {**body, "data": {key: base64.b64encode(text).decode() for key, text in data.items()}}


def member_cluster(options: JoinOptions, connection: ClusterConnection, *, identity: str) -> Object:
    """The Cluster object of the member. `identity`: the uid of its kube-system namespace."""
    body = _object(CLUSTERS, options.name)
    if options.remove_strategy:
        # An API server without the field in its schema drops it silently: then the annotation counts.
        body["metadata"]["annotations"] = {names.REMOVE_STRATEGY_ANNOTATION: options.remove_strategy.value}
    return {
        **body,
        "spec": {
            "syncMode": ClusterSyncMode.PUSH.value,
            "id": identity,
            **connection_fields(options, connection),
            **option_fields(options),
        },
    }


def connection_fields(options: JoinOptions, connection: ClusterConnection) -> Object:
    """The connection fields of the Cluster object."""
    return {
        "apiEndpoint": connection.server,
        "secretRef": {"namespace": options.namespace, "name": options.name},
        **({"insecureSkipTLSVerification": True} if connection.insecure else {}),
        **({"proxyURL": connection.proxy} if connection.proxy else {}),
    }


def option_fields(options: JoinOptions) -> Object:
    """The fields that the user set, and nothing else."""
    values = {
        "provider": options.provider,
        "region": options.region,
        "zones": list(options.zones),
        "removeStrategy": options.remove_strategy.value if options.remove_strategy else "",
    }
    return {field: value for field, value in values.items() if value}


def _object(
    resource: Resource, name: str, *, namespace: str | None = None, labels: dict[str, str] | None = None
) -> Object:
    metadata: Object = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


def existing_member(options: JoinOptions, clusters: Iterable[Cluster], *, identity: str, server: str) -> Cluster | None:
    """The existing Cluster object of this member; None if there is none. Raises UnwindError if it cannot be joined.

    `identity`: the uid of the member's kube-system namespace. `server`: its address.
    """
    found = None
    for item in clusters:
        name, spec = item.metadata.name, item.spec
        if name == options.name:
            found = item
        elif spec.id == identity or (not spec.id and spec.api_endpoint == server):
            raise UnwindError(
                f"cannot join {options.name}: this cluster is already joined as {name}",
                remedy=f"unjoin {name} first, or use that name",
            )
    if found is None:
        return None
    if found.spec.id != identity:
        which = f"cluster {found.spec.id}" if found.spec.id else "a cluster without an id"
        raise UnwindError(f"cannot join {options.name}: the name is taken by {which}", remedy="use another name")
    if found.metadata.terminating:
        raise UnwindError(
            f"cannot join {options.name}: it is being unjoined", remedy="wait until it is gone, then join again"
        )
    if found.spec.sync_mode != ClusterSyncMode.PUSH:
        raise UnwindError(
            f"cannot join {options.name}: it is already joined in {found.spec.sync_mode} mode",
            remedy="unjoin it first (`unwind unjoin`)",
        )
    return found


def may_be_older(other: Cluster, ours: Cluster) -> bool:
    """Whether a Cluster may be older than ours, which was just created.

    If both were created in the same second, resourceVersions decide, unless the other one was updated since.
    """
    then, now = other.metadata, ours.metadata
    if then.creation_timestamp != now.creation_timestamp:
        return str(then.creation_timestamp) < str(now.creation_timestamp)
    touched = then.generation > 1 or bool(then.finalizers) or bool(other.status.conditions)
    return touched or is_newer(now.resource_version, than=then.resource_version)
