"""Decision records: no number is used twice (a gap is spoken for), and each says what was decided and why."""

from __future__ import annotations

from pathlib import Path

DECISIONS = sorted((Path(__file__).resolve().parents[2] / "docs" / "decisions").glob("*.md"))


def test_no_number_is_used_twice():
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers[0] == 1
    assert len(set(numbers)) == len(numbers)


def test_each_says_what_and_why():
    for path in DECISIONS:
        text = path.read_text()
        assert "**Decision.**" in text, path.name
        assert "**Why.**" in text, path.name
