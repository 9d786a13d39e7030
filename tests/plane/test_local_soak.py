"""The supervisor killed at any moment: nothing runs on, and the next `up` works."""

from __future__ import annotations

import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.plane.support.commands import Shell

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = 12


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_killed_at_any_moment_of_its_life_a_plane_leaves_no_process_and_the_next_one_comes_up(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "state")
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for round_ in range(ROUNDS):
        moment = chance.uniform(0, 6)
        up = shell.start("local", "up", "--foreground", "--members", "1")
        time.sleep(moment)
        up.send_signal(signal.SIGKILL)
        up.communicate()
        shell.until_no_process()
        print(f"seed {seed}, round {round_}: killed after {moment:.3f} s")
    last = shell.run("local", "up")
    assert last.returncode == 0, last.stderr
    assert shell.run("local", "down").returncode == 0
    assert shell.nothing_left()
