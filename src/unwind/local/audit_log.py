"""Read the API server's audit log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Everything except the reads of the components. A DELETE is recorded with its body, which contains the uid; nothing
# else is, so that no Secret ends up in the log. For ServiceAccounts outside kube-system, such as the manager's, every
# request is recorded, so that any missing right shows.
POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    "rules": [
        {"level": "Request", "verbs": ["delete", "deletecollection"]},
        {"level": "None", "nonResourceURLs": ["*"]},
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"], "verbs": ["get", "list", "watch"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "None", "resources": [{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"}]},
        {
            "level": "None",
            "userGroups": ["system:nodes", "system:authenticated"],
            "verbs": ["watch"],
        },
        {
            "level": "None",
            "users": [
                "system:apiserver",
                "system:kube-controller-manager",
                "system:kube-scheduler",
                "system:cloud-controller-manager",
                "system:node-controller",
            ],
            "verbs": ["get", "list"],
        },
        {"level": "Metadata"},
    ],
}


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    groups: tuple[str, ...] = ()


class AuditedObject(msgspec.Struct, frozen=True, rename={"group": "apiGroup"}):
    """The object of a request, from its path."""

    group: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class _Preconditions(msgspec.Struct, frozen=True):
    uid: str = ""


class _DeleteOptions(msgspec.Struct, frozen=True):
    preconditions: _Preconditions = _Preconditions()


class _Response(msgspec.Struct, frozen=True):
    code: int = 0


class AuditEvent(msgspec.Struct, frozen=True, rename="camel"):
    """One completed request."""

    verb: str
    user: _User
    user_agent: str = ""
    request_uri: str = msgspec.field(default="", name="requestURI")
    object_ref: AuditedObject = AuditedObject()
    response_status: _Response = _Response()
    request_object: _DeleteOptions = _DeleteOptions()
    request_received_timestamp: str = ""
    stage_timestamp: str = ""
    annotations: dict[str, str] = {}

    @property
    def username(self) -> str:
        return self.user.username

    @property
    def unauthorized(self) -> bool:
        """Whether RBAC refused the request. Admission also answers 403, but only to authorized requests."""
        return self.annotations.get("authorization.k8s.io/decision") == "forbid"

    @property
    def code(self) -> int:
        return self.response_status.code

    @property
    def uid(self) -> str:
        """The uid precondition of a DELETE; empty if it had none."""
        return self.request_object.preconditions.uid


class AuditLog:
    """Reads the audit log of one API server.

    A response is logged before the client receives it, so a test finds the entries of all requests it awaited.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(
        self,
        *,
        verbs: tuple[str, ...] = (),
        resource: str | None = None,
        namespace: str | None = None,
        user: str | None = None,
        containing: tuple[bytes, ...] = (),
    ) -> Iterator[AuditEvent]:
        """The requests, in the order of completion.

        `containing`: decode only lines that contain one of these, which is faster in a large log.
        """
        if not self.path.exists():
            return
        # The log of a long session is large: most of its lines need not be decoded.
        fields = {"username": user, "resource": resource, "namespace": namespace}
        needed = [f'"{key}":"{value}"'.encode() for key, value in fields.items() if value and _PLAIN.fullmatch(value)]
        with self.path.open("rb") as log:
            for line in log:
                if not line.endswith(b"\n"):
                    return  # an incomplete line, still being written
                if containing and not any(item in line for item in containing):
                    continue
                if not all(item in line for item in needed):
                    continue
                entry = _decode(line)
                ref = entry.object_ref
                if (
                    (not verbs or entry.verb in verbs)
                    and (resource is None or ref.resource == resource)
                    and (namespace is None or ref.namespace == namespace)
                    and (user is None or entry.username == user)
                ):
                    yield entry

    def deletions(self, *, resource: str | None = None, namespace: str | None = None) -> list[AuditEvent]:
        """The accepted deletions, in the order in which the API server received them.

        The log has them in the order of completion: a controller can react to a deletion before its response is logged.
        """
        entries = self.entries(verbs=("delete", "deletecollection"), resource=resource, namespace=namespace)
        accepted = [entry for entry in entries if entry.code < 300]
        return sorted(accepted, key=lambda entry: entry.request_received_timestamp)


_decode = msgspec.json.Decoder(AuditEvent).decode
# Values that JSON writes as they are.
_PLAIN = re.compile(r"[\w.:/@-]+", re.ASCII)
