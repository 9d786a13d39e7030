"""The clusters that are asked: the one a person speaks to, and its members."""

from __future__ import annotations

import json
import shlex
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from unwind.diagnosing.commands import Kubectl
from unwind.errors import UnwindError
from unwind.fleet import finding
from unwind.kube.discovery import Discovery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.meta import ObjectRef
    from unwind.diagnosing.facts import Workload
    from unwind.fleet.fleet import Fleet
    from unwind.fleet.targets import Anchor
    from unwind.kube.client import Client


class Place:
    """One cluster, and how commands for it begin."""

    def __init__(
        self,
        client: Client,
        *,
        discovery: Discovery | None = None,
        kubectl: Kubectl | None = None,
        name: str = "",
        fleet: Fleet | None = None,
        notes: list[str] | None = None,
    ) -> None:
        """`name`: what it is called, where it is not the one that was asked. `fleet`: by which its members are reached;
        a member has none."""
        self.client = client
        self.discovery = discovery or Discovery(client)
        self.kubectl = kubectl or Kubectl()
        self.name = name
        self.fleet = fleet
        self.notes: list[str] = [] if notes is None else notes
        """What could not be looked at, shared by all places of one question."""
        self.workloads: tuple[Workload, ...] | None = None
        """All of its workloads, once somebody has asked for them."""

    def unseen(self, what: str, error: UnwindError) -> None:
        """Remember that something could not be looked at: the answer is less than the whole truth then."""
        note = f"could not look at {what}: {error}"
        if note not in self.notes:
            self.notes.append(note)

    @asynccontextmanager
    async def member(self, ref: ObjectRef) -> AsyncIterator[Place]:
        """The member that an object on this cluster stands for. Raises UnwindError if it cannot be reached."""
        async with self.reached(await finding.anchor_of(self.client, self.discovery, ref)) as place:
            yield place

    @asynccontextmanager
    async def reached(self, anchor: Anchor) -> AsyncIterator[Place]:
        """The same by what is known of it."""
        if self.fleet is None:
            raise UnwindError(f"{anchor} cannot be reached from a member")
        async with self.fleet.member(anchor) as member:
            yield Place(
                member.client,
                discovery=member.discovery,
                kubectl=reaching(anchor, self.kubectl),
                name=str(anchor),
                notes=self.notes,
            )


def reaching(anchor: Anchor, home: Kubectl) -> Kubectl:
    """kubectl for a member: first its credentials are written to a file, for nobody but whoever types it (pure).

    Nothing of the Secret is in the command itself.
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
    """A kubeconfig file as a template over a Secret with a token and the server's authority."""
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
