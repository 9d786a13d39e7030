"""The clusters of a diagnosis: the one that the user asked about, and its members."""

from __future__ import annotations

import json
import shlex
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from unwind.errors import UnwindError
from unwind.kube.discovery import Discovery
from unwind.members import cluster_lookup
from unwind.why.answers import Kubectl, Thing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.meta import ObjectRef
    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object
    from unwind.members.members import Members
    from unwind.members.targets import ClusterTarget
    from unwind.why.facts import ControllerWorkload


class ReachableCluster:
    """One cluster, and how kubectl connects to it."""

    def __init__(
        self,
        client: Client,
        *,
        discovery: Discovery | None = None,
        kubectl: Kubectl | None = None,
        name: str = "",
        fleet: Members | None = None,
        notes: list[str] | None = None,
        ref: ObjectRef | None = None,
    ) -> None:
        """`name`: its display name, if it is not the cluster that the user asked about. `fleet`: connects to its
        members; None for a member. `ref`: the object that represents a member."""
        self.client = client
        self.discovery = discovery or Discovery(client)
        self.kubectl = kubectl or Kubectl()
        self.name = name
        self.fleet = fleet
        self.ref = ref
        self.notes: list[str] = [] if notes is None else notes
        """What could not be read, shared by all clusters of one diagnosis."""
        self.workloads: tuple[ControllerWorkload, ...] | None = None
        """All of its workloads, once read."""

    def unseen(self, what: str, error: UnwindError) -> None:
        """Note that something could not be read, so the answer may be incomplete."""
        note = f"cannot read {what}: {error}" + ("" if error.remedy else "; the answer may miss a cause, retry")
        if note not in self.notes:
            self.notes.append(note)

    @asynccontextmanager
    async def member(self, ref: ObjectRef) -> AsyncIterator[ReachableCluster]:
        """The member that an object of this cluster represents. Raises UnwindError if it is unreachable."""
        async with self.reached(await cluster_lookup.anchor_of(self.client, self.discovery, ref)) as place:
            yield place

    @asynccontextmanager
    async def reached(self, anchor: ClusterTarget) -> AsyncIterator[ReachableCluster]:
        """The member at this anchor. Raises UnwindError if it is unreachable."""
        if self.fleet is None:
            raise UnwindError(
                f"cannot connect to {anchor}: no credentials for members are read here",
                remedy="run the command with the kubeconfig or --context of that cluster",
            )
        async with self.fleet.member(anchor) as member:
            yield ReachableCluster(
                member.client,
                discovery=member.discovery,
                kubectl=reaching(anchor, self.kubectl),
                name=str(anchor),
                notes=self.notes,
                ref=anchor.ref,
            )


def reaching(anchor: ClusterTarget, home: Kubectl) -> Kubectl:
    """kubectl for a member; its first command saves the credentials to a file that only the user can read (pure).

    The command itself contains nothing from the Secret.
    """
    file = f"{anchor.ref.name}.kubeconfig"
    if anchor.endpoint:
        template = _kubeconfig(anchor.ref.name, anchor.endpoint.server, insecure=anchor.endpoint.insecure)
    else:
        template = f'{{{{index .data "{anchor.secret_key}" | base64decode}}}}' if anchor.secret_key else _FIRST
    get = home.call("get", "secret", "-n", anchor.home, anchor.secret, "-o", f"go-template={template}")
    write = f"(umask 077; {get} > {shlex.quote(file)})"
    return Kubectl(options=("--kubeconfig", shlex.quote(file)), first=(*home.first, write))


_FIRST = "{{range $key, $value := .data}}{{base64decode $value}}{{break}}{{end}}"


def _kubeconfig(name: str, server: str, *, insecure: bool) -> str:
    """A kubeconfig as a template over a Secret with a token and a CA bundle."""
    trust = {"insecure-skip-tls-verify": True} if insecure else {"certificate-authority-data": "{{.data.caBundle}}"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, **trust}}],
        "users": [{"name": name, "user": {"token": "{{base64decode .data.token}}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return json.dumps(document, separators=(",", ":"))


# Helpers that convert API objects for a diagnosis.


async def thing_of(
    place: ReachableCluster, *, group: str, kind: str, name: str, namespace: str = "", uid: str = ""
) -> Thing:
    """An object by its kind, with its name in commands. Raises UnwindError if the kind is not served."""
    resource = await place.discovery.resource(kind, group=group)
    return Thing(resource=resource, name=name, namespace=namespace if resource.namespaced else "", uid=uid)


def as_thing(resource: Resource, obj: Object) -> Thing:
    """An object that was read."""
    meta = obj["metadata"]
    return Thing(resource=resource, name=meta["name"], namespace=meta.get("namespace", ""), uid=meta["uid"])


def moment(text: str | None) -> datetime | None:
    """A timestamp of the API; None if it is invalid."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None  # an invalid timestamp must not prevent an answer
