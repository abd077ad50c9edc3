"""The site: its navigation lists each page, and its reference describes each public name of the library.

`make docs` checks the links; these tests are those that need no build.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import headrace.client
import headrace.spark
from headrace.client.synchronous.synchronous_admin import Admin

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
CONFIGURATION = ROOT / "mkdocs.yml"
REFERENCE = ROOT / "docs" / "reference"
DESCRIBED = re.compile(r"^::: (\S+)$", re.MULTILINE)


class NavigationLoader(yaml.SafeLoader):
    """Reads the configuration without the Python objects that it names."""


NavigationLoader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


@pytest.fixture(scope="module")
def hooks() -> Iterator[ModuleType]:
    """The hooks, loaded as MkDocs loads them: modules next to them can be imported."""
    spec = importlib.util.spec_from_file_location("site_hooks", SCRIPTS / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(SCRIPTS))


def _pages_of(navigation: object) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    parts = navigation.values() if isinstance(navigation, dict) else navigation
    assert not isinstance(parts, str | None)
    return [page for part in parts for page in _pages_of(part)]  # type: ignore[attr-defined]


def _described() -> list[str]:
    return [name for page in sorted(REFERENCE.glob("*.md")) for name in DESCRIBED.findall(page.read_text())]


def test_the_navigation_lists_each_page_once(hooks: ModuleType):
    navigation = yaml.load(CONFIGURATION.read_text(), NavigationLoader)["nav"]
    listed = _pages_of(navigation)
    assert len(set(listed)) == len(listed)
    in_docs = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    of_decisions = {page for page in in_docs if page.startswith(hooks.DECISIONS)}
    documents = {page for page in hooks.DOCUMENTS if page.endswith(".md")}
    assert set(listed) == in_docs - of_decisions | documents | {hooks.HTTP_API, hooks.EVERY_DECISION}


def test_documents_of_the_site_exist(hooks: ModuleType):
    assert [document for document in hooks.DOCUMENTS if not (ROOT / document).is_file()] == []


def test_each_public_name_is_described_once():
    described = _described()
    assert len(set(described)) == len(described)
    for package in (headrace.client, headrace.spark):
        prefix = package.__name__ + "."
        names = {name.removeprefix(prefix) for name in described if name.count(".") == 2 and name.startswith(prefix)}
        assert names == set(package.__all__)
    assert "headrace.testing.plugin" in described


def test_each_part_of_the_administration_is_described():
    with headrace.client.connect() as client:
        parts = {Admin} | {type(part) for name, part in vars(client.admin).items() if name[0] != "_"}
    assert {f"{part.__module__}.{part.__qualname__}" for part in parts} <= set(_described())


def test_the_page_of_the_http_api_has_each_call_and_schema(hooks: ModuleType):
    api = json.loads((ROOT / "docs" / "api" / "openapi.json").read_text())
    page = hooks.http_api_page(api)
    calls = {f"`{method.upper()} {path}`" for path, methods in api["paths"].items() for method in methods}
    assert len(calls) > 40
    assert calls <= set(page.splitlines())
    linked = set(re.findall(r"\(#(schema-\w+)\)", page))
    anchors = set(re.findall(r"\{: #(schema-\w+) \}", page))
    assert linked <= anchors
    assert len(anchors) == len(api["components"]["schemas"])
    row = next(line for line in page.splitlines() if line.startswith("| `streamName`"))
    assert "string" in row


@pytest.mark.parametrize("line", ["- an item", "| a | b |", "a **word**", "[a](b.md)", "::: headrace.client"])
def test_markdown_that_is_not_rendered_is_found(hooks: ModuleType, line: str):
    assert hooks.unrendered(f"<p>Some text\n{line}\n<code>{line}</code> - and so on</p>") == [line]


def test_the_index_of_decisions_has_each_record(hooks: ModuleType):
    records = hooks.decisions()
    index = hooks.decisions_index()
    assert [path.name for path in records] == re.findall(r"\(([^)]+\.md)\)", index)
    assert f"[{records[0].read_text().splitlines()[0].removeprefix('# ')}]" in index
