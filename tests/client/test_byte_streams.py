"""Byte streams over everything real but AWS."""

from __future__ import annotations

import csv
import gzip
import io
import os
import random
import threading
from typing import Any, cast

import pytest
from real_cluster import RealCluster

from headrace.client import (
    AsyncHeadrace,
    ByteReader,
    ByteStream,
    ConflictError,
    Headrace,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    ScalingPolicy,
    SealedError,
    TruncatedError,
)
from headrace.client.reading.segment_reads import SegmentReads

MIB = 1024 * 1024


@pytest.fixture
def video(headrace: Headrace) -> ByteStream:
    """An empty byte stream."""
    headrace.admin.create_stream("shop", "video", scaling=ScalingPolicy.fixed(1))
    return headrace.byte_stream("shop", "video")


def read_exactly(reader: ByteReader, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = reader.read(count - len(found))
        assert data, f"the stream ends after {len(found)} of {count} bytes"
        found += data
    return bytes(found)


def stored(stream: ByteStream) -> bytes:
    """All bytes from the head to the tail as it is now."""
    with stream.reader() as reader:
        return read_exactly(reader, reader.available())


def test_bytes_come_back_as_they_were_written(video: ByteStream) -> None:
    with video.writer() as writer:
        assert writer.write(b"one") == 3
        assert writer.write(bytearray(b"")) == 0
        assert writer.write(memoryview(b"-two-")) == 5
        writer.flush()
        assert writer.tail_offset() == video.tail_offset() == 8
    assert (video.head_offset(), video.tail_offset()) == (0, 8)
    assert stored(video) == b"one-two-"


def test_bytes_have_no_frames_in_the_segment(video: ByteStream, headrace: Headrace) -> None:
    with video.writer() as writer:
        writer.write(b"raw")
    with SegmentReads(headrace.admin, "shop", "video") as reads:
        assert b"".join(reads.read(0, 0, 3)) == b"raw"
    assert headrace.admin.stream_cut("shop", "video", at="latest").offsets == {0: 3}


def test_written_bytes_may_be_changed_after_the_call(video: ByteStream) -> None:
    data = bytearray(b"before")
    with video.writer() as writer:
        writer.write(data)
        data[:] = b"after!"
    assert stored(video) == b"before"


def test_large_writes_through_a_small_buffer(video: ByteStream) -> None:
    data = random.Random(1).randbytes(64 * MIB)
    with video.writer(buffer_bytes=3 * MIB + 5) as writer:
        assert writer.write(data) == len(data)
        writer.write(b"end")
    assert stored(video) == data + b"end"


def test_buffered_bytes_are_bounded(video: ByteStream, real: RealCluster) -> None:
    writer = video.writer(buffer_bytes=1000)
    real.kill_store()
    waiting = threading.Thread(target=writer.write, args=(bytes(5000),))
    waiting.start()
    while not writer._accumulator._buffered_bytes:
        pass
    assert (writer._accumulator._buffered_bytes, waiting.is_alive()) == (1000, True)
    real.start_store()
    waiting.join()
    writer.close()
    assert stored(video) == bytes(5000)


def test_many_small_writes_take_their_bytes_of_memory(video: ByteStream) -> None:
    with video.writer() as writer:
        for number in range(5000):
            writer.write(b"%d," % number)
            for block in (*writer._core._appender.queue.ready, writer._core._appender.queue.open):
                assert len(block.parts) <= 1
    assert stored(video) == b"".join(b"%d," % number for number in range(5000))


def test_file_methods_of_a_reader(video: ByteStream) -> None:
    with video.writer() as writer:
        writer.write(b"0123456789")
    with video.reader() as reader:
        assert (reader.read(3), reader.tell()) == (b"012", 3)
        assert reader.read(0) == b""
        assert (reader.seek(1), reader.read(2)) == (1, b"12")
        assert (reader.seek(2, os.SEEK_CUR), reader.read(1)) == (5, b"5")
        assert (reader.seek(-2, os.SEEK_END), reader.available(), reader.read(5)) == (8, 2, b"89")
        buffer = bytearray(4)
        assert (reader.seek(5), reader.readinto(memoryview(buffer)[1:])) == (5, 3)
        assert buffer == b"\x00567"
        assert (reader.head_offset(), reader.tail_offset(), reader.available()) == (0, 10, 2)
        assert (reader.readable(), reader.seekable(), reader.writable()) == (True, True, False)
        for offset, whence in ((-1, os.SEEK_SET), (-9, os.SEEK_CUR), (-11, os.SEEK_END), (0, 7)):
            with pytest.raises(InvalidRequestError):
                reader.seek(offset, whence)
        assert reader.tell() == 8
        with pytest.raises(InvalidRequestError):
            reader.readinto(cast(Any, b"read-only"))
    with pytest.raises(IllegalStateError):
        reader.read(1)


@pytest.mark.parametrize(("start", "found"), [("earliest", b"0123"), (2, b"23"), ("latest", b"")])
def test_starts_of_a_reader(video: ByteStream, start: Any, found: bytes) -> None:
    with video.writer() as writer:
        writer.write(b"0123")
        writer.close_and_seal()
    with video.reader(start) as reader:
        assert reader.read() == found


def test_classes_of_io_read_and_write_byte_streams(video: ByteStream, headrace: Headrace) -> None:
    rows = [["tea", "1"], ["nut", "2"]] * 1000
    with (
        io.BufferedWriter(cast(Any, video.writer())) as file,
        gzip.open(file, "wt", newline="") as packed,
    ):
        csv.writer(packed).writerows(rows)
    headrace.admin.seal_stream("shop", "video")
    with (
        io.BufferedReader(cast(Any, video.reader())) as source,
        gzip.open(source, "rt", newline="") as unpacked,
    ):
        assert list(csv.reader(unpacked)) == rows


def test_reader_at_the_tail_waits_for_bytes(video: ByteStream) -> None:
    pieces: list[bytes] = []
    with video.reader("latest") as reader, video.writer() as writer:
        waiting = threading.Thread(target=lambda: pieces.append(reader.read()))
        waiting.start()
        for number in range(10):
            writer.write(bytes([number]) * number)
            writer.flush()
        writer.close_and_seal()
        waiting.join()
    assert pieces == [b"".join(bytes([number]) * number for number in range(10))]


def test_reader_after_the_tail_waits_for_its_byte(video: ByteStream) -> None:
    with video.reader(5) as reader, video.writer() as writer:
        pieces: list[bytes] = []
        waiting = threading.Thread(target=lambda: pieces.append(reader.read(3)))
        waiting.start()
        for data in (b"01", b"234", b"567"):
            writer.write(data)
            writer.flush()
        waiting.join()
        assert pieces == [b"567"]
        assert (reader.seek(100), reader.available()) == (100, 0)


def test_end_of_a_sealed_stream(video: ByteStream, headrace: Headrace) -> None:
    open_writer, late = video.writer(), video.writer()
    open_writer.write(b"last")
    open_writer.close_and_seal()
    assert open_writer.closed
    with video.reader() as reader:
        assert reader.read() == b"last"
        assert reader.read(1) == b""
        assert (reader.seek(99), reader.read(1), reader.read()) == (99, b"", b"")
        assert (reader.seek(1), reader.read(9)) == (1, b"ast")
    late.write(b"too late")
    with pytest.raises(SealedError):
        late.flush()
    with pytest.raises(SealedError):
        late.write(b"again")
    with pytest.raises(SealedError):
        late.close()
    with pytest.raises(SealedError):
        video.writer()
    assert stored(headrace.byte_stream("shop", "video")) == b"last"
    headrace.admin.delete_stream("shop", "video")


def test_sealing_a_sealed_stream(video: ByteStream, headrace: Headrace) -> None:
    with video.writer() as writer:
        writer.write(b"all")
        writer.flush()
        headrace.admin.seal_stream("shop", "video")
        writer.close_and_seal()
    assert stored(video) == b"all"


def test_truncated_bytes(video: ByteStream) -> None:
    with video.writer() as writer, video.reader() as reader:
        writer.write(bytes(range(200)))
        writer.flush()
        writer.truncate_data_before(50)
        video.truncate_data_before(20)  # what is removed stays removed
        assert (video.head_offset(), reader.head_offset(), reader.available()) == (50, 50, 150)
        with pytest.raises(TruncatedError, match="seek to 50") as truncated:
            reader.read(1)
        assert truncated.value.details == {"offset": 0, "start_offset": 50}
        assert reader.seek(truncated.value.details["start_offset"]) == 50
        assert read_exactly(reader, 150) == bytes(range(50, 200))
        for offset in (-1, 201):
            with pytest.raises(InvalidRequestError, match="no such offset"):
                writer.truncate_data_before(offset)
        video.truncate_data_before(200)
        assert (video.head_offset(), video.tail_offset()) == (200, 200)
    with video.reader("earliest") as reader:
        assert reader.tell() == 200


def test_writer_that_expects_the_tail(video: ByteStream) -> None:
    data = random.Random(2).randbytes(10 * MIB)
    with video.writer(expected_offset=0) as writer:
        writer.write(data)
        writer.flush()
        writer.write(b"more")
    with video.writer(expected_offset=len(data) + 4) as writer:
        writer.write(b"!")
    assert stored(video) == data + b"more!"


def test_writer_that_expects_another_offset(video: ByteStream) -> None:
    with video.writer() as writer:
        writer.write(b"0123456789")
    for offset in (0, 9, 11):
        with pytest.raises(ConflictError) as refused:
            video.writer(expected_offset=offset)
        assert refused.value.specific_code == "not_at_expected_offset"
        assert refused.value.details == {"expected_offset": offset, "tail_offset": 10}
    with pytest.raises(InvalidRequestError):
        video.writer(expected_offset=-1)


@pytest.mark.parametrize("others", [b"x", b"mine"])
def test_writer_that_another_one_overtakes(video: ByteStream, others: bytes) -> None:
    """Also if the other bytes are as many, so that the second of the refused writes would find its offset."""
    mine, other = video.writer(expected_offset=0), video.writer(expected_offset=0)
    mine.write(b"first")
    mine.flush()
    other.write(b"late")
    with pytest.raises(ConflictError) as refused:
        other.close()
    assert refused.value.specific_code == "not_at_expected_offset"
    with video.writer() as third:
        third.write(others)
    mine.write(b"mine")
    mine.write(b"next")
    with pytest.raises(ConflictError):
        mine.close()
    with pytest.raises(HeadraceError):
        mine.write(b"more")
    assert stored(video) == b"first" + others


def test_one_of_many_expecting_writers_wins_each_turn(video: ByteStream, headrace: Headrace) -> None:
    """Each thread appends its records at the tail that it saw, and begins again when another was faster."""
    lost = []

    def append(name: int) -> None:
        stream = headrace.byte_stream("shop", "video")
        for number in range(10):
            record = b"%d:%02d;" % (name, number) * 100
            while True:
                try:
                    with stream.writer(expected_offset=stream.tail_offset()) as writer:
                        writer.write(record)
                    break
                except ConflictError:
                    lost.append(name)

    threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = stored(video)
    records = [data[start : start + 500] for start in range(0, len(data), 500)]
    assert all(record == record[:5] * 100 for record in records)
    assert sorted(record[:5] for record in records) == sorted(
        b"%d:%02d;" % (name, number) for name in range(4) for number in range(10)
    )


def test_asynchronous_writer_and_reader(video: ByteStream, headrace: Headrace) -> None:
    async def use(client: AsyncHeadrace) -> bytes:
        async with await client.byte_stream("shop", "video") as stream:
            async with await stream.writer(buffer_bytes=1000) as writer:
                assert await writer.write(bytes(10_000)) == 10_000
                await writer.flush()
                await writer.close_and_seal()
            async with await stream.reader(5) as reader:
                assert (await reader.read(5), await reader.tell()) == (bytes(5), 10)
                return await reader.read()

    assert headrace._thread.run(use(headrace._core)) == bytes(9_990)


def test_writes_of_two_threads_are_not_mixed(video: ByteStream) -> None:
    with video.writer(buffer_bytes=100) as writer:
        threads = [threading.Thread(target=writer.write, args=(name * 5000,)) for name in (b"a", b"b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stored(video) in (b"a" * 5000 + b"b" * 5000, b"b" * 5000 + b"a" * 5000)


def test_streams_that_are_refused(headrace: Headrace, video: ByteStream) -> None:
    headrace.admin.create_stream("shop", "wide", scaling=ScalingPolicy.fixed(2))
    with pytest.raises(InvalidRequestError, match="has 2 segments") as wide:
        headrace.byte_stream("shop", "wide")
    assert wide.value.specific_code == "not_one_segment"
    with pytest.raises(NotFoundError):
        headrace.byte_stream("shop", "nowhere")
    with pytest.raises(InvalidRequestError):
        video.reader(-1)
    with pytest.raises(InvalidRequestError):
        video.writer(buffer_bytes=0)
    with video.writer() as writer:
        for data in ("text", 5, memoryview(b"0123")[::2]):
            with pytest.raises(InvalidRequestError):
                writer.write(cast(Any, data))


def test_deleted_byte_stream(video: ByteStream, headrace: Headrace) -> None:
    reader, writer = video.reader(), video.writer()
    headrace.admin.seal_stream("shop", "video")
    headrace.admin.delete_stream("shop", "video")
    with pytest.raises(NotFoundError, match="was deleted"):
        reader.read(1)
    with pytest.raises(NotFoundError, match="was deleted"):
        video.tail_offset()
    writer.write(b"lost")
    for end in (writer.flush, writer.close):
        with pytest.raises(NotFoundError):
            end()


def test_closing_the_stream_closes_what_it_opened(video: ByteStream, headrace: Headrace) -> None:
    reader, writer = video.reader(), video.writer()
    writer.write(b"flushed")
    video.close()
    video.close()
    assert (reader.closed, writer.closed, video.closed) == (True, True, True)
    with pytest.raises(HeadraceError):
        writer.write(b"more")
    for open_again in (video.reader, video.writer):
        with pytest.raises(IllegalStateError):
            open_again()
    assert stored(headrace.byte_stream("shop", "video")) == b"flushed"


def test_closed_reader_wakes_a_call_that_waits(video: ByteStream) -> None:
    reader = video.reader("latest")
    raised: list[BaseException] = []

    def read() -> None:
        try:
            reader.read(1)
        except HeadraceError as error:
            raised.append(error)

    waiting = threading.Thread(target=read)
    waiting.start()
    while not reader._core._reading.locked():
        pass
    reader.close()
    waiting.join()
    assert [type(error) for error in raised] == [IllegalStateError]
