"""`unwind demo`, as somebody sees it who runs it: the whole story, in a pipe."""

from __future__ import annotations

import re
import shlex
import signal
import time
from pathlib import Path

import pytest

from tests.plane.support.commands import Shell

README = Path(__file__).parents[2] / "README.md"
_LONG = 350.0
_HELD_WITHIN = 90.0


@pytest.mark.timeout(400)
def test_the_demonstration_tells_the_whole_story(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "state")
    running = shell.start("demo", "--no-input")
    text, _ = running.communicate(timeout=_LONG)
    assert running.returncode == 0, text
    assert "\x1b" not in text  # a pipe gets plain lines

    # How to see it in a browser is told before anything is deleted.
    invited = re.search(r"^  \S*unwind dashboard --kubeconfig \S+$", text, re.MULTILINE)
    assert invited
    assert invited.start() < text.index("kubectl delete clusters.cluster.x-k8s.io")

    # What is protected was not deleted, and the words are those that people search for.
    assert "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Always" in text

    # What depends on something went before it.
    gone = [
        text.index(f"ClusterProfile/{name} removed (verified absent)")
        for name in ("monitoring", "shop", "databases", "operator")
    ]
    assert gone == sorted(gone)
    assert text.index("ClusterProfile/shop removed (verified absent)") < text.index(
        "ClusterProfile/ingress removed (verified absent)"
    )
    assert "ClusterProfile/audit is left in place, as its profile says" in text

    # The finalizer held things up, and Cluster API was told to wait.
    unserved = "blocked by finalizer backup.example.dev/last-backup (no controller found)"
    assert unserved in text
    assert "The orders are backed up in 5 s" in text
    assert "hook response to Cluster API: waiting for add-on cleanup" in text
    assert text.index(unserved) < text.index("ClusterProfile/databases removed (verified absent)")

    assert re.search(r"20 of 21 objects removed \(verified absent\) in \d+s, 1 left in place", text)
    assert "left in place: ConfigMap kube-system/audit-policy" in text
    assert "remaining load balancers: 0" in text
    assert "Cluster shops/prod is gone" in text
    assert re.search(r"Cluster API deleted the infrastructure \d+\.\ds after the last add-on", text)
    assert "$ kubectl delete clusters.cluster.x-k8s.io prod -n shops --wait=false" in text
    # What needs a person is told, and not the operator that does its work.
    assert "(must act: the controller of backup.example.dev)" in text
    assert shell.nothing_left()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_readme_shows_what_the_commands_print(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "state")
    shell.env |= {"COLUMNS": "110", "PYTHONUNBUFFERED": "1"}
    demo = shell.start("demo", "--no-input", "--keep")
    try:
        assert demo.stdout
        told = []
        for line in demo.stdout:
            told.append(line)
            if found := re.search(r"export KUBECONFIG=(\S+)", line):
                shell.env["KUBECONFIG"] = found[1]
            if line.strip() == "unwind ledger":
                break  # the last line: another cluster is there to be deleted
        assert "KUBECONFIG" in shell.env, "".join(told)
        for command, shown in shown_in_readme().items():
            program, *arguments = shlex.split(command)
            expected, ends = normalized(shown), time.monotonic() + _HELD_WITHIN
            while (printed := cut(normalized(shell.run(*arguments, program=program).stdout), expected)) != expected:
                # The status changes until only a person can act.
                if command != "unwind status" or time.monotonic() > ends:
                    pytest.fail(f"the README is out of date; `{command}` prints:\n" + "\n".join(printed))
                time.sleep(1)
    finally:
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)
    shell.until_no_process()


def shown_in_readme() -> dict[str, str]:
    """The commands of the README that were run in the demonstration, each with its output."""
    [block] = re.findall(r"^```console\n(\$ unwind plan .*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE))


def normalized(text: str) -> list[str]:
    """The lines without times, and without the cluster that the demonstration deleted before."""
    text = re.sub(r"\b(\d+m)?\d+s\b", "0s", re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "1970-01-01 00:00", text))
    lines = [line.rstrip() for line in text.strip().splitlines() if " Complete " not in line]
    # Both clusters left the same object, at different times.
    return [line for number, line in enumerate(lines) if not line or line not in lines[:number]]


def cut(printed: list[str], shown: list[str]) -> list[str]:
    """As much as is shown: `…` stands for the rest."""
    return [*printed[: len(shown) - 1], "…"] if shown[-1] == "…" else printed
