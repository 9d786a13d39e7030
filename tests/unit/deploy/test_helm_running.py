"""How Helm is run, shown with a program in its place."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.eventually import eventually
from tests.owners import Owner
from unwind.errors import UnwindError
from unwind.helm.charts import Chart
from unwind.helm.program import Helm, HelmError, complained
from unwind.kube.fencing import FencedError, Fences
from unwind.kube.kubeconfig import Basic, ClusterConnection, Token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MEMBER = ClusterConnection(server="https://member.test", credential=Token("hush"))
CHART = Chart(release="web", namespace="shop", chart="web", repository="https://charts.test", values=("a: 1", "b: 2"))


def program(directory: Path, script: str) -> Path:
    path = directory / "helm"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


async def until_there(path: Path) -> str:
    await eventually(lambda: read(path).endswith("\n"), f"a line in {path.name}", within=30)
    return read(path)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_credentials_and_values_are_on_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/of/somebody/else")
    monkeypatch.setenv("HELM_PLUGINS", "/of/somebody/else")
    seen = tmp_path / "seen"
    script = f"""
for word in "$@"; do case "$word" in
  --kubeconfig=*|--values=*) readlink "${{word#*=}}"; cat "${{word#*=}}" "${{word#*=}}"; echo;;
esac; done
stat -c "%a %n" "$PWD"; find "$PWD" -type f; env; pwd > {seen}"""
    helm = Helm(program(tmp_path, script))
    output = await helm._deploy("upgrade", MEMBER, CHART, [])
    lines = output.decode().splitlines()
    directory = seen.read_text().strip()
    assert f"700 {directory}" in lines
    assert not [line for line in lines if line.startswith(f"{directory}/")], "there is no file in it"
    assert [line.split(":")[1].split(" ")[0] for line in lines if line.startswith("/memfd:")] == [
        "unwind-helm-values-0.yaml",
        "unwind-helm-values-1.yaml",
        "unwind-helm-kubeconfig",
    ]
    assert lines.count("    token: hush") == 2, "it can be read more than once"
    assert "a: 1a: 1" in lines
    assert f"HOME={directory}" in lines
    assert not [line for line in lines if line.startswith(("KUBECONFIG=", "HELM_PLUGINS="))]
    assert read(Path(directory)) == ""


def remembered(directory: Path, secret: bytes) -> list[Path]:
    """The files in a directory with a secret in them. The directory is removed."""
    found = [file for file in directory.rglob("*") if file.is_file() and secret in file.read_bytes()]
    shutil.rmtree(directory)
    return found


async def upgrading(script: Path, directory: Path) -> asyncio.subprocess.Process:
    """A process that runs an upgrade with secrets in it."""
    code = (
        "import asyncio, pathlib; from unwind.helm.program import Helm; from unwind.helm.charts import Chart;"
        "from unwind.kube.kubeconfig import ClusterConnection as Connection, Token;"
        f"asyncio.run(Helm(pathlib.Path({str(script)!r})).upgrade("
        "Connection(server='https://member.test', credential=Token('hush')),"
        "Chart(release='web', namespace='shop', chart='web', values=('password: hush',)), owner='me'))"
    )
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=directory)


async def test_nothing_secret_stays_where_the_process_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = program(tmp_path, f"pwd > {tmp_path}/where; echo $$ > {pids}; exec sleep 600")
    ours = await upgrading(script, tmp_path)
    await until_there(pids)
    ours.send_signal(signal.SIGKILL)
    await ours.wait()
    assert remembered(Path(read(tmp_path / "where").strip()), b"hush") == []


async def test_no_name_is_taken_for_an_option(tmp_path: Path) -> None:
    helm = Helm(program(tmp_path, 'printf "%s\\n" "$@"'))
    chart = Chart(release="--post-renderer=sh", namespace="shop", chart="--kubeconfig=/x")
    lines = (await helm._deploy("upgrade", MEMBER, chart, ["--install"])).decode().splitlines()
    assert lines[0] == "upgrade"
    assert lines[-3:] == ["--", "--post-renderer=sh", "--kubeconfig=/x"]
    helm = Helm(program(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/said'))
    await helm.look(Chart(release="web", namespace="shop", chart="-y"), within=10)
    said = read(tmp_path / "said").splitlines()
    assert (said[:2], said[-2:]) == (["show", "chart"], ["--", "-y"])


async def test_at_most_two_run_at_once(tmp_path: Path) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    began.mkdir()
    helm = Helm(program(tmp_path, f"touch {began}/$$; while [ ! -e {go} ]; do sleep 0.02; done"))
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(helm.upgrade(MEMBER, CHART, owner="me"))
        await eventually(lambda: len(list(began.iterdir())) >= 2, "two programs", within=30)
        assert helm._slots.locked()
        assert len(list(began.iterdir())) == 2
        go.touch()
    assert len(list(began.iterdir())) == 4


async def test_whoever_cancels_ends_helm_and_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    helm = Helm(program(tmp_path, f"sleep 600 & echo $$ $! > {pids}; wait"))
    running = asyncio.create_task(helm.upgrade(MEMBER, CHART, owner="me"))
    started = [int(pid) for pid in (await until_there(pids)).split()]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not any(_runs(pid) for pid in started), "the end of both", within=30)
    assert not helm.at_work(MEMBER, CHART, helm.clock.now()), "it is known to have ended"


async def test_what_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unwind.helm.program._GRACE", 0.1)
    pids = tmp_path / "pids"
    helm = Helm(program(tmp_path, f"trap '' TERM; echo $$ > {pids}; while :; do sleep 0.02; done"))
    running = asyncio.create_task(helm.upgrade(MEMBER, CHART, owner="me"))
    pid = int(await until_there(pids))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not _runs(pid)


async def test_it_is_ended_when_the_shard_that_it_works_for_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unwind.helm.program._GRACE", 0.1)
    monkeypatch.setattr("unwind.kube.fencing._LOOK", 0.05)
    pids, owner = tmp_path / "pids", Owner()
    helm = Helm(program(tmp_path, f"trap '' TERM; echo $$ > {pids}; while :; do sleep 0.02; done"))

    async def deploy(_: str) -> float | None:
        await helm.upgrade(MEMBER, CHART, owner="me")
        return None

    running = asyncio.create_task(deploy_once(Fences(owner).around(deploy, str)))
    pid = int(await until_there(pids))
    owner.lose_all(told=False)  # it has to look
    async with asyncio.timeout(30):
        with pytest.raises(FencedError):
            await running
    assert not _runs(pid)
    # Nor is it started for a shard that is lost.
    pids.unlink()
    with pytest.raises(FencedError):
        await deploy_once(Fences(owner).around(deploy, str))
    assert not pids.exists()


async def deploy_once(work: Callable[[str], Awaitable[float | None]]) -> None:
    await work("shard")


async def test_it_dies_with_who_started_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = program(tmp_path, f"echo $$ > {pids}; exec sleep 600")
    ours = await upgrading(script, tmp_path)
    pid = int(await until_there(pids))
    ours.send_signal(signal.SIGKILL)
    await ours.wait()
    await eventually(lambda: not _runs(pid), "the end of Helm", within=30)


async def test_a_failure_is_told_and_nothing_that_was_printed_besides(tmp_path: Path) -> None:
    helm = Helm(program(tmp_path, 'echo "password: hush"; echo "Error: no such chart" >&2; exit 1'))
    with pytest.raises(HelmError) as failed:
        await helm.upgrade(MEMBER, CHART, owner="me")
    assert failed.value.what == "helm upgrade of web failed: no such chart"
    assert "hush" not in str(failed.value)


async def test_a_chart_on_this_machine_is_only_taken_from_where_charts_may_be(tmp_path: Path) -> None:
    chart = Chart(release="web", namespace="shop", chart=f"file://{tmp_path}/charts/../elsewhere")
    for helm in (Helm(tmp_path / "helm"), Helm(tmp_path / "helm", charts=tmp_path / "charts")):
        with pytest.raises(UnwindError, match="is outside of the charts directory"):
            await helm.upgrade(MEMBER, chart, owner="me")


async def test_a_missing_program_and_a_password_are_told(tmp_path: Path) -> None:
    helm = Helm(tmp_path / "missing")
    with pytest.raises(UnwindError, match="cannot run helm: "):
        await helm.upgrade(MEMBER, CHART, owner="me")
    with pytest.raises(UnwindError, match="basic authentication is not supported"):
        await helm.upgrade(ClusterConnection(server="https://x", credential=Basic("me", "hush")), CHART, owner="me")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Error: UPGRADE FAILED: timed out\n", "UPGRADE FAILED: timed out"),
        ("WARNING: x\nError: cannot reach https://me:hush@charts.test/a\n", "cannot reach https://charts.test/a"),
        ("Error: 1 error occurred:\n\t* no such field\n\n", "1 error occurred: no such field"),
        ("panic: oh\n\n", "panic: oh"),
        ("", "no error message"),
        ("Error: " + "x" * 1000, "x" * 600 + " …"),
    ],
)
def test_what_helm_says_fits_a_line_and_holds_no_password(text: str, line: str) -> None:
    assert complained(text) == line


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
