"""What a build needs: assets, sources from a proxy, and room on the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.unit.local.workshop import Proxied, Told, Usage, Workshop
from unwind.errors import UnwindError
from unwind.local import build, tools
from unwind.local.build import ensure
from unwind.local.tools import CacheCondition, Origin, Tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


async def test_assets_come_with_the_tool_and_only_once(shop: Workshop) -> None:
    await ensure([shop.with_assets])
    assert {file.name: file.read_text() for file in tools.assets(shop.with_assets).iterdir()} == {
        "a.yaml": "a: b\n",
        "b.yaml": "b: c\n",
    }
    asked = (shop.here / "asked").read_text()
    await ensure([shop.with_assets])
    assert (shop.here / "asked").read_text() == asked


async def test_a_binary_on_the_path_gets_its_assets_without_a_build(shop: Workshop, tmp_path: Path) -> None:
    shutil.copy("/bin/true", tmp_path / "bin" / "unwind-tiny")
    found = await ensure([shop.with_assets])
    assert found["unwind-tiny"].origin is Origin.PATH
    assert len(list(tools.assets(shop.with_assets).iterdir())) == 2
    assert shop.builds() == 0


async def test_truncated_assets_are_reported_and_copied_again(shop: Workshop) -> None:
    await ensure([shop.with_assets])
    (tools.assets(shop.with_assets) / "a.yaml").write_text("")
    told = Told()
    await ensure([shop.with_assets], told)
    assert told.all("mending") == [("unwind-tiny.assets", CacheCondition.OTHER_SIZE)]
    assert (tools.assets(shop.with_assets) / "a.yaml").read_text() == "a: b\n"
    assert shop.builds() == 1


async def test_missing_assets_are_an_error_that_names_them(shop: Workshop) -> None:
    with pytest.raises(UnwindError, match=r"assets of unwind-tiny: no \*\.toml"):
        await ensure([msgspec.structs.replace(shop.tool, assets=("*.toml",))])


async def test_downloads_of_sources_are_reported(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    Proxied(shop, monkeypatch)
    told = Told()
    await ensure([shop.tool], told)
    assert told.all("downloading") == [("unwind-tiny", "example.com/dep v1.0.0", 1)]
    assert told.all("building")[-1] == ("unwind-tiny", 2, 2)
    assert shop.runs().startswith("tiny")


async def test_an_unreachable_proxy_is_an_error_with_a_remedy(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    Proxied(shop, monkeypatch)
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:1")
    with pytest.raises(UnwindError) as caught:
        await ensure([shop.tool])
    assert "connection refused" in caught.value.what
    assert "set GOPROXY" in caught.value.remedy
    assert "\n" not in str(caught.value)


async def test_assets_come_from_the_proxy_where_the_binary_was_on_the_path(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proxied(shop, monkeypatch)
    shutil.copy("/bin/true", shop.here / "bin" / "unwind-tiny")
    tool = Tool(
        name="unwind-tiny",
        module=msgspec.structs.replace(shop.module, source="example.com/dep"),
        package="example.com/tiny",
        assets=("*.go",),
    )
    proxy = os.environ["GOPROXY"]
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:1")
    with pytest.raises(UnwindError, match=r"cannot fetch the assets of unwind-tiny.* connection refused"):
        await ensure([tool])
    monkeypatch.setenv("GOPROXY", proxy)
    await ensure([tool])
    assert [file.name for file in tools.assets(tool).iterdir()] == ["dep.go"]


async def test_assets_come_from_other_modules_as_well(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    Proxied(shop, monkeypatch)
    tool = msgspec.structs.replace(shop.with_assets, other_assets=(("example.com/dep@v1.0.0", "*.go"),))
    await ensure([tool])
    assert sorted(file.name for file in tools.assets(tool).iterdir()) == ["a.yaml", "b.yaml", "dep.go"]


async def test_without_disk_space_nothing_is_built_and_the_error_has_a_remedy(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 100 << 20))
    with pytest.raises(
        UnwindError, match=r"not enough disk space in .* to build unwind-tiny: .* 100 MiB free"
    ) as caught:
        await ensure([shop.tool])
    assert "UNWIND_CACHE_DIR" in caught.value.remedy
    assert shop.builds() == 0


async def test_disk_space_for_sources_and_packages_is_checked_before_any_download(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    Proxied(shop, monkeypatch)
    large = msgspec.structs.replace(shop.module, sources_bytes=1 << 30, packages=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 5 << 30))
    told = Told()
    with pytest.raises(UnwindError, match=r"5\.7 GiB needed, 5\.0 GiB free"):
        await ensure([msgspec.structs.replace(shop.tool, module=large)], told)
    assert told.events == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", where],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", where], check=True)


async def test_a_small_disk_is_detected_before_the_build(
    shop: Workshop, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(small_disk))
    with pytest.raises(UnwindError, match=rf"not enough disk space in {small_disk}.* 4 MiB free"):
        await ensure([shop.tool])
    assert shop.builds() == 0


async def test_a_disk_that_fills_up_during_the_build_is_reported_and_freed(
    shop: Workshop, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(small_disk))
    monkeypatch.setattr(build, "_require_room", lambda *_, **__: None)
    (small_disk / "filler").write_bytes(bytes(3 << 20))
    before = shutil.disk_usage(small_disk).free
    with pytest.raises(UnwindError) as caught:
        await ensure([shop.tool])
    assert "no space left on device" in caught.value.what
    assert "the disk is full" in caught.value.remedy
    assert before - shutil.disk_usage(small_disk).free < 64 << 10  # the log and the lock


async def test_a_cache_that_is_a_file_is_a_one_line_error(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UnwindError, match=r"cannot build into .*file.*: Not a directory"):
        await ensure([shop.tool])
