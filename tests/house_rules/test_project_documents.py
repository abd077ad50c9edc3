"""The documents of the repository's root name files, commands and tools that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("CONTRIBUTING.md", "ARCHITECTURE.md")
NIGHTLY = "docs/internals/nightly.md"
RECIPES = (
    "Add a stream operation",
    "Add a resting state of a stream",
    "Add a wire command",
    "Add an error",
    "Add a retention rule",
)
CODE_SPAN = re.compile(r"`([^`\s]+)`")
LINK = re.compile(r"\]\(((?!https?:)[^)#]+)(?:#[^)]*)?\)")


def _named_paths(document: str) -> list[str]:
    """The code spans that name a file or a folder, some with the name of something in the file after `::`."""
    return [span for span in CODE_SPAN.findall((ROOT / document).read_text()) if "/" in span]


@pytest.mark.parametrize(("document", "named"), [*((guide, 20) for guide in GUIDES), (NIGHTLY, 15)])
def test_named_paths_exist(document: str, named: int):
    paths = _named_paths(document)
    assert len(paths) > named
    assert [path for path in paths if not (ROOT / path.partition("::")[0]).exists()] == []


@pytest.mark.parametrize("document", [*GUIDES, NIGHTLY])
def test_named_parts_of_files_exist(document: str):
    named = [path.split("::") for path in _named_paths(document) if "::" in path]
    missing = [f"{path}::{name}" for path, name in named if not re.search(rf"\b{name}\b", (ROOT / path).read_text())]
    assert missing == []


def test_modules_named_without_their_folder_exist():
    """A step of a recipe names a folder, and then modules in it or in a folder below it."""
    folder, missing, known = "", [], 0
    for span in CODE_SPAN.findall((ROOT / "CONTRIBUTING.md").read_text()):
        if "/" in span:
            folder = span if span.endswith("/") else folder
        elif span.endswith(".py"):
            known += 1
            missing += [] if any((ROOT / folder).rglob(span)) else [folder + span]
    assert known > 15
    assert missing == []


@pytest.mark.parametrize("document", [*GUIDES, "README.md", "SECURITY.md"])
def test_links_exist(document: str):
    assert [link for link in LINK.findall((ROOT / document).read_text()) if not (ROOT / link).exists()] == []


def test_modules_named_by_the_internals_exist():
    """The page writes the modules of the library and of the segment store without their common folder."""
    pages = [page.read_text() for page in sorted((ROOT / "docs" / "internals").glob("*.md"))]
    modules = [span for page in pages for span in CODE_SPAN.findall(page) if "/" in span and span.endswith(".py")]
    assert len(modules) > 50
    folders = (ROOT, ROOT / "headrace", ROOT / "headrace" / "segmentstore")
    assert [module for module in modules if not any((folder / module).exists() for folder in folders)] == []


def test_links_of_the_manual_exist():
    missing = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in sorted((ROOT / "docs").rglob("*.md"))
        for link in LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert missing == []


def test_named_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = [(ROOT / document).read_text() for document in (*GUIDES, NIGHTLY)]
    named = set(re.findall(r"`make (\w+)`", "".join(documents)))
    assert named
    assert named <= targets


def test_recipes_are_numbered_steps():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for recipe in RECIPES:
        steps = re.findall(r"^(\d+)\. ", text.partition(f"## {recipe}\n")[2].partition("\n## ")[0], re.MULTILINE)
        assert steps == [str(number) for number in range(1, len(steps) + 1)], recipe
        assert len(steps) > 3, recipe


def test_hosted_ci_calls_the_project_script():
    assert "run: .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert (ROOT / ".ci" / "run").exists()


def test_hooks_use_tools_of_the_lock_file():
    entries = re.findall(r"entry: (\S+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert entries
    assert all(entry.startswith(".venv/bin/") for entry in entries)


def test_changelog_has_the_released_version():
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert versions[0] == "Unreleased"
    assert version[1] in versions


def test_license_is_the_one_of_the_package():
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]
