"""The code blocks of the pages for users run, in their order, and print what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from guide_blocks import ROOT, USING, GuideError, blocks_of, pages
from guide_runner import GuideRunner

from headrace.client import Headrace, ScalingPolicy

pytestmark = pytest.mark.xdist_group("guides")

ELSEWHERE = {
    "testing.md": "tests/testing/test_plugin.py runs its example as a project",
}
"""Pages whose blocks other tests run."""
CREATES_SCOPE = "headrace scope create shop"
CREATES_ORDERS = re.compile(r'create_stream\(\s*"shop",\s*"orders"|stream create shop/orders|"streamName": "orders"')
NAVIGATION = re.search(r"^  - Guides:\n((?:      - .*\n)+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
PAGES = [page for page in pages() if page.name not in ELSEWHERE and "```" in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(USING)))
def test_blocks_of_a_page_run(page: Path, guide: GuideRunner, client: Headrace, scope: str):
    text = page.read_text()
    blocks = blocks_of(text)
    if CREATES_SCOPE not in text:
        client.admin.create_scope(scope)
    if not CREATES_ORDERS.search(text):
        client.admin.create_stream(scope, "orders", scaling=ScalingPolicy.fixed(2))
        with client.writer(scope, "orders") as writer:  # without an event, code for each range would not run
            writer.write(b"order 0", routing_key="anna").result()
    for block in blocks:
        if block.reason_not_run is None:
            printed = guide.run(block, str(page.relative_to(ROOT)))
            assert block.output is None or printed == block.output, f"{page.name}, line {block.line}"


@pytest.mark.usefixtures("guide")
def test_guides_run_one_after_the_other(stack: dict[str, Any], scope: str, tmp_path: Path):
    """As a reader would who follows the site's navigation on one stack: no page spoils or needs another one."""
    assert NAVIGATION is not None
    pages_in_order = [ROOT / line.rpartition(": ")[2] for line in NAVIGATION[1].splitlines()]
    assert len(pages_in_order) > 10
    for page in pages_in_order:
        reader = GuideRunner(stack["endpoints"]["http"], scope, tmp_path)
        for block in blocks_of(page.read_text()) if page.name not in ELSEWHERE else ():
            if block.reason_not_run is None:
                printed = reader.run(block, str(page.relative_to(ROOT)))
                assert block.output is None or printed == block.output, f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", sorted((USING / "guides").glob("*.md")), ids=lambda page: page.name)
def test_each_block_of_a_guide_by_task_is_run(page: Path):
    blocks = blocks_of(page.read_text())
    assert blocks
    assert [block.reason_not_run for block in blocks if block.reason_not_run] == []


def test_pages_that_other_tests_run_exist():
    assert set(ELSEWHERE) <= {page.name for page in pages()}
    for test in ELSEWHERE.values():
        assert (ROOT / test.split()[0]).exists()


def test_a_block_is_run_with_its_output_or_has_a_reason():
    shown = "```python\nprint(1)\n```\n\nIt prints:\n\n```text\n1\n```\n"
    page = shown + "\n<!-- not run: needs Spark -->\n```sh\nspark\n```\n"
    first, second = blocks_of(page)
    assert (first.language, first.text, first.line, first.output) == ("python", "print(1)\n", 2, "1\n")
    assert (second.language, second.reason_not_run, second.output) == ("sh", "needs Spark", None)


@pytest.mark.parametrize(
    "page",
    [
        "```json\n{}\n```\n",
        "```\nplain\n```\n",
        "```text\noutput of nothing\n```\n",
        "<!-- not run: because -->\n```sh\nx\n```\n\n```text\noutput of nothing\n```\n",
        "```sh\nx\n```\n\n```text\n1\n```\n\n```text\n2\n```\n",
    ],
)
def test_a_block_that_is_not_run_needs_a_reason(page: str):
    with pytest.raises(GuideError):
        blocks_of(page)


def test_a_wrong_output_and_an_error_are_found(guide: GuideRunner):
    (block,) = blocks_of('```python\nprint("shop")\n```\n\n```text\nshops\n```\n')
    assert guide.run(block, "page") == "shop\n" != block.output
    (fails,) = blocks_of("```sh\nheadrace stream get shop/missing\n```\n")
    with pytest.raises(AssertionError, match="missing"):
        guide.run(fails, "page")
