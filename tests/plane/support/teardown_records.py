"""Teardowns that no manager carries out, and a person with a shell who looks at them."""

from __future__ import annotations

import asyncio
import os
import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from tests import forked_commands
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import MEMBER_LABEL
from unwind.api.rights import HOME
from unwind.api.unwind import (
    INVENTORIES,
    TEARDOWNS,
    Blocker,
    Entry,
    Inventory,
    InventorySpec,
    LedgerNote,
    MemberRef,
    Plan,
    Step,
    StepStatus,
    Teardown,
    TeardownSpec,
    TeardownStatus,
)

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from unwind.kube.client import Client


NOW = datetime.now(UTC).replace(microsecond=0)
STUCK = Blocker(
    object=ObjectRef(version="v1", kind="Service", namespace="ingress", name="nginx", uid="s1"),
    step="ClusterProfile/ingress",
    reason="Finalizer",
    message="Service ingress/nginx has the finalizer example.dev/cloud",
    actor="the cloud's controller",
    since=NOW - timedelta(minutes=3),
)


class Typed:
    """What a command has printed, and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def json(self) -> Any:
        assert self.code == 0, self.err
        return msgspec.json.decode(self.out)


class Person:
    """Somebody with a shell and a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.env = os.environ | {"KUBECONFIG": str(kubeconfig), "NO_COLOR": "1", "COLUMNS": "100"}

    async def start(self, *command: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *command,
            env=self.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def types(self, *arguments: str) -> Typed:
        return Typed(await forked_commands.run_off_loop(*arguments, env=self.env))


class Record:
    """A Teardown that nobody carries out but the test."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = f"c-{uuid.uuid4().hex[:6]}"
        self.uid = str(uuid.uuid4())
        self.title = f"Cluster fleet/{self.name}"

    @property
    def target(self) -> ObjectRef:
        return ObjectRef(
            group="cluster.x-k8s.io",
            version="v1beta2",
            kind="Cluster",
            namespace="fleet",
            name=self.name,
            uid=self.uid,
        )

    async def begin(self) -> None:
        steps = (("monitoring", "Enforce", 1, 4, ("ingress",)), ("ingress", "Enforce", 2, 6, ()))
        plan = Plan(
            steps=tuple(
                Step(
                    name=f"ClusterProfile/{name}",
                    object=ObjectRef(kind="ClusterSummary", name=name),
                    effort=effort,
                    wave=wave,
                    objects=objects,
                    needs=tuple(f"ClusterProfile/{need}" for need in needs),
                )
                for name, effort, wave, objects, needs in steps
            ),
            waves=2,
            objects=10,
        )
        spec = TeardownSpec(
            title=self.title,
            target=self.target,
            cause="ClusterDeleted",
            requested_at=NOW - timedelta(minutes=9),
            requested_by="ada",
            plan=plan,
        )
        wanted = Teardown(metadata=ObjectMeta(name=self.uid), spec=spec)
        await self.client.create(TEARDOWNS, manifest(TEARDOWNS, wanted))

    async def remove(self) -> None:
        """Delete it and its Inventories: other tests read all that there are."""
        for inventory in await self.client.list(INVENTORIES, namespace=HOME, labels=f"{MEMBER_LABEL}={self.uid}"):
            metadata = inventory["metadata"]
            await self.client.delete(INVENTORIES, metadata["name"], uid=metadata["uid"], namespace=HOME)
        found = await self.client.get(TEARDOWNS, self.uid)
        await self.client.delete(TEARDOWNS, self.uid, uid=found["metadata"]["uid"])

    async def comes_to(
        self,
        phase: str,
        monitoring: str,
        ingress: str,
        removed: str,
        *,
        blockers: tuple[Blocker, ...] = (),
        **more: Any,
    ) -> None:
        status = TeardownStatus(
            phase=phase,
            wave="1/2" if ingress == "Waiting" else "2/2",
            removed=removed,
            steps=(
                StepStatus(name="ClusterProfile/monitoring", state=monitoring),
                StepStatus(name="ClusterProfile/ingress", state=ingress),
            ),
            blockers=blockers,
            **more,
        )
        body = {"apiVersion": TEARDOWNS.api_version, "kind": TEARDOWNS.kind, "metadata": {"name": self.uid}}
        await self.client.apply(TEARDOWNS, body | {"status": msgspec.to_builtins(status)}, subresource="status")

    async def left(self, name: str, note: LedgerNote, *, kept: bool = False) -> None:
        """An object of it that is written down as left behind, beside one that went."""
        entries = {
            name: Entry(
                object=ObjectRef(version="v1", kind="ConfigMap", namespace="shop", name=name, uid=name),
                state="Confirmed",
                kept=kept,
                ledger=note,
            ),
            "went": Entry(object=ObjectRef(version="v1", kind="ConfigMap", name="went"), state="Removed"),
        }
        inventory = Inventory(
            metadata=ObjectMeta(name=f"{self.uid}-{name}", namespace=HOME, labels={MEMBER_LABEL: self.uid}),
            spec=InventorySpec(
                owner=ObjectRef(kind="ClusterSummary", namespace="fleet", name="shop", uid="o"),
                member=MemberRef(object=self.target, system_uid="x"),
                entries=entries,
            ),
        )
        await self.client.create(INVENTORIES, manifest(INVENTORIES, inventory))
