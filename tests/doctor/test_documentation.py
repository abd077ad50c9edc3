"""The page of the documentation has each check, and each remedy leads to a part of a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.doctor.findings import CHECKS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_each_check_with_its_permission():
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (.+?) \| (.*?) ?\|$", (DOCS / "operating/doctor.md").read_text(), re.MULTILINE
    )
    expected = [(name, check.question, check.permission) for name, check in CHECKS.items()]
    assert [(name, question, permission.replace("`", "")) for name, question, permission in rows] == expected


@pytest.mark.parametrize("check", CHECKS)
def test_a_remedy_leads_to_a_part_of_a_page(check: str):
    page, _, part = CHECKS[check].page.partition("#")
    headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(), re.MULTILINE)
    assert part in {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
