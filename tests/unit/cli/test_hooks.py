"""`unwind hooks` as a person calls it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tests.unit.cli import program

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

RULE = (
    "from unwind.api.hooks import Hook\n"
    "from unwind.hooks import hook\n"
    "@hook(Hook.BEFORE_CLUSTER_UPGRADE)\n"
    "async def freeze(request, ctx):\n"
    "    'Hold upgrades on Fridays.'\n"
)


def run(*arguments: str, beside: Path | None = None, gates: str = "") -> subprocess.CompletedProcess[str]:
    return program.run("hooks", *arguments, beside=beside, UNWIND_FEATURE_GATES=gates)


def told(*arguments: str, beside: Path | None = None, gates: str = "") -> dict[str, dict[str, Any]]:
    ran = run(*arguments, "-o", "json", beside=beside, gates=gates)
    assert ran.returncode == 0, ran.stderr
    return {item["hook"]: item for item in msgspec.json.decode(ran.stdout)["hooks"]}


def package(directory: Path, *, point: str, code: str) -> Path:
    """A package as pip leaves it behind."""
    about = directory / "kube_example-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kube-example\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[unwind.hooks]\n{point} = kube_example\n")
    (directory / "kube_example.py").write_text(code)
    return directory


def test_all_nine_are_there_and_two_are_on_by_default() -> None:
    answer = told()
    assert len(answer) == 9
    assert [hook for hook, one in answer.items() if one["on"]] == [
        "AfterControlPlaneInitialized",
        "BeforeClusterDelete",
    ]
    assert [hook for hook, one in answer.items() if not one["blocks"]] == ["AfterControlPlaneInitialized"]
    assert all(item["rules"] for item in answer.values())


def test_others_are_switched_on_one_by_one() -> None:
    by_flag = told("--feature-gates", "BeforeClusterUpgrade=true")
    assert by_flag["BeforeClusterUpgrade"]["on"]
    assert not by_flag["BeforeWorkersUpgrade"]["on"]
    assert told(gates="BeforeClusterUpgrade=true") == by_flag


def test_the_table_fits_a_terminal_and_says_what_each_does() -> None:
    ran = run()
    assert ran.returncode == 0
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["HOOK", "ENABLED", "RULE", "SOURCE", "DESCRIPTION"]
    assert any("BeforeClusterCreate" in line and " no " in line and "sources-exist" in line for line in lines)
    assert max(map(len, lines)) <= 160


def test_a_rule_of_another_package_takes_its_place(tmp_path: Path) -> None:
    answer = told(beside=package(tmp_path, point="BeforeClusterUpgrade", code=RULE))
    assert answer["BeforeClusterUpgrade"]["rules"][-1] == {
        "name": "freeze",
        "source": "kube-example 1.0",
        "about": "Hold upgrades on Fridays.",
    }
    assert answer["BeforeClusterUpgrade"]["held"] == []


def test_a_package_that_does_not_load_is_told_and_its_hook_held(tmp_path: Path) -> None:
    beside = package(tmp_path, point="BeforeClusterUpgrade", code="import nowhere_to_be_found\n")
    answer = told(beside=beside)
    assert "nowhere_to_be_found" in answer["BeforeClusterUpgrade"]["held"][0]
    assert [hook for hook, one in answer.items() if one["held"]] == ["BeforeClusterUpgrade"]
    ran = run(beside=beside)
    assert ran.returncode == 0
    assert "blocked: BeforeClusterUpgrade" in ran.stderr


def test_a_gate_that_there_is_not_is_refused() -> None:
    ran = run("--feature-gates", "BeforeLunch=true")
    assert ran.returncode == 2
    assert "unknown feature gate 'BeforeLunch'" in ran.stderr
