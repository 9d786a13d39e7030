"""Build the image: `python -m image.build --arch amd64 --output dist`."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from image import debian, helm, lock, oci, sbom, wheels
from image.files import File, Tree
from image.lock import HOME, MACHINES
from unwind.errors import UnwindError
from unwind.local.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USER = 65532
_PYTHON = "usr/bin/python3.11"
# Isolated: no variable and no file of the user changes what is imported.
_PROGRAM = f"""\
#!/{_PYTHON} -IB
import sys

from unwind.cli import main

sys.exit(main())
"""
_KEPT = 7 * 24 * 3600
_SOURCES = ("src/unwind", "image", "requirements/go.txt", "pyproject.toml", "README.md", "LICENSE")


class Image(NamedTuple):
    """A built image."""

    archive: Path
    bill: Path
    """The software bill of materials."""


def ensure(arch: str) -> Image:
    """The image of this source tree; from the cache, if it has been built."""
    directory = cache_dir() / "image" / f"unwind-{_key(arch)}"
    if not directory.exists():
        with _draft(directory) as made:
            made.mkdir()
            build(arch, made)
        _prune(directory.parent)
    os.utime(directory)
    return _image(directory, arch)


def build(arch: str, directory: Path) -> str:
    """Build the image into a directory, and return the digest of its manifest."""
    image = _image(directory, arch)
    debs, packages = lock.read("deb", arch), lock.read("wheel", arch)
    program = helm.build(arch)
    python = _python()

    def base() -> Tree:
        debian.fetch(arch, debs)
        return debian.base(arch, debs)

    def runtime() -> Tree:
        wheels.fetch(arch, packages)
        tree: Tree = {"usr/local/bin/helm": File(program.read_bytes(), mode=0o755)}
        for package in packages:
            tree |= wheels.unpack(package.cached.read_bytes())
        return tree

    own = wheels.unpack(wheels.unwind()) | {"usr/local/bin/unwind": File(_PROGRAM.encode(), mode=0o755)}
    digest = oci.write(
        image.archive,
        [
            oci.layer("Debian packages of image.lock", _cached(base, python, debs)),
            oci.layer("Python packages of image.lock, and helm", _cached(runtime, python, packages, program.name)),
            oci.layer("unwind", oci.compressed(_with_bytecode(own, python))),
        ],
        arch=arch,
        tag=_version(),
        config={
            "User": f"{USER}:{USER}",
            "Entrypoint": ["/usr/local/bin/unwind"],
            "Cmd": ["run"],
            "WorkingDir": "/",
            "Env": ["PATH=/usr/local/bin:/usr/bin", "HOME=/tmp", "LANG=C.UTF-8"],
            "ExposedPorts": {"8080/tcp": {}, "9443/tcp": {}},
            "StopSignal": "SIGTERM",
        },
        labels={
            "org.opencontainers.image.title": "unwind",
            "org.opencontainers.image.version": _version(),
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    )
    image.bill.write_bytes(
        sbom.document(debs + packages, helm=program, go=helm.go(), digest=digest, version=_version(), arch=arch)
    )
    return digest


def _cached(make: Callable[[], Tree], python: Path, *inputs: object) -> bytes:
    """A layer that does not depend on the sources of Unwind."""
    digest = hashlib.sha256(repr((python.name, inputs, _checksums("image"))).encode()).hexdigest()[:16]
    path = cache_dir() / "image" / f"layer-{digest}.tar.gz"
    if not path.exists():
        with _draft(path) as made:
            made.write_bytes(oci.compressed(_with_bytecode(make(), python)))
    return path.read_bytes()


def _python() -> Path:
    """A directory with the Python of the image, for this machine."""
    arch = helm.native()
    debs = lock.read("deb", arch)
    digest = hashlib.sha256(repr((debs, _checksums("image"))).encode()).hexdigest()[:16]
    path = cache_dir() / "image" / f"python-{digest}"
    if not path.exists():
        debian.fetch(arch, debs)
        with _draft(path) as made:
            _extract(debian.base(arch, debs), made)
    return path


def _with_bytecode(tree: Tree, python: Path) -> Tree:
    """Add the compiled modules. They are the same for all architectures.

    They are never compared with their sources, so that no time has to match.
    """
    sources = {path: file for path, file in tree.items() if path.endswith(".py") and "/python3.11/" in path}
    with tempfile.TemporaryDirectory(prefix="unwind-image-") as name:
        root, arch = Path(name), helm.native()
        _extract(sources, root)
        lock.run(
            *("env", "--ignore-environment", "PYTHONHASHSEED=0", f"PYTHONHOME={python / 'usr'}"),
            *(python / debian.loader(arch), "--library-path", python / f"usr/lib/{MACHINES[arch]}-linux-gnu"),
            *(python / _PYTHON, "-B", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"),
            *("-s", root, "-p", "/", root),
        )
        compiled = {str(file.relative_to(root)): File(file.read_bytes()) for file in root.rglob("*.pyc")}
    return tree | compiled


@contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A path for a file or directory that becomes the target when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=target.parent) as name:
        draft = Path(name) / target.name
        yield draft
        # Another process may have been faster; then a directory is not replaced.
        with suppress(OSError) if target.is_dir() else nullcontext():
            draft.replace(target)


def _prune(directory: Path) -> None:
    """Remove images that were not used for a week."""
    for image in directory.glob("unwind-*"):
        if time.time() - image.stat().st_mtime > _KEPT:
            shutil.rmtree(image, ignore_errors=True)


def _extract(tree: Tree, target: Path) -> None:
    """Write the files of a tree. Their owner is this user."""
    for path, file in tree.items():
        file_path = target / path
        if file.directory:
            file_path.mkdir(parents=True, exist_ok=True)
            continue
        file_path.parent.mkdir(parents=True, exist_ok=True)
        if file.link:
            file_path.symlink_to(file.link)
        else:
            file_path.write_bytes(file.data)
            file_path.chmod(file.mode)


def _image(directory: Path, arch: str) -> Image:
    stem = f"unwind-{_version()}-{arch}"
    return Image(directory / f"{stem}.oci.tar", directory / f"{stem}.cdx.json")


def _version() -> str:
    return version("kube-unwind")


def _key(arch: str) -> str:
    return hashlib.sha256(repr((arch, [_checksums(source) for source in _SOURCES])).encode()).hexdigest()[:16]


def _checksums(source: str) -> list[tuple[str, str]]:
    """The files of a part of the source tree, with their checksums."""
    path = HOME / source
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [
        (str(file.relative_to(HOME)), lock.checksum(file))
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the container image.")
    parser.add_argument("--arch", choices=MACHINES, default=helm.native())
    parser.add_argument("--output", type=Path, default=HOME / "dist")
    parser.add_argument("--lock", action="store_true", help="renew the lock file instead")
    options = parser.parse_args()
    try:
        if options.lock:
            lock.write([one for arch in MACHINES for one in (*debian.resolve(arch), *wheels.resolve(arch))])
            return 0
        options.output.mkdir(parents=True, exist_ok=True)
        for file in ensure(options.arch):
            print(shutil.copy(file, options.output))
    except UnwindError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
