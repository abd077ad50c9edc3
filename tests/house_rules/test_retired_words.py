"""No source file and no document uses a retired word."""

from __future__ import annotations

import pytest
from retired_words import EXCEPTIONS, RETIRED, ROOT, SCANNED, scan, scan_paths


@pytest.mark.parametrize("folder", SCANNED)
def test_a_folder_has_no_retired_word(folder: str):
    assert (ROOT / folder).exists()
    hits = scan_paths([folder])
    assert not hits, "\n" + "\n".join(map(str, hits))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The segment that nobody reads.", "nobody"),
        ("def give_up_scale() -> None:", "give up"),
        ("class EventPacker:", "Packer"),
        ("ROUND_MS = 5", "ROUND"),
        ("It lies in the table.", "lies"),
        ("A stop in good order.", "in good order"),
        ("A name that is no stream.", "is no"),
        ("Leaves slow connections alone.", "Leaves slow connections alone"),
    ],
)
def test_retired_word_is_found(text: str, word: str):
    assert [hit.word for hit in scan(text)] == [word]


@pytest.mark.parametrize(
    "text",
    [
        "There is no stream of this name.",
        "The segment is no longer in memory.",
        "a placeholder, a lifetime, an interface, a standard",
        "round(seconds, 3) and a round trip",
        *EXCEPTIONS,
    ],
)
def test_ordinary_use_is_not_found(text: str):
    assert list(scan(text)) == []


def test_place_and_standard_term_are_named():
    (found,) = scan("first\nThe writer begins anew.\n", "docs/using/python.md")
    assert str(found) == "docs/using/python.md:2: 'anew': write again"


def test_document_may_quote_names_of_the_code():
    text = "See `workflows/bury_message.py` and [evictions](0013-leave-memory.md)."
    assert list(scan(text, "docs/internals/README.md")) == []
    assert [hit.word for hit in scan(text, "headrace/x.py")] == ["leave memory", "bury"]


def test_each_exception_is_needed_and_has_a_reason():
    assert all(EXCEPTIONS.values())
    assert [text for text in EXCEPTIONS if not list(scan(text, exceptions=()))] == []


def test_no_word_is_retired_twice():
    patterns = [pattern for pattern, _ in RETIRED]
    assert len(set(patterns)) == len(patterns)
