from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unwind.errors import UnwindError
from unwind.local.paths import cache_dir, require_room, require_room_for_each, size, state_dir

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1 << 30
Usage = namedtuple("Usage", "total used free")  # noqa: PYI024 - as in shutil


@pytest.fixture(autouse=True)
def plain_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("UNWIND_CACHE_DIR", "UNWIND_STATE_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/ada")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_free(count: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 0, count))

    return set_free


@pytest.mark.parametrize(
    ("directory", "own", "xdg", "fallback"),
    [
        (cache_dir, "UNWIND_CACHE_DIR", "XDG_CACHE_HOME", "/home/ada/.cache/unwind"),
        (state_dir, "UNWIND_STATE_DIR", "XDG_STATE_HOME", "/home/ada/.local/state/unwind"),
    ],
)
def test_our_own_variable_wins_over_xdg_and_that_over_the_home_directory(
    monkeypatch: pytest.MonkeyPatch, directory: Callable[[], Path], own: str, xdg: str, fallback: str
) -> None:
    assert directory() == Path(fallback)
    monkeypatch.setenv(xdg, "/xdg")
    assert directory() == Path("/xdg/unwind")
    monkeypatch.setenv(own, "/own")
    assert directory() == Path("/own")


def test_a_relative_directory_of_ours_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNWIND_CACHE_DIR", "here")
    assert cache_dir() == tmp_path / "here"


@pytest.mark.parametrize("value", ["", "not/absolute"])
def test_an_xdg_directory_that_the_specification_forbids_is_ignored(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert cache_dir() == Path("/home/ada/.cache/unwind")


def test_a_user_without_a_home_is_told_which_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UnwindError, match="UNWIND_STATE_DIR"):
        state_dir()


def test_too_little_room_is_told_in_one_line_with_both_numbers_and_what_to_do(
    tmp_path: Path, free: Callable[[int], None]
) -> None:
    free(300 << 20)
    with pytest.raises(UnwindError) as caught:
        require_room(tmp_path, 2 * GIB, "to build etcd", "free some")
    assert str(caught.value) == (
        f"not enough disk space in {tmp_path} to build etcd: 2.0 GiB needed, 300 MiB free; free some"
    )


def test_room_is_asked_of_the_nearest_directory_that_exists(tmp_path: Path, free: Callable[[int], None]) -> None:
    free(GIB)
    require_room(tmp_path / "not" / "yet", GIB, "to build etcd", "free some")


def test_directories_on_one_disk_need_room_together(tmp_path: Path, free: Callable[[int], None]) -> None:
    free(3 * GIB)
    needs = {tmp_path / "one": 2 * GIB, tmp_path / "two": GIB}
    require_room_for_each(needs, "to build etcd", "free some")
    with pytest.raises(UnwindError, match=r"4\.0 GiB needed, 3\.0 GiB free"):
        require_room_for_each(needs | {tmp_path / "three": GIB}, "to build etcd", "free some")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 MiB"), (5 << 20, "5 MiB"), (GIB, "1.0 GiB"), (6590 << 20, "6.4 GiB")]
)
def test_bytes_read_as_a_person_says_them(count: int, text: str) -> None:
    assert size(count) == text
