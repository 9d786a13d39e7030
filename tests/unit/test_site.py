"""The documentation as a web site: its links, and that a browser needs nothing but its files."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tests.plane.support.dashboards import chromium

HOME = Path(__file__).parents[2]


def build_site(docs: Path, site: Path) -> None:
    build(load_config(str(HOME / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site), strict=True))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    build_site(HOME / "docs", directory)
    return directory


def test_a_broken_link_a_broken_anchor_and_a_page_that_nothing_leads_to_are_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    docs = shutil.copytree(HOME / "docs", tmp_path / "docs")
    (docs / "why.md").write_text("# Why\n\n[one](nowhere.md) [two](start.md#nowhere) [three](../src/code.py)\n")
    (docs / "lonely.md").write_text("# Lonely\n")
    with caplog.at_level(logging.WARNING, "mkdocs"), pytest.raises(Abort):
        build_site(docs, tmp_path / "site")
    said = [record.getMessage() for record in caplog.records]
    for part in ("'nowhere.md'", "does not contain an anchor '#nowhere'", "src/code.py", "lonely.md"):
        assert any(part in message for message in said), (part, said)


def test_files_of_the_repository_are_pages_and_their_links_lead_to_pages(site: Path) -> None:
    contributing = (site / "contributing.html").read_text()
    assert 'href="deleters.html#contract"' in contributing
    assert 'href="LICENSE.txt"' in contributing
    assert 'href="contributing.html"' in (site / "index.html").read_text()
    assert 'href="../install.html#features"' in (site / "reference" / "rights.html").read_text()


async def test_a_browser_finds_pages_by_search_and_asks_no_other_host(site: Path) -> None:
    asked: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        # Opened from a directory, as somebody without a web server does: that is the harder case.
        for name in ("index", "companions-flux", "reference/commands"):
            await page.goto((site / f"{name}.html").as_uri())
        await page.fill("input[name=query]", "stuck in Terminating")
        await page.locator(".md-search-result__item h1", has_text="unwind why").first.wait_for(timeout=120_000)
    assert asked
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))]


def test_the_first_page_leads_to_the_deletion_of_a_cluster_with_flux_in_one_click(site: Path) -> None:
    assert '<a href="companions-flux.html">Flux</a>' in (site / "index.html").read_text()
    assert "kubectl delete clusters.cluster.x-k8s.io" in (HOME / "docs" / "companions-flux.md").read_text()
