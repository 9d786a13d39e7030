"""`unwind deleters` as a person calls it."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec

from tests.forked_commands import UNWIND
from tests.unit.cli import program

if TYPE_CHECKING:
    from pathlib import Path


def told(*arguments: str, beside: Path | None = None) -> dict[str, Any]:
    ran = program.run("deleters", *arguments, "-o", "json", beside=beside)
    assert ran.returncode == 0, ran.stderr
    decoded: dict[str, Any] = msgspec.json.decode(ran.stdout)
    return decoded


def package(directory: Path, *, point: str, code: str, extra: str = "", requires: str = "") -> Path:
    """A package as pip leaves it behind. `requires`: what its extra `cloud` requires."""
    about = directory / "kube_example-1.0.dist-info"
    about.mkdir()
    metadata = "Metadata-Version: 2.1\nName: kube-example\nVersion: 1.0\nProvides-Extra: cloud\n"
    metadata += f"Requires-Dist: {requires}; extra == 'cloud'\n" if requires else ""
    (about / "METADATA").write_text(metadata)
    (about / "entry_points.txt").write_text(f"[unwind.deleters]\n{point} = kube_example {extra}\n")
    (directory / "kube_example.py").write_text(code)
    return directory


def names(answer: dict[str, Any]) -> list[str]:
    return [row["name"] for row in answer["deleters"]]


def test_the_chain_of_a_kind_is_shown_in_its_order() -> None:
    assert names(told("apps/v1/Deployment")) == [
        "keep-by-policy",
        "wait-for-dependents",
        "scale-to-zero",
        "kubernetes",
    ]
    assert names(told("v1/ConfigMap")) == ["keep-by-policy", "wait-for-dependents", "kubernetes"]


def test_the_table_fits_a_terminal_and_says_what_each_does() -> None:
    env = os.environ | {"NO_COLOR": "1", "COLUMNS": "160"}
    ran = subprocess.run(
        [UNWIND, "deleters", "apps/v1/Deployment"], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["ORDER", "NAME", "KINDS", "SOURCE", "DESCRIPTION"]
    assert any("scale-to-zero" in line and "Scale a workload to zero" in line for line in lines)
    assert max(map(len, lines)) <= 160


def test_a_plugin_takes_its_place(tmp_path: Path) -> None:
    code = (
        "from unwind import deleter\n"
        "@deleter('example.dev/v1', 'Bucket')\n"
        "async def empty_first(ctx, obj, next):\n"
        "    'Empty it.'\n"
        "    return await next(ctx, obj)\n"
    )
    beside = package(tmp_path, point="example.dev/v1/Bucket", code=code)
    answer = told("example.dev/v1/Bucket", beside=beside)
    assert names(answer) == ["keep-by-policy", "wait-for-dependents", "empty-first", "kubernetes"]
    assert answer["deleters"][2]["source"] == "kube-example 1.0"
    assert "empty-first" in names(told("Bucket", beside=beside))
    assert "empty-first" not in names(told("v1/ConfigMap", beside=beside))


EMPTY_FIRST = (
    "from unwind import deleter\n"
    "@deleter('example.dev/v1', 'Bucket')\n"
    "async def empty_first(ctx, obj, next):\n"
    "    return await next(ctx, obj)\n"
)


def test_a_plugin_whose_extra_is_not_installed_is_skipped_and_holds_nothing(tmp_path: Path) -> None:
    beside = package(
        tmp_path,
        point="example.dev/v1/Bucket",
        code="import cloud_library\n",
        extra="[cloud]",
        requires="cloud-library>=1.0",
    )
    answer = told("example.dev/v1/Bucket", beside=beside)
    assert answer["held"] == {}
    assert names(answer) == ["keep-by-policy", "wait-for-dependents", "kubernetes"]
    assert answer["skipped"] == {
        "example.dev/v1/Bucket": "cloud-library not installed; to use it: pip install 'kube-example[cloud]'"
    }
    assert (
        "skipped: example.dev/v1/Bucket (cloud-library not installed" in program.run("deleters", beside=beside).stderr
    )


def test_a_plugin_whose_extra_is_installed_is_used(tmp_path: Path) -> None:
    beside = package(
        tmp_path, point="example.dev/v1/Bucket", code=EMPTY_FIRST, extra="[cloud]", requires="msgspec>=0.1"
    )
    answer = told("example.dev/v1/Bucket", beside=beside)
    assert "empty-first" in names(answer)
    assert "example.dev/v1/Bucket" not in answer["skipped"]


def test_a_plugin_that_does_not_load_although_its_extra_is_installed_holds_its_kind(tmp_path: Path) -> None:
    beside = package(
        tmp_path, point="example.dev/v1/Bucket", code="import nowhere\n", extra="[cloud]", requires="msgspec>=0.1"
    )
    answer = told("example.dev/v1/Bucket", beside=beside)
    assert answer["deleters"] == []
    assert "nowhere" in answer["held"]["example.dev/v1/Bucket"]


def test_a_plugin_that_does_not_load_is_told_and_its_kind_held(tmp_path: Path) -> None:
    beside = package(tmp_path, point="example.dev/v1/Bucket", code="import nowhere_to_be_found\n")
    answer = told("example.dev/v1/Bucket", beside=beside)
    assert answer["deleters"] == []
    assert "nowhere_to_be_found" in answer["held"]["example.dev/v1/Bucket"]
    ran = program.run("deleters", beside=beside)
    assert ran.returncode == 0
    assert "blocked: example.dev/v1/Bucket" in ran.stderr
    assert "keep-by-policy" in ran.stdout


def test_more_than_one_kind_is_no_chain() -> None:
    ran = program.run("deleters", "apps/*/Deployment")
    assert ran.returncode == 2
    assert (
        ran.stderr.strip()
        == "unwind: apps/*/Deployment matches more than one kind; specify group and version, as in apps/v1/Deployment"
    )
