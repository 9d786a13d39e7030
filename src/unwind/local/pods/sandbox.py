"""One container as a process: its own root filesystem, and mount, PID, IPC and UTS namespaces."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UnwindError
from unwind.local.pods.images import Image
from unwind.local.processes import ProcessId
from unwind.subprocesses import die_with_parent, until_child_ended

if TYPE_CHECKING:
    from collections.abc import Iterator


_PREPARED = "prepared"
_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")


class Mount(msgspec.Struct, frozen=True):
    """A file or directory of this machine that a container sees at another path."""

    source: Path | None
    """None for memory, which no other container shares."""
    target: str
    read_only: bool = True


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """What a container runs, and what it sees."""

    image: Image
    argv: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    hostname: str
    user: int
    group: int
    groups: Sequence[int] = ()
    read_only: bool = False
    """Whether its root filesystem is read-only."""

    def script(self, directory: Path) -> str:
        """A shell script that prepares the root filesystem in its own mount namespace, and runs the container.

        The shell stays the first process of the PID namespace. It ends with the process that started it, which the
        container could not: the kernel drops that tie when a process changes its user.
        """
        return "\n".join(self._lines(directory))

    def _lines(self, directory: Path) -> Iterator[str]:
        root = directory / "root"
        lower = ":".join(str(layer) for layer in self.image.layers)
        options = f"lowerdir={lower},upperdir={directory / 'upper'},workdir={directory / 'work'}"
        yield "set -e"
        yield f"echo {shlex.quote(self.hostname)} > /proc/sys/kernel/hostname"
        yield _line("mount", "-t", "overlay", "-o", options, "overlay", root)
        devices = [Mount(Path("/dev") / name, f"/dev/{name}", read_only=False) for name in _DEVICES]
        # Outer directories first, so that they do not hide what is inside them.
        for mount in sorted([*devices, *self.mounts], key=lambda one: PurePosixPath(one.target).parts):
            target = f"{root}{self.image.inside(mount.target)}"
            if mount.source is None:
                yield _line("mkdir", "-p", target)
                yield _line("mount", "-t", "tmpfs", "-o", "mode=1777,nosuid,nodev", "tmpfs", target)
                continue
            if mount.source.is_dir():
                yield _line("mkdir", "-p", target)
            else:
                yield _line("mkdir", "-p", Path(target).parent)
                yield _line("touch", target)
            yield _line("mount", "--bind", mount.source, target)
            if mount.read_only:
                yield _line("mount", "-o", "remount,bind,ro", target)
        yield _line("mount", "-t", "proc", "proc", root / "proc")
        if self.read_only:
            yield _line("mount", "-o", "remount,ro", root)
        groups = ",".join(str(group) for group in self.groups)
        chroot = (_program("chroot"), f"--userspec={self.user}:{self.group}", f"--groups={groups}", root)
        yield f": > {shlex.quote(str(directory / _PREPARED))}"
        yield _line(_program("setpriv"), "--no-new-privs", *chroot, *self.argv) + " &"
        yield "wait $!"


class ContainerProcess:
    """A started container. It ends with this process."""

    def __init__(self, sandbox: Sandbox, *, directory: Path, log: Path) -> None:
        if directory.exists():
            shutil.rmtree(directory)
        for part in ("root", "upper", "work"):
            (directory / part).mkdir(parents=True)
        self._prepared = directory / _PREPARED
        # When the first process of a PID namespace ends, the kernel kills all others.
        argv = [_program("unshare"), "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL"]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [*argv, "/bin/sh", "-c", sandbox.script(directory)],
                env=dict(sandbox.environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - it only calls prctl, which takes no lock
            )

    @property
    def pid(self) -> int | None:
        """The process that the container runs; None if there is none yet, or any more."""
        if not self._prepared.exists():
            return None  # the shell still runs other programs
        pid: int | None = self._popen.pid
        for _ in ("the shell", "its child"):
            pid = _child(pid) if pid else None
        return pid

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, as a shell shows it."""
        await until_child_ended(self._popen.pid)
        code = self._popen.wait()
        return code if code >= 0 else 128 - code

    def send(self, sign: signal.Signals) -> None:
        """Signal the process that the container runs."""
        if (pid := self.pid) and (process := ProcessId.of(pid)):
            process.send(sign)

    def kill(self) -> None:
        """Kill it, at whatever point it is."""
        with suppress(ProcessLookupError):
            os.kill(self._popen.pid, signal.SIGKILL)


def _child(pid: int) -> int | None:
    with suppress(OSError):
        if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(children[0])
    return None


def _line(*words: object) -> str:
    return shlex.join(str(word) for word in words)


def _program(name: str) -> str:
    # The environment is that of the container.
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if not path:
        raise UnwindError(f"cannot start a container: {name} is not installed", remedy="install it, and try again")
    return path
