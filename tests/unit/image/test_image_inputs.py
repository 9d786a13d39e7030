"""The inputs of the image: its lock file, and archives that depend on their content only."""

from __future__ import annotations

import io
import re
import tarfile

import pytest

from image import lock
from image.debian import PACKAGES
from image.files import File, tar, untar
from image.lock import HOME, MACHINES, Locked
from unwind.errors import UnwindError


@pytest.mark.parametrize("arch", MACHINES)
def test_the_lock_has_every_debian_package_of_the_image(arch: str) -> None:
    assert [package.name for package in lock.read("deb", arch)] == sorted(PACKAGES)


@pytest.mark.parametrize("arch", MACHINES)
def test_the_lock_has_the_wheels_of_the_requirements(arch: str) -> None:
    text = (HOME / "requirements" / "runtime.txt").read_text()
    required = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))
    locked = lock.read("wheel", arch)
    assert {package.name: package.version for package in locked} == required
    assert {package.sha256 for package in locked} <= set(re.findall(r"sha256:(\w+)", text))


def test_a_file_with_another_checksum_is_refused() -> None:
    package = Locked("deb", "amd64", "python", "3", "0" * 64)
    with pytest.raises(UnwindError, match="sha256 is"):
        package.keep(HOME / "README.md")
    assert not package.cached.exists()


def test_an_archive_depends_on_the_files_only() -> None:
    files = {"usr/bin/b": File(b"b", mode=0o755), "a": File(link="usr/bin/b"), "tmp": File(mode=0o1777, directory=True)}
    archive = tar(files)
    assert archive == tar(dict(reversed(files.items())))
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        assert members.getnames() == ["a", "tmp", "usr", "usr/bin", "usr/bin/b"]
        assert {(member.uid, member.gid, member.mtime) for member in members} == {(0, 0, 0)}


def test_a_package_brings_no_program_with_the_rights_of_its_owner() -> None:
    [file] = untar(tar({"usr/bin/su": File(b"su", mode=0o4755)})).values()
    assert file.mode == 0o755
