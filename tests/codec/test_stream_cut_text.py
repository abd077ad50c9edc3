"""The text form of stream cuts: what Pravega writes is read, what is written Pravega can read, junk is refused."""

from __future__ import annotations

import base64
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.codec.stream_cut_text import parse_stream_cut_text, stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import STREAM_CUT_PLAIN_BYTES_MAX, STREAM_CUT_TEXT_CHARACTERS_MAX
from headrace.model.segments import segment_id
from headrace.model.stream_cuts import StreamCut

OFFSETS = st.dictionaries(
    st.builds(segment_id, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    st.integers(-1, 2**63 - 1),
    min_size=1,
    max_size=50,
)
GOLDEN = StreamCut.of("scope", "stream", {0: 17, segment_id(1, 3): 5, 1: 9_000_000_000})
GOLDEN_PLAIN = b"0:scope/stream:0,1,3:0,0,1:17,9000000000,5"


def _text(plain: bytes) -> str:
    return base64.b64encode(gzip.compress(plain, mtime=0)).decode()


def test_golden_plain_text():
    assert gzip.decompress(base64.b64decode(stream_cut_text(GOLDEN))) == GOLDEN_PLAIN


def test_the_text_names_no_time_and_no_system():
    assert base64.b64decode(stream_cut_text(GOLDEN))[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\0"


@given(offsets=OFFSETS)
def test_cuts_come_back(offsets: dict[int, int]):
    cut = StreamCut.of("my-scope", "my.stream", offsets)
    assert parse_stream_cut_text(stream_cut_text(cut)) == cut
    assert stream_cut_text(cut) == stream_cut_text(StreamCut.of("my-scope", "my.stream", dict(cut.positions[::-1])))


def test_text_of_other_writers_is_read():
    assert parse_stream_cut_text(_text(GOLDEN_PLAIN)) == GOLDEN
    assert parse_stream_cut_text(_text(b"0:scope/stream:3,0,1:1,0,0:5,17,9000000000")) == GOLDEN


def test_the_largest_cut_fits():
    offsets = {segment_id(2**31 - 1 - index, 2**31 - 1 - 7919 * index): 2**63 - 1 - index**5 for index in range(1000)}
    cut = StreamCut.of("s" * 255, "t" * 250, offsets)
    assert parse_stream_cut_text(stream_cut_text(cut)) == cut


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"0",
        b"1:s/t:0:0:0",
        b"0:s/t:0:0",
        b"0:s/t:0:0:0:0",
        b"0:st:0:0:0",
        b"0:s/t/u:0:0:0",
        b"0:s/t:::",
        b"0:s/t:0,1:0,0:5",
        b"0:s/t:0:0:x",
        b"0:s/t:0:0:-5",
        b"0:s/t:0:-1:0",
        b"0:s/t:-1:0:0",
        b"0:s/t:0:0:- 1",
        b"0:s/t:0:0: 5",
        b"0:s/t:0,0:0,0:1,1",
        b"0:s/t:2147483648:0:1",
        b"0:s/t:0:0:" + b"9" * 20,
        "0:s/t:0:0:٣".encode(),
        b"\xff",
    ],
)
def test_plain_text_that_says_nothing_is_refused(plain: bytes):
    with pytest.raises(InvalidRequestError) as refused:
        parse_stream_cut_text(_text(plain))
    assert refused.value.specific_code == "invalid_stream_cut"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "abc",
        base64.b64encode(b"no gzip").decode(),
        base64.b64encode(gzip.compress(GOLDEN_PLAIN, mtime=0)[:-3]).decode(),
        base64.b64encode(gzip.compress(GOLDEN_PLAIN, mtime=0) + b"more").decode(),
        base64.b64encode(gzip.compress(GOLDEN_PLAIN, mtime=0) * 2).decode(),
        "A" * (STREAM_CUT_TEXT_CHARACTERS_MAX + 4),
        _text(b"0" * (STREAM_CUT_PLAIN_BYTES_MAX + 1)),
        "ä",
    ],
    ids=[
        "nothing",
        "no base64",
        "cut base64",
        "no gzip",
        "cut gzip",
        "gzip and more",
        "two gzips",
        "too long",
        "a bomb",
        "no ascii",
    ],
)
def test_text_that_is_not_a_cut_is_refused(text: str):
    with pytest.raises(InvalidRequestError) as refused:
        parse_stream_cut_text(text)
    assert refused.value.specific_code == "invalid_stream_cut"


@given(packed=st.binary(max_size=200))
def test_random_bytes_are_refused(packed: bytes):
    """What is not one of ours is refused with the one error that callers expect, and no other."""
    with pytest.raises(InvalidRequestError) as refused:
        parse_stream_cut_text(base64.b64encode(packed).decode())
    assert refused.value.specific_code == "invalid_stream_cut"
