"""The options of a join, and the objects that it creates (pure)."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import names
from unwind.api.karmada import CA_BUNDLE_KEY, CLUSTERS, TOKEN_KEY, ClusterSyncMode, RemoveStrategy
from unwind.api.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, SECRETS, SERVICE_ACCOUNTS, Resource
from unwind.errors import UnwindError

if TYPE_CHECKING:
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


def is_marked(found: Object, home: str) -> bool:
    """Whether an object has the label of a join to this control plane."""
    labels: dict[str, str] = found["metadata"].get("labels") or {}
    return labels.get(names.JOINED_LABEL) == home


def name_of(found: Object) -> str:
    """The name of an object, with its namespace."""
    meta = found["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
