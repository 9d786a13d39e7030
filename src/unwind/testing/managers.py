"""The manager's identity in tests: its ServiceAccount, with exactly the permissions that `unwind install` grants.

Use `manager_client(…)` for an in-process manager, and `manager_kubeconfig(…)` for one in its own process. Use the
administrator's client for users and for the set-up of a test. `check_requests` finds requests of managers that were
sent with other permissions, or that RBAC refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from unwind.api.features import ALL
from unwind.api.names import AGGREGATE_LABEL, INSTALL_FIELD_MANAGER, MANAGER_USER_AGENT
from unwind.api.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SELF_SUBJECT_ACCESS_REVIEWS,
    SERVICE_ACCOUNTS,
)
from unwind.api.rights import Right, Setting
from unwind.install.manifests import resource_of, without_crds
from unwind.kube import kubeconfig
from unwind.kube.client import Client
from unwind.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from unwind.kube.kubeconfig import ClusterConnection, Token
from unwind.kube.transport import HttpTransport
from unwind.local.cluster import ALL_RIGHTS
from unwind.server.manager_names import MANAGER
from unwind.testing import used_rights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from unwind.api.features import Features
    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.local.audit_log import AuditEvent
    from unwind.local.cluster import LocalCluster
    from unwind.testing.used_rights import UsedRight

# The ServiceAccount is last: if it exists, its permissions do, too.
_RIGHTS = (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES, ROLE_BINDINGS, SERVICE_ACCOUNTS)
_HEEDED_WITHIN = 60.0
# The uids of the cluster-scoped permissions, by server and namespace.
_installed: dict[tuple[str, str], dict[tuple[Resource, str], str]] = {}
# What users grant to managers, by the aggregation label: one for each cluster, as long as it runs.
_GRANTED: Object = {
    "apiVersion": CLUSTER_ROLES.api_version,
    "kind": CLUSTER_ROLES.kind,
    "metadata": {"name": "granted-to-managers"},
    "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {AGGREGATE_LABEL: "true"}}]},
    "rules": [],
}
# The clusters that have it, by their CA: a new cluster may get the address of an old one.
_granted: set[bytes | None] = set()


def manager_user(namespace: str) -> str:
    """The user name of the manager in a namespace."""
    return f"system:serviceaccount:{namespace}:{MANAGER}"


# Permissions


async def install_rights(admin: Client, namespace: str, *, features: Features = ALL) -> None:
    """Install the manager's ServiceAccount, roles and bindings in a namespace. Idempotent."""
    with suppress(AlreadyExistsError):
        await admin.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    if admin.connection.authority not in _granted:
        await admin.apply(CLUSTER_ROLES, _GRANTED, field_manager=INSTALL_FIELD_MANAGER)
        _granted.add(admin.connection.authority)
    uids = _installed.setdefault((admin.connection.server, namespace), {})
    for manifest in _rendered(namespace, features):
        resource = resource_of(manifest)
        made = await admin.apply(resource, manifest, field_manager=INSTALL_FIELD_MANAGER)
        if not resource.namespaced:
            uids[resource, manifest["metadata"]["name"]] = made["metadata"]["uid"]


async def remove_rights(admin: Client, namespace: str) -> None:
    """Delete the cluster-scoped permissions of a manager; the others are deleted with the namespace."""
    for (resource, name), uid in _installed.pop((admin.connection.server, namespace), {}).items():
        with suppress(NotFoundError, ConflictError):
            await admin.delete(resource, name, uid=uid)


async def grant(admin: Client, name: str, *rights: Right) -> str:
    """Grant more permissions to every manager, as a user would: by a ClusterRole with the aggregation label.

    Returns the uid of the ClusterRole.
    """
    role = {
        "apiVersion": CLUSTER_ROLES.api_version,
        "kind": CLUSTER_ROLES.kind,
        "metadata": {"name": name, "labels": {AGGREGATE_LABEL: "true"}},
        "rules": [right.rule() for right in rights],
    }
    made = await admin.apply(CLUSTER_ROLES, role, field_manager="test")
    uid: str = made["metadata"]["uid"]
    return uid


@asynccontextmanager
async def granting(admin: Client, name: str, *rights: Right) -> AsyncIterator[None]:
    """Grant more permissions to every manager within the block."""
    uid = await grant(admin, name, *rights)
    try:
        yield
    finally:
        with suppress(NotFoundError, ConflictError):
            await admin.delete(CLUSTER_ROLES, name, uid=uid)


