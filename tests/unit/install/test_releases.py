"""The manifests of each release, kept so that later versions are tested as upgrades from it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from unwind.api.rights import Setting
from unwind.cli.console import as_yaml
from unwind.install.manifests import manifests

RELEASES = Path(__file__).parents[2] / "data" / "releases"


def test_the_kept_manifests_of_this_version_are_those_that_install_renders() -> None:
    kept = RELEASES / version("kube-unwind") / "install.yaml"
    if not kept.exists():
        pytest.skip("this version is not released yet")
    rendered = as_yaml(manifests(Setting()))
    assert kept.read_text() == rendered, f"run: unwind install --dry-run -o yaml > {kept.relative_to(Path.cwd())}"
