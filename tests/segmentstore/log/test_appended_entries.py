"""Entries of one log from the caller to its members: encoded, numbered and released in their order."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from crc32c import crc32c

from headrace.codec.log_record_header import Codec, RecordHeader, RecordKind
from headrace.model.errors import FencedError, HeadraceError
from headrace.segmentstore.log.appended_entries import (
    COMPRESSED_BYTES_MIN,
    INLINE_BYTES_MAX,
    SAMPLE_EVERY,
    AppendedEntries,
    EncodedEntry,
    EntryEncoder,
    LocalThreads,
    SentEntry,
    plain,
)
from headrace.segmentstore.log.journal.entry_runs import EntryPart, EntryPiece, HeldBytes
from headrace.segmentstore.log.journal.journal_commits import JOINED_PART_BYTES_MAX

pytestmark = pytest.mark.anyio

TEXT = b"text " * 2_000
NOISE = Random(3).randbytes(INLINE_BYTES_MAX)
ERROR = FencedError("another owner")


class Held(LocalThreads):
    """Threads whose work is done as soon as a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    async def run(self, call: Callable[[], Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((call, future))
        return await future

    async def work(self) -> None:
        """Do the oldest work that waits."""
        call, future = self.waiting.pop(0)
        future.set_result(call())
        await asyncio.sleep(0)


class Log:
    """The entries of one log; `events` has what callers and members heard, in order."""

    def __init__(self, *, compresses: bool = False) -> None:
        self.threads, self.events = Held(), list[object]()
        self.tasks: list[asyncio.Task[None]] = []
        self.now_s = 10.0
        self.numbered = 0
        self.appended = AppendedEntries(
            EntryEncoder(compresses=compresses), self._number, self._send, self._run, self.threads, lambda: self.now_s
        )

    def _number(self, encoded: EncodedEntry) -> RecordHeader:
        self.numbered += 1
        return RecordHeader(
            RecordKind.ENTRY, 3, 1, 1, self.numbered - 1, 0, 0, encoded.length, encoded.checksum, encoded.codec
        )

    def _send(self, sent: SentEntry) -> None:
        self.events.append(("sent", sent.header.entry))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def append(self, name: str, *parts: bytes) -> None:
        def done(error: HeadraceError | Exception | None) -> None:
            self.events.append((name, error))

        self.appended.append(parts, sum(map(len, parts)), done, lambda: self.events.append((name, "released")))

    def take(self) -> list[object]:
        events, self.events = self.events, []
        return events


# Encoding


@pytest.mark.parametrize(("length", "wants"), [(COMPRESSED_BYTES_MIN - 1, False), (COMPRESSED_BYTES_MIN, True)])
def test_small_entries_are_not_compressed(length: int, wants: bool):
    assert EntryEncoder(compresses=True).wants_compression(length) is wants
    assert not EntryEncoder(compresses=False).wants_compression(length)


def test_one_entry_in_many_is_a_sample_if_compression_pays_not():
    encoder = EntryEncoder(compresses=True)
    encoder.wants_compression(1)  # small ones do not count
    samples = [encoder.wants_compression(COMPRESSED_BYTES_MIN) for _ in range(2 * SAMPLE_EVERY + 1)]
    assert [number for number, is_sample in enumerate(samples) if is_sample] == [0, SAMPLE_EVERY, 2 * SAMPLE_EVERY]


def test_a_sample_decides_for_those_after_it():
    encoder = EntryEncoder(compresses=True)
    encoded = encoder.compressed([TEXT[:5], TEXT[5:]], len(TEXT))
    assert (encoded.codec, encoded.is_copy, encoded.length) == (Codec.ZSTD, True, len(encoded.parts[0]))
    assert encoded.checksum == crc32c(encoded.parts[0])
    assert encoder.wants_compression(COMPRESSED_BYTES_MIN)
    assert encoder.wants_compression(COMPRESSED_BYTES_MIN)
    assert encoder.compressed([NOISE], len(NOISE)) == plain([NOISE], len(NOISE))
    assert not encoder.wants_compression(COMPRESSED_BYTES_MIN)


@pytest.mark.parametrize("spare", [0, 1])
def test_small_parts_are_joined_and_large_ones_are_kept(spare: int):
    parts = [bytes([1]) * JOINED_PART_BYTES_MAX, bytes([2]) * (JOINED_PART_BYTES_MAX - spare)]
    joined = b"".join(parts)
    encoded = plain(parts, len(joined))
    assert encoded == EncodedEntry(
        (joined,) if spare else tuple(parts), len(joined), crc32c(joined), Codec.PLAIN, bool(spare)
    )


# Order


async def test_entries_behind_a_large_one_wait_for_their_numbers():
    log = Log(compresses=True)
    log.appended._encoder.compressed([TEXT], len(TEXT))  # it pays
    log.append("large", TEXT * 20)
    log.append("small", b"x")
    log.append("second large", TEXT * 20)
    log.append("last", b"y")
    await asyncio.sleep(0)
    assert (log.appended.unnumbered, log.take(), len(log.tasks)) == (4, [], 1)
    await log.threads.work()
    assert log.take() == [("large", "released"), ("sent", 0), ("small", "released"), ("sent", 1)]
    assert log.appended.unnumbered == 2
    await log.threads.work()
    assert log.take() == [("second large", "released"), ("sent", 2), ("last", "released"), ("sent", 3)]
    assert (log.appended.unnumbered, log.threads.waiting) == (0, [])
    log.append("next", b"z")
    assert log.take() == [("next", "released"), ("sent", 4)]


@pytest.mark.parametrize(("length", "waits"), [(INLINE_BYTES_MAX, False), (INLINE_BYTES_MAX + 1, True)])
async def test_only_large_entries_are_encoded_in_a_thread(length: int, waits: bool):
    log = Log(compresses=True)
    log.append("one", bytes(length))
    await asyncio.sleep(0)
    assert (log.appended.unnumbered, len(log.threads.waiting)) == ((1, 1) if waits else (0, 0))


async def test_large_entries_stay_in_order_if_nothing_is_compressed():
    log = Log()
    log.append("large", bytes(INLINE_BYTES_MAX + 1))
    assert log.take() == [("sent", 0)]
    assert log.appended.unnumbered == 0


async def test_failed_log_numbers_no_entry_encoded_meanwhile():
    log = Log(compresses=True)
    log.append("large", TEXT * 20)
    log.append("small", b"x")
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(log.appended.all_released())
    await asyncio.sleep(0)
    log.appended.fail(ERROR)
    assert log.take() == [("large", "released"), ("large", ERROR), ("small", "released"), ("small", ERROR)]
    await waiting
    await log.threads.work()
    assert (log.take(), log.numbered) == ([], 0)
    assert log.tasks[0].exception() is None


# Acknowledgements


async def test_callers_hear_of_acknowledged_entries_in_order():
    log = Log()
    for name in "abc":
        log.append(name, b"x")
    log.take()
    log.now_s = 12.5
    assert log.appended.acknowledged(1) == 2.5
    assert log.take() == [], "nothing is told in the middle of other work"
    log.appended.report()
    assert log.take() == [("a", None), ("b", None)]
    assert log.appended.acknowledged(1) is None, "no caller waits for these any more"
    assert log.appended.acknowledged(2) == 2.5
    log.appended.report()
    assert log.take() == [("c", None)]
    assert log.appended.acknowledged(2) is None


async def test_reports_do_not_begin_in_each_other():
    log, order = Log(), list[object]()

    def done(name: str) -> Callable[[Exception | None], None]:
        def tell(_error: Exception | None) -> None:
            order.append(f"{name} begins")
            log.appended.report()
            order.append(f"{name} ends")

        return tell

    for name in "ab":
        log.appended.append([b"x"], 1, done(name), None)
    log.appended.acknowledged(1)
    log.appended.report()
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_report_ends_when_a_caller_ends_the_log():
    log = Log()
    log.appended.append([b"x"], 1, lambda _error: log.appended.fail(ERROR), None)
    log.append("b", b"x")
    log.take()
    log.appended.acknowledged(1)
    log.appended.report()
    assert log.take() == [("b", ERROR)]
    log.appended.report()
    assert log.take() == []


# Memory


def large_parts() -> Sequence[bytes]:
    return [bytes(JOINED_PART_BYTES_MAX), bytes(JOINED_PART_BYTES_MAX)]


async def test_memory_is_released_up_to_what_the_journal_has():
    log = Log()
    for name in "abc":
        log.append(name, *large_parts())
    assert log.take() == [("sent", 0), ("sent", 1), ("sent", 2)]
    assert log.appended.sent(1).header.entry == 1
    waiting = asyncio.ensure_future(log.appended.all_released())
    await asyncio.sleep(0)
    log.appended.release(1)
    await asyncio.sleep(0)
    assert (log.take(), waiting.done()) == ([("a", "released"), ("b", "released")], False)
    log.appended.release(2)
    await waiting
    assert log.take() == [("c", "released")]
    await log.appended.all_released()


async def test_entries_that_wait_for_their_encoding_are_not_released():
    log = Log(compresses=True)
    log.append("small", b"x")
    log.append("waits", TEXT * 20)
    await asyncio.sleep(0)
    log.appended.release(0)
    waiting = asyncio.ensure_future(log.appended.all_released())
    await asyncio.sleep(0)
    log.appended.release(0)
    await asyncio.sleep(0)
    assert (log.appended.unnumbered, waiting.done()) == (1, False)
    await log.threads.work()
    log.appended.release(1)
    await waiting


async def test_waiters_end_with_the_log():
    log = Log()
    log.append("a", *large_parts())
    waiting, gone = (asyncio.ensure_future(log.appended.all_released()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    log.appended.fail(ERROR)
    await asyncio.sleep(0)
    assert not waiting.done(), "the own journal may still read it"
    log.appended.release_all()
    await waiting
    assert log.take()[1:] == [("a", ERROR), ("a", "released")]


# Bytes that are held

MARK = 1 << 20


def test_truncation_keeps_the_bytes_behind_each_mark():
    held = HeldBytes()
    for entry in range(10, 20):
        held.count(entry, MARK)
    held.truncate(13)
    assert held.total == 7 * MARK
    assert [held.behind(entry) for entry in (12, 13, 18, 19)] == [7 * MARK, 6 * MARK, MARK, MARK]
    held.truncate(15)
    assert (held.total, held.behind(15)) == (5 * MARK, 4 * MARK)
    held.truncate(30)
    assert held.total == 0
    held.count(30, 5)
    assert (held.total, held.behind(29)) == (5, 5)


def test_marks_are_a_megabyte_apart():
    held = HeldBytes()
    for entry in range(100):
        held.count(entry, MARK // 10)
    assert [entry for entry, _ in held._bytes_before] == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]


def test_entries_of_the_journal_count_with_their_headers():
    lengths = array("I", [1 << 14] * 300)
    piece = EntryPiece(cast("Any", SimpleNamespace(layout=SimpleNamespace(header_bytes=80))), 40)
    piece.lengths = lengths
    held = HeldBytes()
    held.count_parts([EntryPart(1, piece, 40, 340)])
    assert held.total == 300 * ((1 << 14) + 80)
    assert held._bytes_before == [(40, 0), (296, 256 * ((1 << 14) + 80))]
