"""What the `SegmentStores` port promises, on segment stores in memory and on a real one over TCP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.journal_disk import MemoryJournalDisk
from headrace.adapters.memory.metadata_store import MemoryMetadataStore, TornReads
from headrace.adapters.memory.segment_stores import MemorySegmentStores
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.tcp.listener import WireListener, bind_socket
from headrace.adapters.tcp.segment_stores import TcpSegmentStores
from headrace.adapters.tcp.store_calls import StoreAddress
from headrace.client.loop_thread import LoopThread
from headrace.metadata.cluster_records import claim_body, claim_sort
from headrace.model.containers import CLUSTER_PARTITION, ContainerClaim
from headrace.model.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    SealedError,
    TruncatedError,
)
from headrace.model.names import transaction_segment_name
from headrace.ports.metadata_store import Create, Key
from headrace.ports.segment_stores import APPEND_BYTES_MAX, AttributeBound, SegmentScaleRate, SegmentStores
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgerStore
from headrace.segmentstore.store import SegmentStore

CONTAINERS = 2
RATE = SegmentScaleRate(2, 100)
A, B = "s/t/0.#epoch.0", "s/t/1.#epoch.0"
MARK = 0x7DF9A874246CC9D69397CDD19EAD68C5
OTHER_MARK = MARK + 1


class RealStore:
    """One segment store that owns all containers, on a journal in memory."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataStore(TornReads(0))
        self.thread = LoopThread(asyncio.new_event_loop())
        self.thread.run(self._start())

    def locate(self, _container: int) -> StoreAddress:
        return StoreAddress("127.0.0.1", self.port, 0)

    def drop_connections(self) -> None:
        self.thread.run(self._drop_connections())

    def close(self) -> None:
        self.thread.run(self._stop())
        self.thread.close()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self.journal = Journal(
            MemoryJournalDisk(), lambda: random.getrandbits(64), loop.call_soon_threadsafe, file_bytes=4 << 20
        )
        self.journal.start()
        self.store = SegmentStore(
            OneCopyLedgerStore(self.journal),
            32 << 20,
            SystemClock(),
            self.metadata,
            MemoryChunkStorage(),
            container_count=CONTAINERS,
            block_bytes=64 << 10,
        )
        for container in range(CONTAINERS):
            claim = claim_body(ContainerClaim("store-0", "127.0.0.1", 1, "local"))
            self.metadata.write(Create(Key(CLUSTER_PARTITION, claim_sort(container)), claim))
            await self.store.open_container(container, 0)
        bound = bind_socket("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self.listener = WireListener(self.store, lambda: random.getrandbits(128))
        await self.listener.start(bound)

    async def _stop(self) -> None:
        self.listener.drop_all()
        await self.listener.stop()
        await self.store.close(0)
        await asyncio.to_thread(self.journal.close)

    async def _drop_connections(self) -> None:
        self.listener.drop_all()


@pytest.fixture(scope="module")
def real_store() -> Iterator[RealStore]:
    store = RealStore()
    yield store
    store.close()


@pytest.fixture(params=["memory", "tcp"])
def stores(request: pytest.FixtureRequest) -> Iterator[SegmentStores]:
    if request.param == "memory":
        yield MemorySegmentStores()
        return
    real: RealStore = request.getfixturevalue("real_store")
    over_tcp = TcpSegmentStores(real.locate, CONTAINERS)
    over_tcp.delete_segments([A, B])
    yield over_tcp
    over_tcp.close()


def _written(stores: SegmentStores, name: str, data: bytes) -> None:
    stores.create_segment(name, SegmentScaleRate())
    stores.append(name, data, 0)


def test_batches_may_be_repeated_and_hold_what_single_calls_hold(stores: SegmentStores) -> None:
    for _ in range(2):
        stores.create_segments([A, B], RATE, 7)
    stores.append(A, b"some", 0)
    stores.create_segments([A, B], RATE)
    for _ in range(2):
        stores.seal_segments([A, B])
    assert [(info.name, info.length, info.is_sealed) for info in stores.segment_infos([A, B])] == [
        (A, 4, True),
        (B, 0, True),
    ]
    for _ in range(2):
        stores.delete_segments([A, B])
    with pytest.raises(NotFoundError):
        stores.segment_info(B)


def test_sealing_some_that_are_gone_seals_the_others_and_says_so(stores: SegmentStores) -> None:
    stores.create_segment(B, RATE)
    with pytest.raises(NotFoundError):
        stores.seal_segments([A, B])
    assert stores.segment_info(B).is_sealed


def test_nothing_for_no_segments(stores: SegmentStores) -> None:
    stores.create_segments([], RATE)
    stores.seal_segments([])
    stores.delete_segments([])
    assert stores.segment_infos([]) == []
    assert stores.locate_offsets([]) == []


def test_boundaries_of_appends_are_located(stores: SegmentStores) -> None:
    stores.create_segments([A, B], RATE)
    for name, sizes in ((A, (3, 5, 2)), (B, (4,))):
        end = 0
        for size in sizes:
            end = stores.append(name, bytes(size), end)
    wanted = {(A, 0): 0, (A, 1): 3, (A, 3): 3, (A, 4): 8, (A, 9): 10, (A, 10): 10, (B, 1): 4, (A, 99): 10, (B, 99): 4}
    assert stores.locate_offsets(list(wanted)) == list(wanted.values())
    stores.truncate_segment(A, 8)
    assert stores.locate_offsets([(A, 1), (A, 9)]) == [8, 10]
    with pytest.raises(NotFoundError):
        stores.locate_offsets([(A, 9), ("s/t/9.#epoch.0", 0)])


def test_a_policy_is_taken_over(stores: SegmentStores) -> None:
    with pytest.raises(NotFoundError):
        stores.update_segment_policy(A, RATE)
    stores.create_segment(A, SegmentScaleRate(), 9)
    for _ in range(2):
        stores.update_segment_policy(A, RATE)
    if isinstance(stores, MemorySegmentStores):
        assert stores.creation_settings(A) == (RATE, 9)
    else:
        rate_type, rate = (1 << 127 | 2), (1 << 127 | 3)
        assert (stores.get_attribute(A, rate_type), stores.get_attribute(A, rate)) == (2, 100)


def test_appends_at_the_end_only(stores: SegmentStores) -> None:
    stores.create_segment(A, RATE)
    assert stores.append(A, b"abc", 0) == 3
    assert stores.append(A, b"de", 3) == 5
    assert stores.read(A, 0, 100) == b"abcde"
    for data, offset in ((b"x", 0), (b"xy", 3), (b"x", 4), (b"xy", 4), (b"x", 6)):
        with pytest.raises(ConflictError) as lost:
            stores.append(A, data, offset)
        assert lost.value.details["offset"] == 5
    assert stores.read(A, 0, 100) == b"abcde"
    assert stores.append(A, b"f", 5) == 6


def test_an_append_that_happened_already_succeeds(stores: SegmentStores) -> None:
    _written(stores, A, b"abc")
    stores.append(A, b"de", 3)
    assert stores.append(A, b"abc", 0) == 3
    assert stores.append(A, b"de", 3) == 5
    stores.seal_segment(A)
    assert stores.append(A, b"de", 3) == 5
    stores.truncate_segment(A, 4)
    with pytest.raises(ConflictError):
        stores.append(A, b"de", 3)
    assert stores.segment_info(A).length == 5


def test_what_takes_no_append(stores: SegmentStores) -> None:
    with pytest.raises(NotFoundError):
        stores.append(A, b"x", 0)
    stores.create_segment(A, RATE)
    for data in (b"", bytes(APPEND_BYTES_MAX + 1)):
        with pytest.raises(InvalidRequestError):
            stores.append(A, data, 0)
    stores.seal_segment(A)
    with pytest.raises(SealedError):
        stores.append(A, b"x", 0)
    stores.create_table_segment(B, 0, 0)
    with pytest.raises(InvalidRequestError):
        stores.append(B, b"x", 0)
    stores.delete_table_segment(B)


def test_many_who_append_at_once_write_one_chain(stores: SegmentStores) -> None:
    """Each repeats where the segment ends, as told by the refusal, until it has its say."""
    stores.create_segment(A, RATE)

    def append(data: bytes) -> int:
        offset = 0
        while True:
            try:
                return stores.append(A, data, offset)
            except ConflictError as lost:
                offset = lost.details["offset"]

    pieces = [bytes([letter]) * (letter - 90) for letter in range(97, 109)]
    with ThreadPoolExecutor(4) as threads:
        ends = list(threads.map(append, pieces))
    whole = stores.read(A, 0, 10_000)
    assert [whole[end - len(piece) : end] for end, piece in zip(ends, pieces, strict=True)] == pieces
    assert len(whole) == sum(map(len, pieces))


def test_reads_end_with_the_segment_and_never_wait(stores: SegmentStores) -> None:
    _written(stores, A, b"0123456789")
    assert stores.read(A, 2, 3) == b"234"
    assert stores.read(A, 8, 100) == b"89"
    assert stores.read(A, 10, 100) == b""
    assert stores.read(A, 11, 100) == b""
    assert stores.read(A, 3, 0) == b""
    stores.truncate_segment(A, 4)
    with pytest.raises(TruncatedError) as gone:
        stores.read(A, 2, 3)
    assert gone.value.details["start_offset"] == 4
    stores.seal_segment(A)
    assert stores.read(A, 4, 100) == b"456789"
    with pytest.raises(NotFoundError):
        stores.read(B, 0, 1)


def test_a_read_of_more_than_a_store_answers_at_once(stores: SegmentStores) -> None:
    piece = bytes(range(256)) * (5 << 12)
    _written(stores, A, piece)
    assert stores.read(A, 1, len(piece)) == piece[1:]


def test_merging_in_order_all_at_once(stores: SegmentStores) -> None:
    _written(stores, A, b"target.")
    sources = [transaction_segment_name(A, number) for number in (5, 3, 4)]
    for number, source in enumerate(sources):
        _written(stores, source, b"part%d." % number)
    stores.merge_segments(A, sources[:2])
    for _ in range(2):
        stores.merge_segments(A, sources)
    assert stores.read(A, 0, 100) == b"target.part0.part1.part2."
    for source in sources:
        with pytest.raises(NotFoundError):
            stores.segment_info(source)


def test_many_sources(stores: SegmentStores) -> None:
    stores.create_segment(A, RATE)
    sources = [transaction_segment_name(A, number) for number in range(1_050)]
    there = sources[-3:]
    for source in there:
        _written(stores, source, b"x")
    stores.merge_segments(A, sources)
    assert stores.segment_info(A).length == 3


def test_segments_that_do_not_exist_are_incomplete(stores: SegmentStores) -> None:
    stores.create_segments([A, B], RATE)
    stores.seal_segment(B)
    assert stores.incomplete_segments([A, B]) == set()
    gone = [transaction_segment_name(A, number) for number in range(1_500)]
    assert stores.incomplete_segments([A, *gone, B]) == set(gone)


def test_targets_that_take_no_merge(stores: SegmentStores) -> None:
    source = transaction_segment_name(A, 5)
    with pytest.raises(NotFoundError):
        stores.merge_segments(A, [source])
    stores.create_segment(A, RATE)
    _written(stores, source, b"x")
    stores.seal_segment(A)
    with pytest.raises(SealedError):
        stores.merge_segments(A, [source])
    assert stores.segment_info(source).length == 1
    stores.delete_segment(source)
    with pytest.raises(SealedError):
        stores.merge_segments(A, [source])


def test_attributes_are_set_on_a_condition(stores: SegmentStores) -> None:
    with pytest.raises(NotFoundError):
        stores.get_attribute(A, MARK)
    with pytest.raises(NotFoundError):
        stores.compare_and_set_attribute(A, MARK, 1, None)
    stores.create_segment(A, RATE)
    assert stores.get_attribute(A, MARK) is None
    assert not stores.compare_and_set_attribute(A, MARK, 7, 5)
    assert stores.get_attribute(A, MARK) is None
    assert stores.compare_and_set_attribute(A, MARK, 7, None)
    assert stores.compare_and_set_attribute(A, MARK, 7, None), "it is what it was to be"
    assert not stores.compare_and_set_attribute(A, MARK, 8, None)
    assert stores.compare_and_set_attribute(A, MARK, -9, 7)
    assert stores.get_attribute(A, MARK) == -9


def test_a_deletion_on_a_condition_spares_what_is_above(stores: SegmentStores) -> None:
    seven = AttributeBound(MARK, 7)
    assert stores.delete_segment_up_to(A, seven), "what is gone is gone"
    stores.create_segment(A, RATE)
    assert stores.delete_segment_up_to(A, seven), "it has no such attribute"
    stores.create_segment(A, RATE)
    stores.append(A, b"data", 0)
    assert stores.compare_and_set_attribute(A, MARK, 8, None)
    assert not stores.delete_segment_up_to(A, seven)
    assert stores.read(A, 0, 9) == b"data"
    assert stores.delete_segment_up_to(A, AttributeBound(MARK, 8))
    with pytest.raises(NotFoundError):
        stores.segment_info(A)


def test_a_truncation_on_a_condition_spares_what_is_above(stores: SegmentStores) -> None:
    seven = AttributeBound(MARK, 7)
    with pytest.raises(NotFoundError):
        stores.truncate_segment_up_to(A, 0, seven)
    stores.create_segment(A, RATE)
    stores.append(A, b"0123456789", 0)
    assert stores.truncate_segment_up_to(A, 2, seven), "it has no such attribute"
    assert stores.compare_and_set_attribute(A, MARK, 7, None)
    assert stores.truncate_segment_up_to(A, 4, seven)
    with pytest.raises(InvalidRequestError):
        stores.truncate_segment_up_to(A, 11, seven)
    assert stores.compare_and_set_attribute(A, MARK, 8, 7)
    for offset in (6, 11):
        assert not stores.truncate_segment_up_to(A, offset, seven)
    assert stores.segment_info(A).start_offset == 4


def test_attributes_are_set_within_the_bound_of_another(stores: SegmentStores) -> None:
    seven = AttributeBound(MARK, 7)
    with pytest.raises(NotFoundError):
        stores.set_attribute_up_to(A, OTHER_MARK, 1, None, seven)
    stores.create_segment(A, RATE)
    assert stores.set_attribute_up_to(A, OTHER_MARK, 1, None, seven)
    assert not stores.set_attribute_up_to(A, OTHER_MARK, 2, None, seven)
    assert stores.compare_and_set_attribute(A, MARK, 8, None)
    assert not stores.set_attribute_up_to(A, OTHER_MARK, 2, 1, seven)
    assert stores.set_attribute_up_to(A, OTHER_MARK, 2, 1, AttributeBound(MARK, 8))
    assert stores.get_attribute(A, OTHER_MARK) == 2


def test_appends_for_a_former_incarnation_are_refused(stores: SegmentStores) -> None:
    stores.create_segment(A, RATE)
    assert stores.append(A, b"ab", 0, 3) == 2
    assert stores.append(A, b"ab", 0, 3) == 2, "a repeat"
    for former in (0, 2):
        with pytest.raises(ConflictError) as error:
            stores.append(A, b"late", 2, former)
        assert error.value.details["offset"] == 2
    assert stores.append(A, b"cd", 2, 3) == 4
    assert stores.append(A, b"ef", 4, (1 << 31) - 1) == 6
    assert stores.read(A, 0, 9) == b"abcdef"


def test_tables_come_and_go(stores: SegmentStores) -> None:
    table = "s/g_kvtable/0.#epoch.0"
    for _ in range(2):
        stores.create_table_segment(table, 16, 1 << 20)
    assert stores.segment_info(table).is_sealed is False
    stores.create_segment(A, RATE)
    with pytest.raises(InvalidRequestError):
        stores.delete_table_segment(A)
    for _ in range(2):
        stores.delete_table_segment(table)
    with pytest.raises(NotFoundError):
        stores.segment_info(table)


def test_a_connection_that_breaks_between_appends_is_made_again(real_store: RealStore) -> None:
    stores: Any = TcpSegmentStores(real_store.locate, CONTAINERS)
    stores.delete_segment(A)
    stores.create_segment(A, RATE)
    for number in range(5):
        assert stores.append(A, b"%d" % number, number) == number + 1
        real_store.drop_connections()
    assert stores.read(A, 0, 10) == b"01234"
    stores.close()
