"""Many clients begin and commit transactions of one stream at the same moment: no call is refused, none writes a record
of another, and one message has all of them committed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from stream_world import StreamWorld

from fuzz.watched_ports import Crash
from headrace.model.errors import ConflictError, NotFoundError, SealedError
from headrace.model.transactions import TransactionState
from headrace.ports.metadata_store import Check, Key, Write, WriteConflictError
from headrace.topology import BUCKET_COUNT

STACK_BYTES = 256 * 1024
"""Of a client's thread: a thousand of them are alive at once."""


@pytest.fixture
def small_stacks() -> Iterator[None]:
    usual = threading.stack_size(STACK_BYTES)
    yield
    threading.stack_size(usual)


def _all_at_once(world: StreamWorld, calls: list[Callable[[], object]]) -> Counter[Key]:
    """Every call has read all that it reads before the first of them writes; how often each key was written.

    None is refused and repeated: among more of them a repeat would be refused as well.
    """
    barrier, honest, written = threading.Barrier(len(calls)), world.bare_store.write, Counter[Key]()
    has_met = threading.local()

    def write(*writes: Write) -> None:
        if not getattr(has_met, "yes", False):
            has_met.yes = True
            barrier.wait()
        try:
            honest(*writes)
        except WriteConflictError as error:
            raise AssertionError("two of them write the same record") from error
        written.update(write.key for write in writes)

    world.bare_store.write = write
    try:
        with ThreadPoolExecutor(len(calls)) as threads:
            for done in [threads.submit(call) for call in calls]:
                done.result()
    finally:
        world.bare_store.write = honest
    return written


@pytest.mark.parametrize("count", [50, 1_000])
@pytest.mark.usefixtures("small_stacks")
def test_commits_at_the_same_moment_all_succeed(world: StreamWorld, count: int):
    world.create(segments=1)
    ids = [world.begin() for _ in range(count)]
    commit = world.transactions.commit_transaction
    written = _all_at_once(world, [partial(commit, "s", "t", transaction) for transaction in ids])
    assert len(written) == 2 * count, "each writes its transaction and its mark, no other record, and both once"
    assert set(written.values()) == {1}
    assert len(world.bare_commits) >= 1
    world.drain_transactions()
    states = [world.transactions.get_transaction("s", "t", transaction).state for transaction in ids]
    assert states == [TransactionState.COMMITTED] * count


@pytest.mark.usefixtures("small_stacks")
def test_beginnings_at_the_same_moment_share_no_record(world: StreamWorld):
    world.create(segments=1)
    checked: list[Key] = []
    honest = world.bare_store.write

    def write(*writes: Write) -> None:
        checked.extend(write.key for write in writes if isinstance(write, Check))
        honest(*writes)

    world.bare_store.write = write
    written = _all_at_once(world, [world.begin] * 50)
    assert len(written) == 100
    assert set(written.values()) == {1}
    assert checked == []


def test_a_mark_comes_behind_all_that_were_told_before_it(world: StreamWorld):
    """Also behind those whose commit was done meanwhile, and those of another process."""
    world.create(segments=1)
    other = world.another_transaction_service()
    ids = [world.begin() for _ in range(6)]
    for number, transaction in enumerate(ids):
        world.write_in(transaction, 0.0, b"%d" % number)
    for service, transaction in zip([world.transactions, other] * 2, (ids[3], ids[1], ids[4], ids[0]), strict=True):
        service.commit_transaction("s", "t", transaction)
    world.drain_transactions()
    world.commit_set([ids[5], ids[2]])
    world.drain_transactions()
    assert world.bare_segment_stores.read("s/t/0.#epoch.0", 0, 99) == b"314052"


def test_many_marks_of_a_stream_need_one_message(world: StreamWorld):
    world.create(segments=1)
    for _ in range(300):
        world.transactions.commit_transaction("s", "t", world.begin())
    assert len(world.bare_commits) == 1
    assert world.drain_transactions() == 1
    assert world.transactions.list_open("s", "t", 10).items == ()


