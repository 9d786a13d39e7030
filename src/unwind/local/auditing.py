"""The API server's audit log: who asked for what, in which order, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Everything but the components' own reading. A DELETE is recorded with its body, because the body is where the uid
# stands; nothing else is, so that no Secret ends up in the log. Of ServiceAccounts outside kube-system, such as the
# manager's, every request is recorded, so that a missing right shows whatever it is for.
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


class ObjectRef(msgspec.Struct, frozen=True, rename={"group": "apiGroup"}):
    """The object that a request was about, as far as its path says."""

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


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """One request that the API server finished."""

    verb: str
    user: _User
    user_agent: str = ""
    object_ref: ObjectRef = ObjectRef()
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
        """Whether RBAC refused the request. Admission also answers with 403, but only to authorized requests."""
        return self.annotations.get("authorization.k8s.io/decision") == "forbid"

    @property
    def code(self) -> int:
        return self.response_status.code

    @property
    def uid(self) -> str:
        """The uid that a DELETE insisted on; empty if it took whatever had the name."""
        return self.request_object.preconditions.uid


class AuditLog:
    """Reads the audit log of one API server.

    An answer is in the log before the client has it, so that what a test awaited is there when it looks.
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
    ) -> Iterator[Entry]:
        """What was asked, in the order in which it was finished.

        `containing`: decode only lines that contain one of these, which is faster in a large log.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as log:
            for line in log:
                if not line.endswith(b"\n"):
                    return  # being written just now
                if containing and not any(one in line for one in containing):
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

    def deletions(self, *, resource: str | None = None, namespace: str | None = None) -> list[Entry]:
        """The deletions that the API server accepted, in order."""
        entries = self.entries(verbs=("delete", "deletecollection"), resource=resource, namespace=namespace)
        return [entry for entry in entries if entry.code < 300]


_decode = msgspec.json.Decoder(Entry).decode