@cache
def _rendered(namespace: str, features: Features) -> list[Object]:
    """The permissions of the manager in few objects, because every test writes and deletes them: one ClusterRole has
    the rules of all features, and all managers of a cluster share the one of what users grant."""
    everything = without_crds(Setting(namespace=namespace, features=features))
    found = sorted((item for item in everything if resource_of(item) in _RIGHTS), key=_place)
    names = {item["roleRef"]["name"] for item in found if resource_of(item) == CLUSTER_ROLE_BINDINGS}
    roles = [item for item in found if resource_of(item) == CLUSTER_ROLES and item["metadata"]["name"] in names]
    rules = [rule for role in roles for rule in role.get("rules") or ()]
    name = f"{MANAGER}:{namespace}"
    made: list[Object] = [{**roles[0], "metadata": {**roles[0]["metadata"], "name": name}, "rules": rules}]
    for item in found:
        if resource_of(item) == CLUSTER_ROLE_BINDINGS:
            granted = any("aggregationRule" in role for role in roles if _named(role) == item["roleRef"]["name"])
            if granted or _named(item) == name:
                role = _named(_GRANTED) if granted else name
                made.append({**item, "roleRef": {**item["roleRef"], "name": role}})
        elif resource_of(item) != CLUSTER_ROLES:
            made.append(item)
    return made


def _named(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def _place(obj: Object) -> int:
    return _RIGHTS.index(resource_of(obj))


# Clients


async def manager_connection(admin: Client, namespace: str, *, features: Features = ALL) -> ClusterConnection:
    """The connection of the manager of a namespace; its permissions are installed and in effect, including those of
    every ClusterRole with the aggregation label."""
    try:
        token = await _token(admin, namespace)
    except NotFoundError:
        await install_rights(admin, namespace, features=features)
        token = await _token(admin, namespace)
    connection = msgspec.structs.replace(admin.connection, certificate=None, key=None, credential=Token(token))
    aggregated = await admin.list(CLUSTER_ROLES, labels=f"{AGGREGATE_LABEL}=true")
    async with Client(connection, user_agent="rights-check") as client:
        await _until_in_effect(client, namespace, [*_rendered(namespace, features), *aggregated])
    return connection


@asynccontextmanager
async def manager_client(admin: Client, namespace: str) -> AsyncIterator[Client]:
    """A client with the identity and the permissions of the manager of a namespace.

    A client that is not an administrator's is used as it is: it was created for a manager with other permissions.
    """
    if not is_administrator(admin.connection):
        yield admin
        return
    # Its transport is not reused: create such a client with `manager_connection`.
    assert type(admin) is Client and isinstance(admin._transport, HttpTransport)  # noqa: S101, PT018, SLF001
    connection = await manager_connection(admin, namespace)
    async with Client(connection, user_agent=MANAGER_USER_AGENT) as client:
        yield client


async def manager_kubeconfig(cluster: LocalCluster, namespace: str, *, features: Features = ALL) -> Path:
    """Write a kubeconfig for the manager of a namespace; it lasts as long as the cluster."""
    connection = await manager_connection(cluster.client, namespace, features=features)
    path = cluster.files.kubeconfig(f"manager-{namespace}")
    path.write_text(kubeconfig.document(connection, cluster=cluster.name, user=MANAGER))
    path.chmod(0o600)
    return path


def is_administrator(connection: ClusterConnection, cluster: str = "") -> bool:
    """Whether a connection has all permissions: in one local cluster, or in whatever cluster it leads to."""
    if connection.certificate is None or connection.authority is None:
        return False
    groups = _subject(connection.certificate, NameOID.ORGANIZATION_NAME)
    of = _subject(connection.authority, NameOID.COMMON_NAME)
    return not groups.isdisjoint(ALL_RIGHTS) and (not cluster or f"unwind-local-{cluster}" in of)


def _subject(certificate: bytes, part: x509.ObjectIdentifier) -> set[str | bytes]:
    subject = x509.load_pem_x509_certificate(certificate).subject
    return {item.value for item in subject.get_attributes_for_oid(part)}


async def _token(admin: Client, namespace: str) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
    made = await admin.post(SERVICE_ACCOUNTS, MANAGER, "token", body, namespace=namespace)
    token: str = made["status"]["token"]
    return token


async def _until_in_effect(client: Client, namespace: str, objects: list[Object]) -> None:
    """Wait until RBAC is in effect, a moment after it was written: with a clock that stands still, nothing is
    retried."""
    # One rule per role: a role takes effect as a whole.
    roles = [role for role in objects if role.get("rules")]
    wanted = [_first(role["rules"][0], role["metadata"].get("namespace", "")) for role in roles]
    try:
        async with asyncio.timeout(_HEEDED_WITHIN):
            while True:
                allowed = await asyncio.gather(*(_may(client, item) for item in wanted))
                wanted = [attributes for attributes, may in zip(wanted, allowed, strict=True) if not may]
                if not wanted:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"the manager of {namespace} does not have these permissions: {wanted}") from None


