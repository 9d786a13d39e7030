"""docs/proposals.md: every module and every test that it names exists, and every statement has both."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "proposals.md").read_text()
HEADER = "| statement | code | tests |"
MODULE = re.compile(r"`([\w/]+\.py)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def statements() -> list[tuple[str, str, str]]:
    """The rows of the tables of statements: statement, code, tests."""
    rows: list[tuple[str, str, str]] = []
    table = False
    for line in PAGE.splitlines():
        table = line.startswith(HEADER) or (table and line.startswith("|"))
        if table and not line.startswith((HEADER, "|---")):
            statement, code, tests = (cell.strip() for cell in line.strip("|").split(" | "))
            rows.append((statement, code, tests))
    return rows


@cache
def source(path: str) -> str:
    return (HOME / path).read_text()


def test_each_of_the_five_documents_has_a_table() -> None:
    assert PAGE.count(HEADER) == 5
    assert len(statements()) > 80


@pytest.mark.parametrize(("statement", "code", "tests"), statements(), ids=lambda cell: cell[:60])
def test_the_modules_and_tests_of_a_statement_exist(statement: str, code: str, tests: str) -> None:
    modules, named = MODULE.findall(code), TEST.findall(tests)
    assert modules, statement
    assert ", ".join(f"`{module}`" for module in modules) == code, "nothing else is in the cell"
    assert named, statement
    assert ", ".join(f"`{path}::{name}`" for path, name in named) == tests, "nothing else is in the cell"
    for module in modules:
        assert (HOME / "src" / "unwind" / module).is_file(), module
    for path, name in named:
        assert re.search(rf"^(async )?def {name}\(", source(path), re.MULTILINE), f"{path}::{name}"
