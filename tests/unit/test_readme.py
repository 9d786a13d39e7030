"""The README: the commands that it shows exist."""

from __future__ import annotations

import re
from pathlib import Path

HOME = Path(__file__).parents[2]
README = (HOME / "README.md").read_text()


def test_every_command_is_a_target_of_the_makefile() -> None:
    [block] = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    asked = [line.partition("#")[0].split() for line in block.splitlines() if line.strip()]
    targets = re.findall(r"^([a-z]+):.*## ", (HOME / "Makefile").read_text(), re.MULTILINE)
    assert asked == [["make", "demo"], ["make", "test"]]
    assert {"demo", "test"} <= set(targets)
    named = re.findall(r"^\| `make ([a-z]+)` \|", README, re.MULTILINE)
    assert set(named) <= set(targets)


def test_every_command_of_unwind_that_it_shows_exists() -> None:
    shown = set(re.findall(r"^\$ (unwind \w+)", README, re.MULTILINE))
    known = re.findall(r"^## `(.*)`$", (HOME / "docs" / "reference" / "commands.md").read_text(), re.MULTILINE)
    assert len(shown) >= 5
    assert shown <= set(known)
