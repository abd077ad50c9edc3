"""Which release may write which format, and the numbers in the table of formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import __version__
from headrace.codec import container_snapshots, log_objects, time_blocks
from headrace.metadata import record_layout
from headrace.metadata.fixed_settings import FINALIZED_FORMAT
from headrace.model import formats
from headrace.model.errors import IllegalStateError
from headrace.model.formats import (
    FIRST_RELEASE,
    FORMATS,
    RELEASE,
    check_may_write,
    check_release,
    formats_waiting,
    is_release,
    may_write,
    release_order,
)
from headrace.segmentstore.log.journal import journal_format, replica_identity

NUMBERS = {
    "journal file": journal_format.FILE_VERSION,
    "replica identity": replica_identity._VERSION,
    "log object": log_objects.LOG_OBJECT_VERSION,
    "container snapshot": container_snapshots.FORMAT_VERSION,
    "segment records of a snapshot": container_snapshots.FORMAT_VERSION_RECORDS,
    "time block": time_blocks._VERSION,
    "metadata record": record_layout.FORMAT,
    "setting that names the finalized release": FINALIZED_FORMAT,
}


def test_the_table_has_the_numbers_of_the_code():
    assert {each.name: each.number for each in FORMATS if each.number} == {
        name: str(number) for name, number in NUMBERS.items()
    }


def test_the_release_is_that_of_the_version_or_the_next():
    major, minor = map(int, __version__.split(".")[:2])
    assert release_order(RELEASE) in ((major, minor), (major, minor + 1))


def test_a_format_that_former_releases_cannot_read_is_gated():
    for each in FORMATS:
        assert release_order(each.readable_since) <= release_order(each.written_since) <= release_order(RELEASE)
        is_new_to_a_former_release = each.readable_since == each.written_since != FIRST_RELEASE
        assert each.is_gated == is_new_to_a_former_release, each.name


def test_a_gated_format_is_written_from_its_release_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(formats, "_GATED", {"later format": "0.10"})
    assert not may_write("later format", "0.9")
    assert may_write("later format", "0.10")
    assert may_write("later format", "1.0")
    assert formats_waiting("0.9") == ("later format",)
    with pytest.raises(IllegalStateError, match=r"need release 0\.10.*rolled back to 0\.9.*upgrade finalize") as error:
        check_may_write("later format", "0.9")
    assert error.value.specific_code == "upgrade_not_finalized"
    check_may_write("later format", "0.10")


def test_a_release_before_the_finalized_one_is_refused():
    major, minor = release_order(RELEASE)
    check_release(FIRST_RELEASE)
    check_release(RELEASE)
    with pytest.raises(IllegalStateError, match=r"finalized for release .*, .*deploy release") as error:
        check_release(f"{major}.{minor + 1}")
    assert error.value.specific_code == "release_too_old"


@pytest.mark.parametrize("text", ["", "0", "0.3.1", "0.3\n", "a.b", "0.12345", 3, None])
def test_other_texts_are_no_releases(text: object):
    assert not is_release(text)
    assert is_release("0.3")


def test_the_manual_has_the_table():
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating" / "upgrades.md").read_text()
    rows = [
        f"| {each.name} | {each.number or '-'} | {each.place} | {each.written_since} | {each.readable_since} | "
        f"{'yes' if each.is_gated else 'no'} |"
        for each in FORMATS
    ]
    assert page.endswith("\n".join(["|---|---|---|---|---|---|", *rows, ""]))
