"""Pages of the site that are not in docs/: files of the repository that have to be where other tools look for them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_HOME = Path(__file__).parents[1]
# By path in the repository: the path in the site.
_OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "LICENSE.txt",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "charts/unwind/README.md": "chart.md",
}
_INSIDE = {uri: path for path, uri in _OUTSIDE.items() if path != "README.md"}
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for uri, path in _INSIDE.items():
        files.append(File.generated(config, uri, content=(_HOME / path).read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text with links between files of the repository turned into links between pages of the site."""
    at = page.file.src_uri
    source = _INSIDE.get(at, f"docs/{at}")

    def in_site(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        target = _OUTSIDE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        # A file that is not part of the site stays as it is: the build names the link, and fails.
        return posixpath.relpath(target, posixpath.dirname(at)) if target else link[1]

    return _LINK.sub(in_site, markdown)
