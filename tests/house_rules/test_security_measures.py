"""The numbered security measures: each in the table of docs/operating/security.md has tests with its number."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| A(\d+) \|", re.MULTILINE)
TEST = re.compile(r"^ *(?:async )?def test_a(\d+)_", re.MULTILINE)


def test_each_measure_has_tests_with_its_number() -> None:
    listed = [int(number) for number in ROW.findall((ROOT / "docs/operating/security.md").read_text())]
    assert listed == list(range(1, max(listed) + 1))
    tested = {int(each) for path in (ROOT / "tests").rglob("test_*.py") for each in TEST.findall(path.read_text())}
    assert set(listed) <= tested, "higher numbers are of operations"
