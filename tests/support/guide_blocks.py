"""The code blocks of the user's guides: which of them a test runs, and what they are to print.

A page's blocks of Python and of `sh` are run in their order. A block of `text` that follows one of them is what that
one prints. An HTML comment in the line before a block says that it is not run, and why: `<!-- not run: the reason -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
USING = ROOT / "docs" / "using"
RUN = ("python", "sh")
OUTPUT = "text"

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n\s*)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class GuideError(Exception):
    """A page has a block that is neither run nor marked, or that nothing can print."""


@dataclass(frozen=True)
class Block:
    """A code block of a page. `output` is what it is to print, None if the page does not say."""

    language: str
    text: str
    line: int
    output: str | None = None
    reason_not_run: str | None = None


def pages() -> list[Path]:
    """All pages for users."""
    return sorted(USING.rglob("*.md"))


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page, those that are not run with their reasons.

    Raises:
        GuideError: a block has no language that can be run and no reason, or output follows no block that is run.
    """
    blocks: list[Block] = []
    for found in _BLOCK.finditer(text):
        language, content, reason = found["language"], found["text"], found["reason"]
        line = text.count("\n", 0, found.start("text")) + 1
        if reason is None and language == OUTPUT:
            if not blocks or blocks[-1].reason_not_run is not None or blocks[-1].output is not None:
                raise GuideError(f"line {line}: no block that is run prints this")
            previous = blocks.pop()
            blocks.append(Block(previous.language, previous.text, previous.line, content))
            continue
        if reason is None and language not in RUN:
            raise GuideError(f"line {line}: a block of {language or 'no language'} is not run: mark it with the reason")
        blocks.append(Block(language, content, line, reason_not_run=reason))
    return blocks