def _first(rule: Object, namespace: str) -> Object:
    resource, _, subresource = rule["resources"][0].partition("/")
    asked = {
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "verb": rule["verbs"][0],
        "namespace": namespace,
        "name": (rule.get("resourceNames") or [""])[0],
    }
    return {key: value for key, value in asked.items() if value}


async def _may(client: Client, asked: Object) -> bool:
    resource = SELF_SUBJECT_ACCESS_REVIEWS
    body: dict[str, Any] = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {},
        "spec": {"resourceAttributes": asked},
    }
    allowed: bool = (await client.create(resource, body))["status"]["allowed"]
    return allowed


# Requests


class _Window(msgspec.Struct):
    resources: tuple[str, ...]
    since: datetime
    until: datetime | None = None
    user: str = ""


_expected: list[_Window] = []


@contextmanager
def expecting_refusals(*resources: str) -> Iterator[None]:
    """Within the block, RBAC may refuse a manager's requests for these resources (plural names), or for any if none are
    given: a starting API server knows no permissions at first."""
    window = _Window(resources, datetime.now(UTC))
    _expected.append(window)
    try:
        yield
    finally:
        window.until = datetime.now(UTC)


used: set[UsedRight] = set()
"""The rights that managers have used on all clusters that were checked."""


def check_requests(cluster: LocalCluster) -> None:
    """Raise if a manager sent requests with all permissions, or if RBAC refused one that no test expected."""
    entries = list(cluster.audit.entries(containing=_MARKS))
    used.update(used_rights.rights_used(entry for entry in entries if entry.username.endswith(_ACCOUNT)))
    found = Counter(filter(None, map(_wrong, entries)))
    if found:
        told = "\n".join(f"  {count} times: {what}" for what, count in sorted(found.items()))
        raise AssertionError(f"requests of managers to {cluster.name} that should not have been sent:\n{told}")


_ACCOUNT = f":{MANAGER}"
_MARKS = (MANAGER_USER_AGENT.encode(), f'{_ACCOUNT}"'.encode())


def _wrong(entry: AuditEvent) -> str:
    """What is wrong with a request; empty if nothing is, or if it is not a manager's."""
    account = entry.username.startswith("system:serviceaccount:") and entry.username.endswith(_ACCOUNT)
    if not account and entry.user_agent != MANAGER_USER_AGENT:
        return ""
    ref = entry.object_ref
    resource = f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource
    what = f"{entry.verb} {resource}.{ref.group}".rstrip(".")
    if set(ALL_RIGHTS) & set(entry.user.groups):
        return f"with all permissions: {what}, as {entry.username}"
    if entry.unauthorized and not _is_expected(entry):
        where = f" in namespace {ref.namespace}" if ref.namespace else ""
        return f"refused by RBAC: {what} {ref.name}{where}, as {entry.username}"
    return ""


def expect_refusals_of(namespace: str, *resources: str) -> None:
    """From now on, RBAC may refuse requests of the manager of a namespace for these resources (plural names).

    For a manager that is killed: the API server may read its last requests later.
    """
    _expected.append(_Window(resources, datetime.now(UTC), user=manager_user(namespace)))


def _is_expected(entry: AuditEvent) -> bool:
    at = datetime.fromisoformat(entry.request_received_timestamp)
    return any(
        (not window.resources or entry.object_ref.resource in window.resources)
        and (not window.user or entry.username == window.user)
        and window.since <= at <= (window.until or at)
        for window in _expected
    )
