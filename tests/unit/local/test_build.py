"""Tools are built once, found again, and built again if the cache is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.unit.local.workshop import Told, Workshop
from unwind.errors import UnwindError
from unwind.local import tools
from unwind.local.build import ensure
from unwind.local.tools import Binary, CacheCondition, Origin


async def test_a_missing_tool_is_built_and_runs(shop: Workshop) -> None:
    told = Told()
    found = await ensure([shop.tool], told)
    assert found == {"unwind-tiny": Binary("unwind-tiny", shop.binary, Origin.BUILT)}
    assert shop.runs().startswith("tiny v1.2.3 ")
    assert [event[0] for event in told.events] == ["building", "building", "built"]
    assert told.all("building") == [("unwind-tiny", 0, 1), ("unwind-tiny", 1, 1)]
    assert shop.lock.read_text() == ""


async def test_the_second_time_nothing_is_built(shop: Workshop) -> None:
    await ensure([shop.tool])
    asked = (shop.here / "asked").read_text()
    told = Told()
    found = await ensure([shop.tool], told)
    assert found["unwind-tiny"].origin is Origin.CACHE
    assert told.events == [("found", found["unwind-tiny"])]
    assert (shop.here / "asked").read_text() == asked


async def test_only_what_is_asked_for_and_missing_is_built(shop: Workshop, tmp_path: Path) -> None:
    other = msgspec.structs.replace(shop.tool, name="unwind-other")
    third = msgspec.structs.replace(shop.tool, name="unwind-third")
    on_path = shutil.copy("/bin/true", tmp_path / "bin" / "unwind-other")
    found = await ensure([shop.tool, other])
    assert shop.builds() == 1
    assert found["unwind-other"] == Binary("unwind-other", Path(on_path), Origin.PATH)
    assert tools.find_binary(third) is None


async def test_a_tool_asked_for_twice_is_built_once(shop: Workshop) -> None:
    assert list(await ensure([shop.tool, shop.tool])) == ["unwind-tiny"]
    assert shop.builds() == 1


async def test_a_truncated_binary_is_reported_and_built_again(shop: Workshop) -> None:
    await ensure([shop.tool])
    with shop.binary.open("r+b") as binary:
        binary.truncate(1000)
    told = Told()
    await ensure([shop.tool], told)
    assert told.all("mending") == [("unwind-tiny", CacheCondition.OTHER_SIZE)]
    assert shop.builds() == 2
    assert shop.runs().startswith("tiny")


async def test_a_binary_without_its_record_is_reported_and_built_again(shop: Workshop) -> None:
    await ensure([shop.tool])
    tools.record_path(shop.binary).unlink()
    told = Told()
    await ensure([shop.tool], told)
    assert told.all("mending") == [("unwind-tiny", CacheCondition.UNRECORDED)]
    assert shop.builds() == 2
    assert tools.condition(shop.binary) is CacheCondition.WHOLE


async def test_a_failed_build_is_one_line_that_names_the_tool_the_reason_and_the_log(shop: Workshop) -> None:
    (shop.source / "main.go").write_text("package main\n\nfunc main() { missing() }\n")
    with pytest.raises(UnwindError) as caught:
        await ensure([shop.tool])
    line = str(caught.value)
    log = shop.module.shelf / "unwind-tiny.log"
    assert line.startswith("cannot build unwind-tiny: ")
    assert "main.go:3:15: undefined: missing" in line
    assert str(log) in line
    assert "\n" not in line
    assert "undefined: missing" in log.read_text()
    assert not shop.scratch()
    assert tools.find_binary(shop.tool) is None


async def test_settings_of_the_user_do_not_break_the_build(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"GOOS": "plan9", "GOFLAGS": "-mod=vendor", "GO111MODULE": "off"}.items():
        monkeypatch.setenv(variable, value)
    await ensure([shop.tool])
    assert shop.runs().startswith("tiny")
