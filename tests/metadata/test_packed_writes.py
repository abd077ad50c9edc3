"""Writes of transactions are packed into as few pieces as their limits allow, and no transaction is split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.transaction_records import packed
from headrace.ports.metadata_store import Delete, Key, Write


def _groups(*sizes: int) -> list[list[Write]]:
    return [[Delete(Key(str(group), str(number)), None) for number in range(size)] for group, size in enumerate(sizes)]


def _sizes(pieces: list[list[Write]]) -> list[int]:
    return [len(piece) for piece in pieces]


def test_two_hundred_completions_take_seven_pieces():
    assert _sizes(packed(_groups(*[3] * 200), 100, 95)) == [99, 99, 99, 99, 99, 12, 93]


def test_what_fits_is_one_piece():
    assert _sizes(packed(_groups(3, 4), 100, 97)) == [7]


def test_the_last_piece_is_empty_if_it_has_no_room():
    assert _sizes(packed(_groups(3), 100, 2)) == [3, 0]


@given(st.lists(st.integers(1, 4), max_size=60), st.integers(4, 20), st.integers(0, 20))
def test_pieces_hold_all_writes_in_their_order(sizes: list[int], room: int, room_in_last: int):
    groups = _groups(*sizes)
    *earlier, last = packed(groups, room, room_in_last)
    assert [write for piece in (*earlier, last) for write in piece] == [write for group in groups for write in group]
    assert all(0 < len(piece) <= room for piece in earlier)
    assert len(last) <= room_in_last
    for piece in (*earlier, last):
        for number in {write.key.partition for write in piece}:
            assert sum(write.key.partition == number for write in piece) == sizes[int(number)]
