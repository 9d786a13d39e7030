"""The wheel in an empty environment, without extras: the public API is there, and the documented example works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgspec
import pytest

import unwind
import unwind.hooks
import unwind.testing

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
LOCK = HOME / "requirements" / "runtime.txt"
PUBLIC: dict[str, list[str]] = {module.__name__: module.__all__ for module in (unwind, unwind.hooks, unwind.testing)}
# The environment that runs the tests has no pip of its own (see the Makefile).
PIP = [sys._base_executable, "-m", "pip", "--disable-pip-version-check"]  # type: ignore[attr-defined]

IMPORT_EVERYTHING = """
import importlib, json, pkgutil, unwind
missing = {}
for module in pkgutil.walk_packages(unwind.__path__, "unwind.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except Exception as error:
        missing[module.name] = str(error)
print(json.dumps(missing))
"""


class Environment:
    """A virtual environment with the wheel, and the libraries of requirements/runtime.txt only."""

    def __init__(self, directory: Path, *, from_registry: bool) -> None:
        self._directory = directory
        self._bin = directory / "env" / "bin"
        run(sys.executable, "-m", "venv", "--without-pip", directory / "env")
        if from_registry:
            self.pip("install", "--require-hashes", "-r", LOCK)
        else:
            self._copy_libraries()
        self.install(HOME)

    def _copy_libraries(self) -> None:
        """Copy what is installed here: the same versions, without a package registry."""
        [site] = (self._directory / "env").glob("lib/python3*/site-packages")
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(), re.MULTILINE):
            found = distribution(name)
            assert found.version == version, f"{name} is not the version of {LOCK.name}"
            for file in found.files or ():
                source, target = Path(str(found.locate_file(file))), site / file
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)

    def install(self, project: Path) -> None:
        """Build the wheel of a project, and install it."""
        wheels = self._directory / f"wheels-{project.name}"
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=project)
        self.pip("install", "--no-index", "--no-deps", *wheels.glob("*.whl"))

    def pip(self, command: str, *arguments: str | Path) -> str:
        return run(*PIP, "--python", self._bin / "python", command, "--quiet", *arguments)

    def python(self, code: str) -> str:
        # Not in the directory of the tests: Python would import from there.
        return run(self._bin / "python", "-c", code, cwd=self._directory)

    def unwind(self, *arguments: str) -> str:
        return run(self._bin / "unwind", *arguments, cwd=self._directory)

    def deleters(self, kind: str) -> Any:
        return msgspec.json.decode(self.unwind("deleters", kind, "-o", "json"))


def run(*arguments: str | Path, cwd: Path | None = None) -> str:
    # Without PYTHONPATH: only what is installed can be imported.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(
        arguments,
        cwd=cwd,
        env=env | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{arguments}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture(
    scope="module",
    # `make soak` installs the libraries from the package registry, by their hashes.
    params=[False, pytest.param(True, marks=pytest.mark.soak)],
    ids=["copied", "from-registry"],
)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("wheel"), from_registry=request.param)


@pytest.fixture(scope="module")
def example(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package that docs/deleters.md shows first, installed."""
    directory = tmp_path_factory.mktemp("example")
    for name, text in documented_files().items():
        (directory / name).write_text(text)
    environment.install(directory)
    return directory


def documented_files() -> dict[str, str]:
    page = (DOCS / "deleters.md").read_text()
    blocks = re.findall(r"^```(?:toml|python)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return {block.partition("\n")[0].removeprefix("# "): block for block in blocks[:3]}


def test_the_page_lists_the_public_api() -> None:
    page = (DOCS / "api.md").read_text()
    for module, names in PUBLIC.items():
        section = page.partition(f"## `{module}`\n")[2].partition("\n## ")[0]
        rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        listed = re.findall(r"`(\w+)`", " ".join(rows))
        assert sorted(listed) == sorted(names), module


def test_the_documentation_imports_the_public_api_only() -> None:
    for page in (DOCS / "deleters.md", DOCS / "hooks.md"):
        for module, names in re.findall(r"^from (unwind[\w.]*) import (.*)$", page.read_text(), re.MULTILINE):
            assert set(names.split(", ")) <= set(PUBLIC.get(module, ())), f"{page.name}: {module}"


def test_the_public_api_can_be_imported_without_extras(environment: Environment) -> None:
    environment.pip("check")
    found = environment.python(
        "import json, unwind, unwind.hooks, unwind.testing\n"
        "modules = (unwind, unwind.hooks, unwind.testing)\n"
        "for module in modules:\n"
        "    for name in module.__all__:\n"
        "        getattr(module, name)\n"
        "print(json.dumps({module.__name__: module.__all__ for module in modules}))"
    )
    assert msgspec.json.decode(found) == PUBLIC


def test_only_plugins_the_dashboard_and_test_tools_need_an_extra(environment: Environment) -> None:
    missing: dict[str, str] = msgspec.json.decode(environment.python(IMPORT_EVERYTHING))
    needing = {
        module
        for module in missing
        if ".azure." not in module and not module.startswith(("unwind.testing.", "unwind.dashboard."))
    }
    assert "unwind.dashboard.command" not in missing
    assert {module: missing[module] for module in needing} == {}
    assert missing, "nothing needs an extra: is one installed?"


def test_the_files_of_the_dashboard_are_in_it(environment: Environment) -> None:
    found = environment.python(
        "import json\n"
        "from importlib.resources import files\n"
        "home = files('unwind.dashboard')\n"
        "print(json.dumps([file.name for part in ('static', 'templates') for file in (home / part).iterdir()]))"
    )
    assert {"index.html", "app.js", "session.js", "app.css", "icon.svg", "row.html"} <= set(msgspec.json.decode(found))


def test_the_documented_example_is_registered_and_keeps_its_promises(environment: Environment, example: Path) -> None:
    chain = environment.deleters("example.dev/v1/Bucket")
    names = [row["name"] for row in chain["deleters"]]
    assert names == ["keep-by-policy", "wait-for-dependents", "leave-receipt", "kubernetes"]
    # Its test is a plain function, so it needs no pytest.
    environment.python(
        f"import sys; sys.path.insert(0, {str(example)!r})\n"
        "import test_bucket_deleters as tests\n"
        "tests.test_a_crash_changes_nothing_and_nothing_goes_too_early()"
    )


def test_without_its_extra_the_azure_plugin_is_skipped_and_holds_nothing(environment: Environment) -> None:
    chain = environment.deleters("cache.azure.com/v1api20230801/Redis")
    assert chain["held"] == {}
    assert [row["name"] for row in chain["deleters"]][-1] == "kubernetes"
    why = chain["skipped"]["*.azure.com/*/*"]
    assert "azure-identity" in why
    assert why.endswith("pip install 'kube-unwind[azure]'")


def test_the_command_runs_and_renders_the_manifests(environment: Environment) -> None:
    assert "Usage: unwind" in environment.unwind("--help")
    assert "kind: CustomResourceDefinition" in environment.unwind("install", "--dry-run", "-o", "yaml")
