"""The commands of `unwind`, run as a person runs them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests import forked_commands
from tests.eventually import eventually_sync
from tests.forked_commands import UNWIND
from unwind.api.features import ALL, written
from unwind.local import tools
from unwind.local.processes import ProcessId

if TYPE_CHECKING:
    from unwind.local.cluster import LocalCluster


class CommandResult:
    """The output and the exit code of a command."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def refusal(self) -> str:
        """The error line of a command that failed."""
        assert self.code in (1, 2), self.out + self.err
        [line] = [line for line in self.err.splitlines() if not line.startswith("warning:")]
        assert line.startswith("unwind: ")
        return line

    @property
    def counts(self) -> dict[str, int]:
        assert self.code == 0, self.err
        last = self.out.splitlines()[-1]
        return {word: int(count) for word, _, count in (part.rpartition(" ") for part in last.split(", "))}


async def run(*arguments: str, kubeconfig: Path, features: str = written(ALL)) -> CommandResult:
    """Run a command. `features`: those of `install` and `run`; empty for what they do by default."""
    env = os.environ | {"NO_COLOR": "1", "KUBECONFIG": str(kubeconfig)}
    env |= {"UNWIND_FEATURES": features, "UNWIND_ACCEPT_SHADOWING": "true"} if features else {}
    return CommandResult(await forked_commands.run_off_loop(*arguments, env=env))


async def command(cluster: LocalCluster, *arguments: str, features: str = written(ALL)) -> CommandResult:
    """Run a command with the kubeconfig of a cluster."""
    return await run(*arguments, kubeconfig=cluster.kubeconfig, features=features)


async def json_of(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    """The JSON document that a command prints."""
    done = await command(cluster, *arguments, "-o", "json")
    assert done.code == 0, done.err
    found: dict[str, Any] = msgspec.json.decode(done.out)
    return found


async def kubectl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl as a person does."""
    found = tools.find_binary(tools.KUBECTL)
    assert found, "`make setup` builds it if it is not on the PATH"
    env = os.environ | {"KUBECONFIG": str(kubeconfig)}
    return await asyncio.to_thread(
        lambda: subprocess.run(
            [found.path, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
        )
    )


class Shell:
    """Runs commands with a state directory of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state
        kubectl = tools.find_binary(tools.KUBECTL)
        assert kubectl, "make setup has it built where it is not on the PATH"
        path = f"{UNWIND.parent}:{os.environ['PATH']}:{kubectl.path.parent}"
        self.env = os.environ | {"UNWIND_STATE_DIR": str(state), "NO_COLOR": "1", "PATH": path}

    def run(self, *arguments: str, program: str | Path = UNWIND) -> subprocess.CompletedProcess[str]:
        # `local up` starts programs that stay.
        if program == UNWIND and arguments[0] == "local" and arguments[1] != "up":
            return forked_commands.run(*arguments, env=self.env)
        # Looked up here: the PATH that counts is that of the command, not ours.
        program = shutil.which(program, path=self.env["PATH"]) or program
        return subprocess.run(
            [program, *arguments], env=self.env, capture_output=True, text=True, timeout=120, check=False
        )

    def start(self, *arguments: str, ignoring_interrupts: bool = False) -> subprocess.Popen[str]:
        """Start a command, by default as from a terminal; else as scripts do with what they put into the background."""
        on_interrupt = signal.SIG_IGN if ignoring_interrupts else signal.SIG_DFL
        return subprocess.Popen(
            [UNWIND, *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, on_interrupt),  # noqa: PLW1509 - it takes no lock
        )

    def planes(self) -> list[dict[str, Any]]:
        planes: list[dict[str, Any]] = msgspec.json.decode(self.run("local", "status", "-o", "json").stdout)
        return planes

    def supervisor(self) -> ProcessId:
        return msgspec.convert(self.planes()[0]["supervisor"], ProcessId)

    def processes(self) -> list[str]:
        """Every process on this machine that was told of our state directory, however it was started."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and ProcessId.of(int(entry.name)):
                try:
                    command, environment = (
                        (entry / part).read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        for part in ("cmdline", "environ")
                    )
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                if str(self.state) in command + environment:
                    found.append(command)
        return found

    def until_no_process(self) -> None:
        # The kernel kills them at once; that they are gone is a matter of when they are scheduled.
        eventually_sync(lambda: not self.processes(), "no process", within=10)

    def nothing_left(self) -> bool:
        return self.processes() == [] and not any((self.state / "local").glob("*"))
