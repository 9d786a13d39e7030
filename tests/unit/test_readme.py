"""The README: what it tells people to type is there, and so is what it points to."""

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


def test_every_page_and_picture_that_is_pointed_to_is_there() -> None:
    for page in (HOME / "README.md", *(HOME / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} points to {target}"
