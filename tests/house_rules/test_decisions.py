"""Decision records: each has its own number (a gap is reserved) and the parts of the template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DECISIONS = sorted((Path(__file__).resolve().parents[2] / "docs" / "decisions").glob("*.md"))
PARTS = ["Context", "Decision", "Alternatives considered", "Consequences"]
STATUS = re.compile(r"^- Status: (Proposed|Accepted|Superseded by \[\d{4}\]\([\w.-]+\))$", re.MULTILINE)
DATE = re.compile(r"^- Date: \d{4}-\d{2}-\d{2}$", re.MULTILINE)
WORDS_MAX = 950
"""About a page and a half. A record with more has two decisions, or measurements that belong to the benchmarks."""
FIRST_UNCONVERTED = 46
"""Records from this number on may still have the older form, with the paragraphs Decision and Why."""


def _number(path: Path) -> int:
    return int(path.name[:4])


def _is_older_form(path: Path) -> bool:
    text = path.read_text()
    return _number(path) >= FIRST_UNCONVERTED and "**Decision.**" in text and "**Why.**" in text


def test_no_number_is_used_twice():
    numbers = [_number(path) for path in DECISIONS]
    assert numbers[0] == 1
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_record_has_the_parts_of_the_template(path: Path):
    text = path.read_text()
    assert text.startswith(f"# {path.name[:4]}: "), "the title begins with the number"
    if _is_older_form(path):
        return
    assert STATUS.search(text), "the status is Proposed, Accepted, or Superseded with a link"
    assert DATE.search(text), "the date is written as YYYY-MM-DD"
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    assert parts[::2] == PARTS
    assert all(part.strip() for part in parts[1::2]), "no part is empty"


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_record_fits_on_a_page(path: Path):
    assert _is_older_form(path) or len(path.read_text().split()) <= WORDS_MAX
