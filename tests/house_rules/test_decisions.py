"""Decision records are numbered without gaps or twins, and each says what was decided and why."""

from __future__ import annotations

from pathlib import Path

DECISIONS = sorted((Path(__file__).resolve().parents[2] / "docs" / "decisions").glob("*.md"))


def test_numbers_run_from_one_without_gaps():
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


def test_each_says_what_and_why():
    for path in DECISIONS:
        text = path.read_text()
        assert "**Decision.**" in text, path.name
        assert "**Why.**" in text, path.name
