"""The command line in a process of its own, forked from one that has its modules loaded: most of a start is imports."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

UNWIND = Path(sys.executable).with_name("unwind")
"""The program itself."""

_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["unwind.cli.deleters", "unwind.cli.hooks", "unwind.external.azure.plugin"])


def run(*arguments: str, beside: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command. `beside`: a directory with further packages."""
    variables |= {"NO_COLOR": "1", "COLUMNS": "160"}
    with tempfile.TemporaryDirectory() as directory:
        out, err = Path(directory) / "out", Path(directory) / "err"
        process = _fork.Process(target=_main, args=(arguments, str(beside or ""), variables, str(out), str(err)))
        process.start()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())


def _main(arguments: tuple[str, ...], beside: str, variables: dict[str, str], out: str, err: str) -> None:
    for path, descriptor in ((out, 1), (err, 2)):
        with Path(path).open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    os.environ.update(variables)
    sys.argv = ["unwind", *arguments]
    if beside:
        sys.path.insert(0, beside)
    from unwind.cli import main  # noqa: PLC0415 - in the new process

    main()
