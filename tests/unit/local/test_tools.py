from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from unwind.errors import UnwindError
from unwind.local import tools
from unwind.local.tools import Binary, CacheCondition, CacheRecord, Module, Origin, Tool, find_binary

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    for tool in tools.ALL:
        monkeypatch.delenv(tool.variable, raising=False)


@pytest.fixture
def module(tmp_path: Path) -> Module:
    directory = tmp_path / "module"
    directory.mkdir()
    (directory / "go.mod").write_text("module m\n\nrequire example.com/tiny v1.2.3 // indirect\n")
    (directory / "go.sum").write_text("")
    return Module(
        name="small", source="example.com/tiny", directory=directory, ldflags="-X v={version}/{major}/{minor}"
    )


@pytest.fixture
def tool(module: Module) -> Tool:
    return Tool(name="tiny-tool", module=module, package="example.com/tiny", assets=("*.yaml",))


def executable(path: Path, content: bytes = b"#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)
    return path


def in_cache(path: Path, *, size: int | None = None) -> Path:
    executable(path)
    record = CacheRecord(size=path.stat().st_size if size is None else size, sha256="")
    tools.record_path(path).write_bytes(msgspec.json.encode(record))
    return path


def test_binaries_of_envtest_come_before_the_path_and_what_is_not_there_is_found_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: Tool
) -> None:
    on_path = executable(tmp_path / "bin" / tool.name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert find_binary(tool) == Binary(tool.name, on_path, Origin.PATH)
    named = executable(tmp_path / "assets" / tool.name)
    assert find_binary(tool) == Binary(tool.name, named, Origin.ASSETS)


def _older_servers() -> list[Tool]:
    return [tool for minor in tools.KUBERNETES_MINORS for tool in tools.for_kubernetes(tools.ALL, minor) if tool.exact]


@pytest.mark.parametrize("tool", [*tools.ALL, *tools.COMPANIONS, *_older_servers()], ids=lambda tool: tool.name)
def test_each_tool_is_named_in_its_go_mod_and_has_a_release_there(tool: Tool) -> None:
    go_mod = (tool.module.directory / "go.mod").read_text()
    assert re.search(rf"^(tool |\t){re.escape(tool.package)}$", go_mod, re.MULTILINE)
    assert re.fullmatch(r"v\d+\.\d+\.\d+", tool.module.version)
    assert tool.package.startswith(tool.module.source)


@pytest.mark.parametrize("of", tools.KUBERNETES_MINORS)
def test_kubernetes_is_stamped_with_the_release_that_its_go_mod_requires(of: str) -> None:
    kubernetes = tools.KUBERNETES_MINORS[of]
    version = kubernetes.version
    package = "k8s.io/component-base/version"
    major, minor, _ = version.removeprefix("v").split(".")
    assert f"{major}.{minor}" == of
    assert kubernetes.flags == (
        "-trimpath",
        "-buildvcs=false",
        "-mod=readonly",
        "-ldflags",
        f"-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}",
    )


@pytest.mark.parametrize(
    "go_mod",
    [
        "require a.b/c v1.2.3\n",
        "require a.b/c v1.2.3 // indirect\n",
        "require (\n\ta.b/c/d v9.9.9\n\ta.b/c v1.2.3 // indirect\n)\n",
        "tool a.b/c\n\nreplace a.b/c => a.b/c v7.7.7\n\nrequire (\n\ta.b/c v1.2.3\n)\n",
    ],
)
def test_the_release_is_read_from_the_require_line(go_mod: str) -> None:
    assert tools.required_version(go_mod, "a.b/c") == "v1.2.3"


def test_a_tool_has_a_variable_of_its_own() -> None:
    assert tools.KUBE_APISERVER.variable == "UNWIND_KUBE_APISERVER"
    assert len({tool.variable for tool in tools.ALL}) == len(tools.ALL)


@pytest.mark.parametrize("tool", tools.COMPANIONS, ids=lambda tool: tool.name)
def test_the_checksum_of_every_other_source_of_assets_is_pinned(tool: Tool) -> None:
    sums = (tool.module.directory / "go.sum").read_text()
    for other, _ in tool.other_assets:
        assert f"{other.replace('@', ' ')} h1:" in sums


def test_a_control_plane_needs_no_companion() -> None:
    assert not set(tools.ALL) & set(tools.COMPANIONS)


def test_a_binary_that_is_nowhere_is_not_found(tool: Tool) -> None:
    assert find_binary(tool) is None


def test_a_binary_of_the_cache_is_found(tool: Tool) -> None:
    path = in_cache(tools.binary_path(tool))
    assert find_binary(tool) == Binary("tiny-tool", path, Origin.CACHE)


def test_a_binary_on_the_path_wins_over_the_cache(tool: Tool, tmp_path: Path) -> None:
    in_cache(tools.binary_path(tool))
    path = executable(tmp_path / "bin" / "tiny-tool")
    assert find_binary(tool) == Binary("tiny-tool", path, Origin.PATH)


def test_the_variable_wins_over_the_path(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(tmp_path / "bin" / "tiny-tool")
    path = executable(tmp_path / "mine")
    monkeypatch.setenv("UNWIND_TINY_TOOL", str(path))
    assert find_binary(tool) == Binary("tiny-tool", path, Origin.VARIABLE)


def test_if_the_release_matters_only_the_cache_counts(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "bin" / "tiny-tool")
    monkeypatch.setenv("UNWIND_TINY_TOOL", str(executable(tmp_path / "mine")))
    exactly = msgspec.structs.replace(tool, exact=True)
    assert find_binary(exactly) is None
    path = in_cache(tools.binary_path(exactly))
    assert find_binary(exactly) == Binary("tiny-tool", path, Origin.CACHE)


@pytest.mark.parametrize("kind", ["missing", "a directory", "not executable"])
def test_a_variable_that_names_no_program_is_an_error_that_names_the_variable(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "mine"
    if kind == "a directory":
        path.mkdir()
    elif kind == "not executable":
        path.write_bytes(b"")
        path.chmod(0o644)
    executable(tmp_path / "bin" / "tiny-tool")
    monkeypatch.setenv("UNWIND_TINY_TOOL", str(path))
    with pytest.raises(UnwindError, match="UNWIND_TINY_TOOL"):
        find_binary(tool)


def test_an_empty_variable_is_as_good_as_none(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNWIND_TINY_TOOL", "")
    assert find_binary(tool) is None


def test_what_is_in_the_cache_counts_only_with_a_record_of_its_size(tmp_path: Path) -> None:
    path = tmp_path / "thing"
    assert tools.condition(path) is CacheCondition.ABSENT
    executable(path)
    assert tools.condition(path) is CacheCondition.UNRECORDED
    tools.record_path(path).write_bytes(b'{"size": 1')
    assert tools.condition(path) is CacheCondition.UNRECORDED
    in_cache(path, size=1)
    assert tools.condition(path) is CacheCondition.OTHER_SIZE
    in_cache(path)
    assert tools.condition(path) is CacheCondition.WHOLE


def test_a_half_written_binary_is_not_found(tool: Tool) -> None:
    in_cache(tools.binary_path(tool), size=5)
    assert find_binary(tool) is None


def test_shelving_over_a_broken_thing_makes_it_whole(tmp_path: Path) -> None:
    target = tmp_path / "files"
    for directory, name in ((target, "old"), (tmp_path / "made", "new")):
        directory.mkdir()
        (directory / name).write_text(name)
    tools.shelve(tmp_path / "made", target)
    assert [file.name for file in target.iterdir()] == ["new"]
    assert tools.condition(target) is CacheCondition.WHOLE


def test_a_directory_with_a_file_cut_short_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "a.yaml").write_text("a: b\n")
    tools.shelve(tmp_path / "made", tmp_path / "files")
    (tmp_path / "files" / "a.yaml").write_text("")
    assert tools.condition(tmp_path / "files") is CacheCondition.OTHER_SIZE


def test_assets_that_were_never_fetched_are_an_error_that_says_how_to_get_them(tool: Tool) -> None:
    with pytest.raises(UnwindError, match="is missing; run `unwind local build`"):
        tools.assets(tool)


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_other_sources_have_another_place_in_the_cache(module: Module, file: str) -> None:
    before = module.shelf
    with (module.directory / file).open("a") as content:
        content.write("\n// changed\n")
    assert module.shelf != before


def test_other_flags_have_another_place_in_the_cache(module: Module) -> None:
    assert msgspec.structs.replace(module, ldflags="-s").shelf != module.shelf


def test_the_place_in_the_cache_names_module_and_release(module: Module, tmp_path: Path) -> None:
    assert re.fullmatch(r"small-v1\.2\.3-[0-9a-f]{12}", module.shelf.name)
    assert module.shelf.parent == tmp_path / "cache" / "bin"