def test_a_mark_amid_any_call_of_a_commit_is_committed_too(world: StreamWorld):
    """It sends no message where another waits: the message in hand must see it, or there is a new one."""
    position = 0
    while True:
        fresh = StreamWorld()
        fresh.create(segments=1)
        first, second = fresh.begin(), fresh.begin()
        fresh.transactions.commit_transaction("s", "t", first)
        (message,) = fresh.bare_commits.receive()
        came = fresh.calls.interrupt_at(position, partial(fresh.transactions.commit_transaction, "s", "t", second))
        fresh.commits.process(message.body)
        fresh.calls.calm()
        if not came:
            break
        fresh.bare_commits.acknowledge(message.receipt)
        fresh.drain_transactions()
        state = fresh.transactions.get_transaction("s", "t", second).state
        assert state is TransactionState.COMMITTED, f"marked at call {position}"
        position += 1
    assert position >= 10


def test_a_mark_whose_message_was_lost_is_found_by_later_ones(world: StreamWorld):
    world.create(segments=1)
    lost, later, latest = world.begin(), world.begin(), world.begin()
    world.commit_queue.is_down = True
    world.transactions.commit_transaction("s", "t", lost)
    world.commit_queue.is_down = False
    world.transactions.commit_transaction("s", "t", later)
    assert len(world.bare_commits) == 0
    world.clock.advance(10_000)
    world.transactions.commit_transaction("s", "t", latest)
    assert len(world.bare_commits) == 1
    world.drain_transactions()
    assert world.transactions.list_open("s", "t", 10).items == ()


@pytest.mark.parametrize("end", ["sealed", "deleted", "made again"])
def test_no_transaction_slips_in_behind_the_end_of_a_stream(world: StreamWorld, end: str):
    """The stream ends before any call of the beginning: it is refused and leaves nothing, or it came before the end."""

    def finish(fresh: StreamWorld) -> None:
        fresh.seal()
        if end != "sealed":
            fresh.delete()
        if end == "made again":
            fresh.create(segments=1)

    position, told = 0, Counter[str]()
    while True:
        fresh = StreamWorld()
        fresh.create(segments=1)
        came = fresh.calls.interrupt_at(position, partial(finish, fresh))
        try:
            fresh.begin()
            told["begun"] += 1
        except (SealedError, NotFoundError) as error:
            told[error.specific_code] += 1
            assert fresh.transactions.list_open("s", "t", 10).items == () if end == "sealed" else True
            partition = [sort for name, sort in fresh.everything() if name == "transactions/s/t"]
            assert [sort for sort in partition if sort.startswith("open/")] == []
        fresh.calls.calm()
        if came and end != "made again":
            left = [sort for name, sort in fresh.everything() if name == "transactions/s/t" and sort[:5] == "open/"]
            assert left == [], "the end of the stream has not seen it, and it was begun"
        if not came:
            break
        position += 1
    assert position >= 4
    assert len(told) > 1 or end == "made again"


def test_a_creator_that_died_behind_a_deletion_leaves_nothing(world: StreamWorld):
    world.create(segments=1)

    def finish() -> None:
        world.seal()
        world.delete()
        world.calls.refuse("read", Crash())

    with world.calls.overtaken("transaction", by=finish), pytest.raises(Crash):
        world.begin()
    assert [sort for name, sort in world.everything() if name == "transactions/s/t"] != []
    for _ in range(4):
        world.clock.advance(100_000)
        _tick(world)
    assert [sort for name, sort in world.everything() if name == "transactions/s/t"] == []


def _tick(world: StreamWorld) -> None:
    for bucket in range(BUCKET_COUNT):
        try:
            while world.expire_transactions(bucket):
                continue
        except ConflictError:
            continue
    world.drain_transactions()
