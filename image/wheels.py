"""Python packages of the image: the wheels of requirements/runtime.txt, and Unwind itself."""

from __future__ import annotations

import io
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from image.files import File, Tree
from image.lock import HOME, MACHINES, Locked, checksum, run

if TYPE_CHECKING:
    from collections.abc import Sequence

SITE = "usr/local/lib/python3.11/dist-packages"
_GLIBC_MINOR = 36  # of Debian 12
# The virtual environment of `make setup` has no pip of its own.
PIP = (sys._base_executable, "-m", "pip", "--disable-pip-version-check")  # type: ignore[attr-defined]  # noqa: SLF001


def resolve(arch: str) -> list[Locked]:
    """The wheels of requirements/runtime.txt for this architecture."""
    with tempfile.TemporaryDirectory(prefix="unwind-wheels-") as name:
        _download(arch, HOME / "requirements" / "runtime.txt", Path(name))
        files = sorted(Path(name).iterdir())
        return [Locked("wheel", arch, *_name_and_version(file), checksum(file)) for file in files]


def fetch(arch: str, packages: Sequence[Locked]) -> None:
    """Download the wheels that are not in the cache."""
    missing = {package.name: package for package in packages if not package.cached.exists()}
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="unwind-wheels-") as name:
        directory = Path(name)
        wanted = directory / "requirements.txt"
        wanted.write_text(
            "".join(f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in missing.values())
        )
        _download(arch, wanted, directory)
        for file in directory.glob("*.whl"):
            missing[_name_and_version(file)[0]].keep(file)


def unwind() -> bytes:
    """The wheel of Unwind."""
    with tempfile.TemporaryDirectory(prefix="unwind-wheel-") as name:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", name)
        [file] = Path(name).glob("*.whl")
        return file.read_bytes()


def unpack(wheel: bytes) -> Tree:
    """The installed files of a wheel. Scripts are left out."""
    tree: Tree = {}
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for entry in archive.infolist():
            path = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
            if not entry.is_dir() and not re.match(r"[^/]+\.data/", path):
                tree[f"{SITE}/{path}"] = File(archive.read(entry))
    return tree


def _download(arch: str, requirements: Path, directory: Path) -> None:
    machine = MACHINES[arch]
    platforms = [f"manylinux2014_{machine}", *(f"manylinux_2_{n}_{machine}" for n in range(_GLIBC_MINOR, 4, -1))]
    run(
        *PIP,
        *("download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"),
        *("--python-version", "3.11", "--implementation", "cp"),
        *(f"--platform={platform}" for platform in platforms),
        *("--requirement", requirements, "--dest", directory),
    )


def _name_and_version(file: Path) -> tuple[str, str]:
    name, version = file.name.split("-")[:2]
    return name.replace("_", "-").lower(), version
