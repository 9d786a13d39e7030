"""`unwind local` as a person calls it: what it prints, and that nothing of it is left."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.eventually import eventually_sync
from tests.forked_commands import UNWIND
from tests.plane.support.commands import Shell
from unwind.local.processes import ProcessId

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    # Long, so that a socket in it has a path that no socket may have.
    shell = Shell(tmp_path / ("state-" + "x" * 60))
    yield shell
    shell.run("local", "down", "--all")
    assert shell.nothing_left()


def test_three_api_servers_come_up_that_kubectl_talks_to_and_down_leaves_nothing(shell: Shell) -> None:
    up = shell.run("local", "up", "--members", "2")
    assert up.returncode == 0, up.stderr
    assert "Control plane 'default' is running." in up.stdout

    servers = set()
    for cluster in ("", "member-1", "member-2"):
        member = ["--member", cluster] if cluster else []
        path = shell.run("local", "kubeconfig", "--path", *member).stdout.strip()
        printed = shell.run("local", "kubeconfig", *member).stdout
        assert Path(path).read_text() == printed
        info = shell.run("--kubeconfig", path, "cluster-info", program="kubectl").stdout
        servers |= set(re.findall(r"https://127\.0\.0\.1:\d+", info))
        assert "kube-system" in shell.run("--kubeconfig", path, "get", "namespaces", program="kubectl").stdout
    assert len(servers) == 3

    status = shell.run("local", "status").stdout
    assert [line.split()[:3] for line in status.splitlines()[1:4]] == [
        ["default", "management", "Ready"],
        ["default", "member-1", "Ready"],
        ["default", "member-2", "Ready"],
    ]
    assert len(shell.processes()) >= 7

    down = shell.run("local", "down")
    assert (down.returncode, down.stdout) == (0, "Control plane 'default' stopped.\n")
    assert shell.nothing_left()


def test_a_killed_supervisor_takes_every_program_along_and_the_next_up_clears_up_after_it(shell: Shell) -> None:
    assert shell.run("local", "up", "--name", "a", "--with", "nodes").returncode == 0
    assert shell.supervisor().send(signal.SIGKILL)
    shell.until_no_process()

    assert shell.planes()[0]["state"] == "Dead"
    assert "`unwind local down --name a`" in shell.run("local", "status").stdout
    refused = shell.run("local", "kubeconfig", "--name", "a")
    assert refused.returncode == 1
    assert refused.stderr == "unwind: control plane 'a' is not running; start it with `unwind local up --name a`\n"

    again = shell.run("local", "up", "--name", "a")
    assert again.returncode == 0, again.stderr
    assert "cleaned up after a killed run of control plane 'a'" in again.stderr

    assert shell.supervisor().send(signal.SIGKILL)
    shell.until_no_process()
    assert shell.run("local", "down", "--name", "a").returncode == 0
    assert shell.nothing_left()


def test_a_second_up_of_the_same_name_says_what_to_do_and_disturbs_nothing(shell: Shell) -> None:
    assert shell.run("local", "up").returncode == 0
    before = shell.planes()
    second = shell.run("local", "up", "--members", "1")
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert "is already running" in second.stderr
    assert "unwind local down --name default" in second.stderr
    assert shell.planes() == before


def test_in_the_foreground_everything_dies_with_the_process_even_by_sigkill(shell: Shell) -> None:
    foreground = shell.start("local", "up", "--foreground")
    _read_until_up(foreground)
    assert len(shell.processes()) >= 3
    _kill(foreground)
    shell.until_no_process()


def test_in_the_foreground_everything_dies_with_the_parent_and_leaves_no_directory(shell: Shell) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run([{str(UNWIND)!r}, 'local', 'up', '--foreground'])"],
        env=shell.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    _read_until_up(parent)
    _kill(parent)
    shell.until_no_process()
    eventually_sync(shell.nothing_left, "an empty state directory", within=10)


@pytest.mark.parametrize(
    ("sign", "ignoring"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
    ids=["by ctrl-c", "by SIGTERM", "by SIGTERM with ctrl-c ignored"],
)
@pytest.mark.parametrize("mode", ["--foreground", ""], ids=["in the foreground", "leaving a supervisor"])
def test_interrupted_while_it_comes_up_it_leaves_nothing(
    shell: Shell, sign: signal.Signals, mode: str, ignoring: bool
) -> None:
    up = shell.start("local", "up", *mode.split(), ignoring_interrupts=ignoring)
    eventually_sync(lambda: any("kube-apiserver" in command for command in shell.processes()), within=30)
    up.send_signal(sign)
    output, _ = up.communicate(timeout=30)
    assert "Traceback" not in output
    assert "is running." not in output
    assert shell.nothing_left()


def test_a_program_that_dies_is_started_again_and_status_says_so(shell: Shell) -> None:
    assert shell.run("local", "up").returncode == 0

    def manager() -> dict[str, Any]:
        programs: list[dict[str, Any]] = shell.planes()[0]["processes"]
        return next(program for program in programs if program["name"] == "kube-controller-manager")

    killed = msgspec.convert(manager()["process"], ProcessId)
    assert killed.send(signal.SIGKILL)
    eventually_sync(lambda: shell.planes()[0]["state"] == "Ready" and manager()["restarts"], "a restart", within=20)
    assert msgspec.convert(manager()["process"], ProcessId) != killed
    assert "kube-controller-manager of management restarted once" in shell.run("local", "status").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--name", "Bad_Name"], "invalid control plane name"),
        (["up", "--with", "nodes,unicorns"], "unknown component unicorns in --with (valid: nodes, helm, capi, cloud)"),
        (["up", "--members", "-1"], "invalid --members -1; use 0 or more"),
        (
            ["kubeconfig", "--name", "nowhere"],
            "control plane 'nowhere' is not running; start it with `unwind local up --name nowhere`",
        ),
        (["down", "--name", "../etc"], "invalid control plane name"),
    ],
)
def test_bad_input_is_told_in_one_line(shell: Shell, arguments: list[str], words: str) -> None:
    refused = shell.run("local", *arguments)
    # What makes no sense is another thing than what is not there.
    assert refused.returncode == (1 if "nowhere" in arguments else 2)
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert shell.nothing_left()


def test_a_program_that_cannot_start_is_told_in_one_line_with_its_last_word(shell: Shell) -> None:
    shell.env["UNWIND_ETCD"] = "/bin/false"
    failed = shell.run("local", "up")
    assert failed.returncode == 1
    assert "etcd (/bin/false) exited before it was ready" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert shell.nothing_left()


def test_a_plane_is_not_started_on_a_full_disk(tmp_path: Path) -> None:
    state = tmp_path / "small"
    state.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", state], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can make a small file system")
    try:
        failed = Shell(state).run("local", "up")
        assert failed.returncode == 1
        assert "not enough disk space" in failed.stderr
        assert "UNWIND_STATE_DIR" in failed.stderr
        assert Shell(state).nothing_left()
    finally:
        subprocess.run(["umount", state], check=True)


def test_the_command_is_also_a_plugin_of_kubectl(shell: Shell) -> None:
    assert "Usage: kubectl unwind" in shell.run("unwind", "--help", program="kubectl").stdout


def _read_until_up(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    for line in process.stdout:
        if "is running." in line:
            return
    raise AssertionError("it ended")


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()
