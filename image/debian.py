"""The base of the image: Debian packages, unpacked without running anything of them."""

from __future__ import annotations

import fnmatch
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from image.files import File, Tree, untar
from image.lock import MACHINES, Locked, run
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Python, and the libraries that it and the wheels need. No shell, no package manager.
PACKAGES = (
    "base-files",
    "ca-certificates",
    "gcc-12-base",
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libuuid1",
    "media-types",
    "python3.11-minimal",
    "zlib1g",
)
_EXTENSIONS = "usr/lib/python3.11/lib-dynload"
_LEFT_OUT = (
    # Documentation and translations, except licences.
    "usr/share/doc/*/[!c]*",
    "usr/share/doc/*/changelog*",
    "usr/share/info/*",
    "usr/share/lintian/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "usr/share/base-files/*",
    "usr/share/bug/*",
    # Shell scripts of packages, and settings of programs that are not in the image.
    "usr/sbin/*",
    "etc/ca-certificates/*",
    "etc/profile*",
    "etc/update-motd.d/*",
    "usr/lib/binfmt.d/*",
    "usr/share/binfmts/*",
    # Character sets for iconv.
    "usr/lib/*/gconv/*",
    # Modules of Python whose libraries are not in the image.
    f"{_EXTENSIONS}/_curses*",
    f"{_EXTENSIONS}/_dbm*",
    f"{_EXTENSIONS}/_sqlite3*",
    f"{_EXTENSIONS}/nis*",
    f"{_EXTENSIONS}/readline*",
)
# Debian keeps these as links since its version 12; the packages still have files below them.
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"


@contextmanager
def _apt(arch: str) -> Iterator[tuple[str, ...]]:
    """The options for apt to use this machine's sources for another architecture, and nothing else of its state."""
    with tempfile.TemporaryDirectory(prefix="unwind-apt-") as name:
        directory = Path(name)
        for part in ("lists/partial", "cache/archives/partial"):
            (directory / part).mkdir(parents=True)
        (directory / "status").touch()
        options = {
            "APT::Architecture": arch,
            "APT::Architectures": arch,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Dir::State::Lists": directory / "lists",
            "Dir::State::status": directory / "status",
            "Dir::Cache": directory / "cache",
        }
        settings = tuple(f"-o{key}={value}" for key, value in options.items())
        run("apt-get", *settings, "--quiet", "update")
        yield settings


def resolve(arch: str) -> list[Locked]:
    """The newest version of each package that this machine's sources have."""
    with _apt(arch) as settings:
        shown = run("apt-cache", *settings, "show", "--no-all-versions", *PACKAGES)
    found = [_fields(paragraph) for paragraph in shown.strip().split("\n\n")]
    return [Locked("deb", arch, one["Package"], one["Version"], one["SHA256"]) for one in found]


def fetch(arch: str, packages: Sequence[Locked]) -> None:
    """Download the packages that are not in the cache."""
    missing = [package for package in packages if not package.cached.exists()]
    if not missing:
        return
    with _apt(arch) as settings, tempfile.TemporaryDirectory(prefix="unwind-debs-") as name:
        directory = Path(name)
        try:
            wanted = (f"{package.name}={package.version}" for package in missing)
            run("apt-get", *settings, "--quiet", "download", *wanted, directory=directory)
        except UnwindError as error:
            raise UnwindError(
                str(error), remedy="if the sources of apt have newer versions only, run `make image-lock`"
            ) from error
        for package in missing:
            [file] = directory.glob(f"{package.name}_*.deb")
            package.keep(file)


def base(arch: str, packages: Sequence[Locked]) -> Tree:
    """The files of the packages, and those that their installation would create."""
    tree: Tree = {}
    for package in packages:
        parts = _archive(package.cached.read_bytes())
        control = untar(parts["control"])["control"]
        # Scanners find the installed packages here if there is no database of dpkg.
        tree[f"var/lib/dpkg/status.d/{package.name}"] = control
        files = {_merged(path): file for path, file in untar(parts["data"]).items()}
        tree |= {path: file for path, file in files.items() if not _left_out(path)}
    authorities = sorted(path for path in tree if path.startswith("usr/share/ca-certificates/"))
    bundle = b"".join(tree.pop(path).data for path in authorities)
    return tree | _links(arch) | {_BUNDLE: File(bundle)} | _settings()


def _links(arch: str) -> Tree:
    links = {name: f"usr/{name}" for name in ("bin", "lib", "sbin")} | {"var/run": "/run"}
    links |= {"usr/lib/ssl/cert.pem": f"/{_BUNDLE}", "usr/lib/ssl/certs": "/etc/ssl/certs"}
    if arch == "amd64":
        links["lib64"] = "usr/lib64"
    return {path: File(link=link, mode=0o777) for path, link in links.items()}


def _settings() -> Tree:
    return {
        "etc/passwd": File(b"root:x:0:0:root:/:/nonexistent\nunwind:x:65532:65532:unwind:/tmp:/nonexistent\n"),
        "etc/group": File(b"root:x:0:\nunwind:x:65532:\n"),
        "etc/nsswitch.conf": File(b"passwd: files\ngroup: files\nhosts: files dns\n"),
        "tmp": File(mode=0o1777, directory=True),
        "usr/sbin": File(mode=0o755, directory=True),
        **{path: File(mode=0o755, directory=True) for path in ("dev", "proc", "run", "sys")},
    }


def _archive(deb: bytes) -> dict[str, bytes]:
    """The parts of a .deb, an ar archive: `control` and `data`, both compressed tar archives."""
    if not deb.startswith(b"!<arch>\n"):
        raise ValueError("not a Debian package")
    parts, at = {}, 8
    while at < len(deb):
        name, size = deb[at : at + 16].decode().strip(), int(deb[at + 48 : at + 58])
        parts[name.partition(".")[0]] = deb[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    return parts


def _merged(path: str) -> str:
    return f"usr/{path}" if path.split("/", maxsplit=1)[0] in _MERGED else path


def _left_out(path: str) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in _LEFT_OUT)


def _fields(paragraph: str) -> dict[str, str]:
    lines = (line.partition(": ") for line in paragraph.splitlines() if not line.startswith(" "))
    return {name: value for name, _, value in lines}


def loader(arch: str) -> str:
    """The path of the program that loads shared libraries."""
    machine = MACHINES[arch]
    return f"usr/lib/{machine}-linux-gnu/ld-linux-{'x86-64.so.2' if arch == 'amd64' else 'aarch64.so.1'}"
