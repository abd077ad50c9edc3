"""Hooks of MkDocs: they give the site the layout of the repository, so that every relative link means the same in both.

Pages of `docs` keep this folder in their paths, and documents outside of it are added under their own paths. MkDocs
then checks all links between them. Two pages are generated: the index of the decision records, and the HTTP API.
"""

from __future__ import annotations

import html
import json
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from http_api_page import http_api_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from headrace import __version__

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "simulation/README.md",
    "benchmarks/README.md",
)  # fmt: skip
"""Files outside of `docs` that are on the site."""
DECISIONS = "docs/decisions"
DECISIONS_INDEX = f"{DECISIONS}/README.md"
EVERY_DECISION = f"{DECISIONS}/*.md"
"""In the navigation: the index of the decision records, and then each of them."""
HTTP_API = "docs/reference/http-api.md"

_CODE = re.compile(r"<(pre|code)[ >].*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_MARKDOWN = re.compile(r"^.*(?:\*\*|\]\(|^\s*- |^\s*\|.*\||^\s*:::|`).*$", re.MULTILINE)
_LOG = logging.getLogger("mkdocs.hooks.site")
_LINK = re.compile(r"\]\((?P<target>[^)#:]+)\)")


def decisions() -> list[Path]:
    """The decision records, by number."""
    return sorted((ROOT / DECISIONS).glob("*.md"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the decision records in the navigation, and names the version at the foot of each page."""
    config.nav = _expanded(config.nav)
    config.copyright = f"Headrace {__version__}. {config.copyright}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Moves the pages to their paths in the repository, and adds the documents outside of `docs`."""
    site = Files([])
    for file in files:
        if file.src_dir == config.docs_dir:
            file = File.generated(config, f"docs/{file.src_uri}", abs_src_path=file.abs_src_path)
        site.append(file)
    for document in DOCUMENTS:
        site.append(File.generated(config, document, abs_src_path=str(ROOT / document)))
    site.append(File.generated(config, DECISIONS_INDEX, content=decisions_index()))
    api = json.loads((ROOT / "docs" / "api" / "openapi.json").read_text())
    site.append(File.generated(config, HTTP_API, content=http_api_page(api)))
    return site


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A link to a folder becomes one to its page."""

    def to_page(link: re.Match[str]) -> str:
        folder = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link["target"]))
        if files.get_file_from_path(f"{folder}/README.md") is None:
            return link[0]
        return f"]({link['target']}/README.md)"

    return _LINK.sub(to_page, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Warns of text that other renderers take for Markdown: mostly lists that need an empty line or four spaces."""
    for line in unrendered(content):
        _LOG.warning("Doc file '%s' has Markdown that is not rendered: %s", page.file.src_uri, line)
    return content


def unrendered(content: str) -> list[str]:
    """The lines of a page that still have marks of Markdown."""
    text = html.unescape(_TAG.sub("", _CODE.sub("code", content)))
    return [found[0].strip() for found in _MARKDOWN.finditer(text)]


def _expanded(navigation: Any) -> Any:
    if isinstance(navigation, list):
        return [_expanded(each) for each in navigation]
    if isinstance(navigation, dict):
        return {name: _expanded(part) for name, part in navigation.items()}
    if navigation == EVERY_DECISION:
        return [DECISIONS_INDEX, *(f"{DECISIONS}/{path.name}" for path in decisions())]
    return navigation


def decisions_index() -> str:
    """The page that lists the decision records."""
    return "# Decisions\n\n" + "".join(_entries())


def _entries() -> Iterator[str]:
    for path in decisions():
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        yield f"- [{title}]({path.name})\n"
