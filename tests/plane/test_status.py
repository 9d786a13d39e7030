"""What a person sees of teardowns: `unwind status`, `ledger`, `release`, `version`, and shell completion."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from tests.forked_commands import UNWIND
from tests.plane.support.cluster_teardowns import manager, scene
from tests.plane.support.controllers import HOLD
from tests.plane.support.teardown_records import NOW, STUCK, Person, Record
from unwind.api import karmada
from unwind.api.meta import ObjectMeta, ObjectRef, manifest
from unwind.api.names import FORCE_RELEASE_ANNOTATION, VERSION_ANNOTATION
from unwind.api.resources import LEASES
from unwind.api.unwind import TEARDOWNS, LedgerNote, Release, Teardown, TeardownSpec
from unwind.testing.clock import StillClock

if TYPE_CHECKING:
    from pathlib import Path

    from unwind.local.plane import Plane


async def test_status_shows_progress_blockers_their_age_and_the_actor(plane: Plane, record: Record) -> None:
    person = Person(plane.management.kubeconfig)
    await record.comes_to("Held", "Removed", "Removing", "7/10", blockers=(STUCK,))

    all_ = await person.types("status")
    assert all_.code == 0, all_.err
    row = next(line for line in all_.out.splitlines() if line.startswith(record.title))
    assert row.split()[2:4] == ["Held", "2/2"]
    assert "━━━━━━━━────" in row
    assert "7/10" in row
    assert f"{record.title} is blocked:\n  Service ingress/nginx has the finalizer example.dev/cloud" in all_.out
    assert "must act: the cloud's controller · since " in all_.out

    one = await person.types("status", f"fleet/{record.name}")
    assert "7/10 gone, wave 2/2" in one.out
    assert "  ClusterProfile/ingress  Enforce  0/6 objects  Removing  after ClusterProfile/monitoring" in one.out
    assert record.uid in (await person.types("status", "-o", "wide")).out

    told = (await person.types("status", record.name, "-n", "fleet", "-o", "json")).json()
    assert [item["metadata"]["name"] for item in told["items"]] == [record.uid]
    assert told["items"][0]["kind"] == "Teardown"
    assert "managedFields" not in told["items"][0]["metadata"]
    assert (await person.types("status", "-n", "nowhere", "-o", "json")).json()["items"] == []


async def test_an_unknown_target_is_a_one_line_error(plane: Plane, record: Record) -> None:
    person = Person(plane.management.kubeconfig)
    for arguments in ("status nobody", f"status {record.name} -n elsewhere", "release nobody --reason x"):
        told = await person.types(*arguments.split())
        assert told.code == 1
        assert told.err.startswith("unwind: ")
        assert "found; " in told.err
        assert len(told.err.splitlines()) == 1

    bare = Person(plane.members["member-1"].kubeconfig)
    told = await bare.types("status")
    assert (told.code, told.err) == (
        1,
        "unwind: the CRD of Teardown is not installed; install it with `unwind install`\n",
    )


async def test_watch_in_a_pipe_prints_changes_until_the_end(plane: Plane, record: Record) -> None:
    person = Person(plane.management.kubeconfig)
    await record.comes_to("Removing", "Removing", "Waiting", "1/10")
    watching = await person.start(str(UNWIND), "status", record.name, "--watch")
    assert watching.stdout

    async def told() -> str:
        return (await watching.stdout.readline()).decode().strip().removeprefix(f"{record.title}: ")  # type: ignore[union-attr]

    assert [await told() for _ in range(2)] == [
        "Removing, wave 1/2, 1/10 gone",
        "ClusterProfile/monitoring is Removing",
    ]
    await record.comes_to("Held", "Removed", "Removing", "4/10", blockers=(STUCK,))
    assert [await told() for _ in range(4)] == [
        "Held, wave 2/2, 4/10 gone",
        "ClusterProfile/monitoring is Removed",
        "ClusterProfile/ingress is Removing",
        "blocked: Service ingress/nginx has the finalizer example.dev/cloud (must act: the cloud's controller)",
    ]
    await record.comes_to("Complete", "Removed", "Removed", "10/10")
    rest, err = await watching.communicate()
    assert rest.decode().replace(f"{record.title}: ", "").splitlines() == [
        "Complete, wave 2/2, 10/10 gone",
        "ClusterProfile/ingress is Removed",
        "no longer blocked by Service ingress/nginx",
    ]
    assert (watching.returncode, err) == (0, b"")


async def test_watch_on_a_terminal_redraws_until_the_end(plane: Plane, record: Record) -> None:
    person = Person(plane.management.kubeconfig)
    await record.comes_to("Removing", "Removing", "Waiting", "1/10")
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        UNWIND, "status", record.name, "--watch", env=person.env | {"TERM": "xterm"}, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = ""

    async def until_seen(text: str) -> None:
        nonlocal seen
        while text not in seen:
            seen += (await asyncio.to_thread(os.read, ours, 65536)).decode(errors="replace")

    await until_seen("1/10 gone, wave 1/2")
    assert seen.index("wave 1\x1b") < seen.index("→") < seen.index("wave 2\x1b")
    await record.comes_to("Held", "Removed", "Removing", "4/10", blockers=(STUCK,))
    await until_seen("4/10 gone, wave 2/2")
    await until_seen("✗ ")
    await record.comes_to("Complete", "Removed", "Removed", "10/10")
    await until_seen("10/10 gone, wave 2/2")
    assert await process.wait() == 0
    os.close(ours)
    # The cursor went up again to draw over what was there, and NO_COLOR was heeded.
    assert "\x1b[1A" in seen
    assert "\x1b[32m" not in seen


async def test_watch_exits_with_3_on_timeout(plane: Plane, record: Record) -> None:
    person = Person(plane.management.kubeconfig)
    told = await person.types("status", record.name, "--watch", "--timeout", "1s", "-o", "json")
    assert told.code == 3
    assert told.err.startswith(f"unwind: timed out waiting for the teardown of '{record.name}' to finish; ")
    assert [msgspec.json.decode(line)["metadata"]["name"] for line in told.out.splitlines()] == [record.uid]


async def test_the_ledger_lists_each_object_with_reason_user_and_time(plane: Plane, record: Record) -> None:
    person = Person(plane.management.kubeconfig)
    await record.left("old", LedgerNote(reason="Forced", message="the fire", by="ada", at=NOW))
    await record.left("kept", LedgerNote(reason="KeptByPolicy", by="a label", at=NOW - timedelta(days=1)), kept=True)
    release = Release(reason="Forced", message="the fire", by="ada", at=NOW)
    await record.comes_to("Released", "Removed", "Removing", "7/10", left=2, release=release)

    shown = (await person.types("ledger", record.name)).out.splitlines()
    when = NOW.strftime("%Y-%m-%d at %H:%M")
    assert shown[0] == f"{record.title} was released by ada on {when} UTC (Forced): the fire; 2 objects left behind"
    assert [line.split("  ")[0] for line in shown[2:]] == ["CLUSTER", record.title, record.title]
    assert "ConfigMap shop/old" in shown[3]
    assert "Forced: the fire" in shown[3]

    told = (await person.types("ledger", f"cluster/{record.name}", "-o", "json")).json()
    assert [(item["object"]["name"], item["reason"], item["by"], item.get("kept", False)) for item in told["left"]] == [
        ("old", "Forced", "ada", False),
        ("kept", "KeptByPolicy", "a label", True),
    ]
    assert [item["release"]["message"] for item in told["released"]] == ["the fire"]
    nothing = (await person.types("ledger", "nobody", "-o", "json")).json()
    assert nothing == {"released": [], "left": [], "setAside": [], "notVerified": []}


async def test_release_frees_a_held_cluster_and_lists_what_is_left(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    person = Person(plane.management.kubeconfig)
    await it.add_on("stuck", finalizers=(HOLD,), objects=2)
    wanted = ("release", it.name, "-n", namespace, "--reason", "the data centre is gone")

    refused = await person.types(*wanted, "--yes")
    assert refused.code == 1
    assert f"Cluster {namespace}/{it.name}: it is not being deleted" in refused.err
    assert "kubectl delete clusters.cluster.x-k8s.io" in refused.err

    async with manager(it.client, clock=StillClock()):
        await it.delete()
        await it.teardown(lambda one: bool(one.status.blockers), "blocked")
        unasked = await person.types(*wanted)
        assert (unasked.code, unasked.err.splitlines()[-1]) == (
            1,
            "unwind: cannot ask for confirmation: stdin is not a terminal; use --yes",
        )
        assert "2 objects would be left behind (not verified absent): 2 ConfigMap" in unasked.err
        assert f"  ConfigMap {it.on_member}/stuck-0" in unasked.err

        done = await person.types(*wanted, "--yes", "-o", "json")
        told = done.json()
    assert {item["object"]["name"] for item in told["left"]} == {"stuck-0", "stuck-1"}
    assert {item["message"] for item in told["left"]} == {"the data centre is gone"}
    assert [item["release"]["reason"] for item in told["released"]] == ["Forced"]
    assert (await it.ended()).phase == "Released"

    again = await person.types(*wanted, "--yes")
    assert again.code == 1
    assert "is finished (Released)" in again.err
    await it.unblock()
    await it.let_go()


async def test_release_exits_with_3_without_a_manager_and_the_annotation_stays(plane: Plane, namespace: str) -> None:
    it = await scene(plane, namespace)
    person = Person(plane.management.kubeconfig)
    await it.add_on("stuck", finalizers=(HOLD,), objects=1)
    async with manager(it.client, clock=StillClock()):
        await it.delete()
        await it.teardown(lambda one: bool(one.status.blockers), "blocked")
    wanted = ("release", f"{namespace}/{it.name}", "--yes", "--timeout", "1s", "--reason")
    told = await person.types(*wanted, "enough")
    assert told.code == 3
    assert "timed out after 1s waiting for the manager to release" in told.err.splitlines()[-1]
    told = await person.types(*wanted, "another reason")
    assert told.code == 3
    assert "already requested by" in told.err
    async with manager(it.client, clock=StillClock()):
        ended = await it.ended()
    assert ended.status.release
    assert (ended.phase, ended.status.release.message) == ("Released", "enough")
    await it.unblock()
    await it.let_go()


async def test_release_frees_a_karmada_cluster_by_its_uid(plane: Plane, record: Record) -> None:
    client, person = plane.management.client, Person(plane.management.kubeconfig)
    made = await client.create(
        karmada.CLUSTERS,
        {
            "apiVersion": karmada.CLUSTERS.api_version,
            "kind": "Cluster",
            "metadata": {"name": record.name, "finalizers": [HOLD]},
            "spec": {"syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1"},
        },
    )
    uid = made["metadata"]["uid"]
    await client.delete(karmada.CLUSTERS, record.name, uid=uid)
    wanted = ("release", record.name, "--yes", "--timeout", "1s", "--reason", "it burnt down")
    told = await person.types(*wanted)
    assert told.code == 1
    assert "it has no Teardown" in told.err

    spec = TeardownSpec(
        title=f"Cluster {record.name}",
        target=ObjectRef(group=karmada.CLUSTERS.group, kind="Cluster", name=record.name, uid=uid),
        cause="Unjoined",
    )
    await client.create(TEARDOWNS, manifest(TEARDOWNS, Teardown(metadata=ObjectMeta(name=uid), spec=spec)))
    told = await person.types(*wanted)
    assert told.code == 3
    found = await client.get(karmada.CLUSTERS, record.name)
    assert found["metadata"]["annotations"][FORCE_RELEASE_ANNOTATION] == "it burnt down"

    await client.patch(karmada.CLUSTERS, record.name, {"metadata": {"finalizers": None}})
    teardown = await client.get(TEARDOWNS, uid)
    await client.delete(TEARDOWNS, uid, uid=teardown["metadata"]["uid"])


async def test_version_shows_the_program_the_server_and_live_managers(plane: Plane, namespace: str) -> None:
    person = Person(plane.management.kubeconfig)
    client = plane.management.client
    told = (await person.types("version", "-o", "json", "--namespace", namespace)).json()
    assert told["server"].startswith("v1.")
    assert told["managers"] == []
    for name, renewed in (("alive", datetime.now(UTC)), ("dead", NOW - timedelta(hours=1))):
        metadata = {
            "name": f"unwind-replica-{name}",
            "namespace": namespace,
            "annotations": {VERSION_ANNOTATION: "9.9"},
        }
        spec = {"holderIdentity": name, "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        spec_ = spec | {"leaseDurationSeconds": 300 if name == "alive" else 15}
        await client.create(
            LEASES, {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec_}
        )
    told = (await person.types("version", "-o", "json", "--namespace", namespace)).json()
    assert told["managers"] == [{"name": "alive", "version": "9.9"}]
    assert "manager  9.9 (alive)" in (await person.types("version", "--namespace", namespace)).out


async def test_bash_completes_commands_options_and_names_of_teardowns(plane: Plane, record: Record) -> None:
    person = Person(plane.management.kubeconfig)
    person.env["PATH"] = f"{UNWIND.parent}:{person.env['PATH']}"
    script = """
        source <(unwind completion bash)
        complete -p unwind
        try() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
            _unwind
            echo "${COMPREPLY[@]}"
        }
        try unwind stat
        try unwind status --wa
        try unwind status -o js
        try unwind status "$1"
        try unwind ledger "$1"
        try unwind completion z
    """
    shell = await person.start("bash", "-c", script, "bash", record.name[:5])
    out, err = await shell.communicate()
    found = [line.strip() for line in out.decode().splitlines()]
    assert found[0] == "complete -F _unwind unwind", err.decode()
    assert found[1:] == ["status", "--watch", "json", record.name, record.name, "zsh"], err.decode()


async def test_completion_is_silent_and_quick_without_a_cluster(tmp_path: Path) -> None:
    person = Person(tmp_path / "nothing")
    process = await person.start(str(UNWIND), "__complete", "status", "")
    out, err = await process.communicate()
    # Which only says that an answer begins.
    assert (process.returncode, out.strip(), err) == (0, b"\x1fbegin", b"")
