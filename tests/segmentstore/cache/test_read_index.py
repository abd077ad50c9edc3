"""What memory has of a segment: any history of appends, flushes, truncations and evictions against a plain model."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.segmentstore.cache import read_index
from headrace.segmentstore.cache.block_pool import BlockPool
from headrace.segmentstore.cache.read_index import ReadIndex

BLOCK_BYTES = 2048


def fill(reservation, content):
    position = 0
    for part in reservation.parts:
        part[:] = content[position : position + len(part)]
        position += len(part)


class IndexMachine(RuleBasedStateMachine):
    """Two segments, of which one may be merged into the other; memory has a part of what is known of them."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(read_index, "ENTRIES_PER_LIST_MAX", 3)
        self.pool = BlockPool(8 * BLOCK_BYTES, BLOCK_BYTES)
        self.indexes = [ReadIndex(self.pool), ReadIndex(self.pool)]
        self.contents = [b"", b""]
        self.starts = [[], []]
        self.tiered = [0, 0]
        self.merged_end = 0
        self.counter = 0

    @rule(which=st.integers(0, 1), length=st.integers(1, 3000))
    def append(self, which, length):
        reservation = self.pool.reserve(length)
        if reservation is None:
            return
        self.counter += 1
        content = (b"%d " % self.counter * length)[:length]
        fill(reservation, content)
        self.indexes[which].add(len(self.contents[which]), reservation, self.counter, (5, self.counter, 1))
        self.starts[which].append(len(self.contents[which]))
        self.contents[which] += content

    @rule(which=st.integers(0, 1), count=st.integers(1, 5))
    def store(self, which, count):
        starts = [*self.starts[which], len(self.contents[which])]
        behind = [start for start in starts if start > self.tiered[which]][:count]
        if behind:
            self.indexes[which].mark_tiered(self.tiered[which], behind[-1])
            self.tiered[which] = behind[-1]

    @rule(which=st.integers(0, 1), share=st.floats(0, 1))
    def truncate(self, which, share):
        self.indexes[which].release_before(int(self.tiered[which] * share))

    @rule(which=st.integers(0, 1), lists=st.integers(0, 5))
    def drop_tiered(self, which, lists):
        """Its caller may be cancelled after some lists."""
        index = self.indexes[which]
        before = list(index.entries_behind(0))
        untiered = [entry for entry in before if not entry.tiered]
        dropping = index.drop_tiered()
        kept = [entry for _, entries in zip(range(lists), dropping, strict=False) for entry in entries]
        left = list(index.entries_behind(0))
        assert kept == left[: len(kept)] == untiered[: len(kept)]
        assert [entry for entry in left if not entry.tiered] == untiered
        assert [entry for entry in before if entry.live] == left

    @rule()
    def merge(self):
        shift = len(self.contents[0])
        self.store(0, 1 << 20)
        self.store(1, 1 << 20)
        self.indexes[1].move_to(self.indexes[0], shift)
        self.contents = [self.contents[0] + self.contents[1], b""]
        self.starts = [self.starts[0] + [start + shift for start in self.starts[1]], []]
        self.tiered = [len(self.contents[0]), 0]
        self.merged_end = self.tiered[0]

    @rule(length=st.integers(1, 3000), cut=st.floats(0, 1))
    def compose(self, length, cut):
        """As an append that comes as a block and its end: without a few bytes in its middle."""
        first, second = self.pool.reserve(length), self.pool.reserve(100)
        if first is None or second is None:
            for reserved in (first, second):
                if reserved is not None:
                    self.pool.release(reserved)
            return
        self.counter += 1
        content = (b"%d " % self.counter * (length + 100))[: length + 100]
        fill(first, content[:length])
        fill(second, content[length:])
        whole = int(length * cut)
        behind = min(length, whole + 8)
        composed = self.pool.compose([(first, 0, whole), (first, behind, length - behind), (second, 0, 100)])
        assert b"".join(composed.parts) == content[:whole] + content[behind:]
        self.indexes[1].add(len(self.contents[1]), composed, self.counter)
        self.starts[1].append(len(self.contents[1]))
        self.contents[1] += content[:whole] + content[behind:]

    @rule(which=st.integers(0, 1), share=st.floats(0, 1), length=st.integers(1, 5000))
    def read(self, which, share, length):
        index, content = self.indexes[which], self.contents[which]
        offset = int(len(content) * share)
        parts, _ = index.read(offset, length)
        data = b"".join(parts)
        assert data == content[offset : offset + len(data)]
        known = {entry.offset: entry.end for entry in index.entries_behind(0)}
        covering = [start for start, end in known.items() if start <= offset < end]
        assert bool(data) == bool(covering)
        assert index.entry_start(offset) == (covering[0] if covering else offset)
        behind = [start for start in known if start >= offset]
        assert index.boundary_from(offset) == min(behind, default=None)
        assert index.next_in_memory(offset) == (offset if covering else min(behind, default=None))
        expected = []
        if covering:
            position = covering[0]
            while position in known and known[position] <= offset + length:
                expected.append(position)
                position = known[position]
        assert [entry.offset for entry in index.entries_from(offset, offset + length)] == expected

    @invariant()
    def memory_is_sorted_and_has_all_that_tier_2_lacks(self):
        for index, content, starts, tiered in zip(self.indexes, self.contents, self.starts, self.tiered, strict=True):
            entries = list(index.entries_behind(0))
            assert len(entries) == len(index)
            assert index.first_offset == (entries[0].offset if entries else None)
            assert all(before.end <= after.offset for before, after in pairwise(entries))
            assert all(entry.live and entry.tiered == (entry.offset < tiered) for entry in entries)
            assert all((entry.mark is None) or not entry.tiered for entry in entries)
            lacking = [start for start in starts if start >= tiered]
            assert [entry.offset for entry in entries if entry.offset >= tiered] == lacking
            assert all(b"".join(entry.parts) == content[entry.offset : entry.end] for entry in entries)
        untiered = sum(len(content) - tiered for content, tiered in zip(self.contents, self.tiered, strict=True))
        assert self.pool.untiered_bytes == untiered

    def teardown(self):
        self.patch.undo()
        for index in self.indexes:
            index.release_all()
        assert self.pool.untiered_bytes == 0
        assert all(block.references == 0 for block in self.pool._free)
        assert len(self.pool._free) + (self.pool._current is not None) == self.pool._made


IndexMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestReadIndex = IndexMachine.TestCase


def test_an_append_in_memory_is_one_object():
    """What the collector has to look at, and what a long-lived cache costs in addition to its bytes."""
    count = 5000
    pool = BlockPool(16 << 20)
    index = ReadIndex(pool)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(count):
        reservation = pool.reserve(1000)
        index.add(number * 1000, reservation, number, (1 << 100, number, 1))
    del reservation
    gc.collect()
    assert len(gc.get_objects()) - before < 1.1 * count
    assert len(index) == count


def test_a_block_s_appends_are_forgotten_together():
    """However many there are, those of one list go in one step: a full cache takes new appends without a stall."""
    pool = BlockPool(4 << 20, 1 << 20)
    index = ReadIndex(pool)
    for number in range(4000):
        reservation = pool.reserve(600)
        index.add(number * 600, reservation, number)
    index.mark_tiered(0, 4000 * 600)
    calls = []
    honest = ReadIndex.forget
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadIndex, "forget", lambda self, gone: (calls.append(len(gone)), honest(self, gone))[1])
        assert pool.reserve(2 << 20) is not None
    assert len(calls) == 2  # blocks
    assert min(calls) > 1000
    assert len(index) == 4000 - sum(calls)
    assert index.first_offset == 600 * sum(calls)
