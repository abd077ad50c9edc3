"""What `ports.ledger` promises, on every implementation."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from ledger_worlds import LedgerWorld, ObjectWorld, OneCopyWorld, Reports, read_back

from headrace.model.errors import FencedError, InvalidRequestError, UnavailableError

pytestmark = pytest.mark.anyio

CONTAINER = 3


@pytest.fixture(params=["journal", "objects in memory", "objects in S3"])
def world(request: pytest.FixtureRequest) -> Iterator[LedgerWorld]:
    match request.param:
        case "journal":
            made: LedgerWorld = OneCopyWorld()
        case "objects in memory":
            made = ObjectWorld()
        case _:
            made = ObjectWorld(request.getfixturevalue("s3_storage"))
    yield made
    made.end()


def payloads_of(seed: int, count: int, length_max: int = 3000) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(random.randint(1, length_max)) for _ in range(count)]


async def test_entries_are_numbered_and_reported_in_order(world: LedgerWorld):
    ledger, reports = await world.start().open(CONTAINER, world.claim(CONTAINER)), Reports()
    assert ledger.next_entry == 0
    assert reports.append(ledger, *payloads_of(1, 100)) == list(range(100))
    assert ledger.next_entry == 100
    assert await reports.all() == [(entry, None) for entry in range(100)]
    assert sorted(reports.released) == list(range(100))


async def test_next_process_finds_every_reported_entry(world: LedgerWorld):
    payloads, reports = payloads_of(2, 50), Reports()
    ledger = await world.start().open(CONTAINER, world.claim(CONTAINER))
    reports.append(ledger, *payloads)
    await reports.all()
    ledger = await world.start().open(CONTAINER, world.claim(CONTAINER))
    assert await read_back(ledger) == dict(enumerate(payloads))
    assert ledger.next_entry == 50
    assert await read_back(ledger, 48) == {48: payloads[48], 49: payloads[49]}
    assert reports.append(ledger, b"more") == [50]
    await reports.all()
    assert list(await read_back(await world.start().open(CONTAINER, world.claim(CONTAINER)))) == list(range(51))


@pytest.mark.parametrize("part_bytes", [1, 1000, 70_000])
async def test_parts_are_joined(world: LedgerWorld, part_bytes: int):
    parts = [Random(number).randbytes(part_bytes) for number in range(12)]
    ledger, reports = await world.start().open(CONTAINER, world.claim(CONTAINER)), Reports()
    reports.append(ledger, parts)
    await reports.all()
    ledger = await world.start().open(CONTAINER, world.claim(CONTAINER))
    assert await read_back(ledger) == {0: b"".join(parts)}


async def test_entries_have_a_largest_size(world: LedgerWorld):
    ledger, reports = await world.start().open(CONTAINER, world.claim(CONTAINER)), Reports()
    largest = bytes(ledger.entry_bytes_max)
    with pytest.raises(InvalidRequestError, match="exceeds"):
        ledger.append([largest, b"x"], lambda _error: None)
    assert reports.append(ledger, largest, b"small") == [0, 1]
    await reports.all()
    ledger = await world.start().open(CONTAINER, world.claim(CONTAINER))
    assert await read_back(ledger) == {0: largest, 1: b"small"}


async def test_released_ledger_is_opened_again(world: LedgerWorld):
    store, reports = world.start(), Reports()
    epoch = world.claim(CONTAINER)
    ledger = await store.open(CONTAINER, epoch)
    reports.append(ledger, b"first", b"second")
    await store.release(CONTAINER)
    await reports.all()
    assert sorted(reports.released) == [0, 1]
    again = await store.open(CONTAINER, epoch)
    assert await read_back(again) == {0: b"first", 1: b"second"}
    assert reports.append(again, b"third") == [2]
    await reports.all()
    await store.release(CONTAINER)
    later = await store.open(CONTAINER, world.claim(CONTAINER))
    assert await read_back(later) == {0: b"first", 1: b"second", 2: b"third"}


async def test_release_of_an_unknown_container_is_nothing(world: LedgerWorld):
    await world.start().release(CONTAINER)


async def test_newer_epoch_fences_an_open_ledger(world: LedgerWorld):
    store, old = world.start(), world.claim(CONTAINER)
    ledger, new = await store.open(CONTAINER, old), world.claim(CONTAINER)
    with pytest.raises(UnavailableError, match="still open"):
        await store.open(CONTAINER, new)
    with pytest.raises(FencedError):
        ledger.append([b"late"], lambda _error: None)
    await store.release(CONTAINER)
    assert (await store.open(CONTAINER, new)).next_entry == 0
    with pytest.raises(FencedError):
        await store.open(CONTAINER, old)


async def test_epoch_below_that_of_the_log_is_refused(world: LedgerWorld):
    old, new, reports = world.claim(CONTAINER), world.claim(CONTAINER), Reports()
    reports.append(await world.start().open(CONTAINER, new), b"entry")
    await reports.all()
    with pytest.raises(FencedError):
        await world.start().open(CONTAINER, old)


async def test_closed_ledger_accepts_nothing(world: LedgerWorld):
    ledger, reports = await world.start().open(CONTAINER, world.claim(CONTAINER)), Reports()
    reports.append(ledger, b"accepted")
    ledger.close()
    with pytest.raises((FencedError, UnavailableError)):
        ledger.append([b"late"], lambda _error: None)
    with pytest.raises((FencedError, UnavailableError)):
        ledger.truncate(1)
    assert await reports.all() == [(0, None)]


async def test_truncation_outlives_the_process(world: LedgerWorld):
    store, reports = world.start(), Reports()
    ledger = await store.open(CONTAINER, world.claim(CONTAINER))
    reports.append(ledger, *payloads_of(3, 20))
    await reports.all()
    ledger.truncate(12)
    ledger.truncate(5)
    await store.release(CONTAINER)
    ledger = await world.start().open(CONTAINER, world.claim(CONTAINER))
    assert list(await read_back(ledger)) == list(range(12, 20))
    assert list(await read_back(ledger, 3)) == list(range(12, 20))


async def test_held_bytes_are_those_from_the_truncation_point(world: LedgerWorld):
    store, reports = world.start(), Reports()
    ledger = await store.open(CONTAINER, world.claim(CONTAINER))
    assert ledger.held_bytes == 0
    for _ in range(3):
        reports.append(ledger, bytes(1 << 20))
        assert ledger.held_bytes >= len(reports.outcomes) << 20
        await reports.all()
    assert 3 << 20 <= ledger.held_bytes < (3 << 20) + 1000
    ledger.truncate(2)
    assert 1 << 20 <= ledger.held_bytes < (1 << 20) + 1000
    assert not ledger.wants_truncation
    await store.release(CONTAINER)
    again = await store.open(CONTAINER, world.claim(CONTAINER))
    assert 1 << 20 <= again.held_bytes < (1 << 20) + 1000
    assert store.space().log_bytes >= again.held_bytes


async def test_forgotten_log_is_empty_and_numbers_go_on(world: LedgerWorld):
    store, reports = world.start(), Reports()
    ledger = await store.open(CONTAINER, world.claim(CONTAINER))
    reports.append(ledger, *payloads_of(4, 7))
    await reports.all()
    await store.forget(CONTAINER)
    with pytest.raises((FencedError, UnavailableError)):
        ledger.append([b"late"], lambda _error: None)
    ledger = await store.open(CONTAINER, world.claim(CONTAINER))
    assert (await read_back(ledger), ledger.next_entry, ledger.held_bytes) == ({}, 7, 0)
    reports.append(ledger, b"again")
    await reports.all()
    await store.forget(CONTAINER + 1)
    await store.release(CONTAINER)
    assert await read_back(await store.open(CONTAINER, world.claim(CONTAINER))) == {7: b"again"}


async def test_containers_have_logs_of_their_own(world: LedgerWorld):
    store, reports = world.start(), Reports()
    ledgers = [await store.open(container, world.claim(container)) for container in range(3)]
    for number in range(9):
        reports.append(ledgers[number % 3], b"%d" % number)
    await reports.all()
    store = world.start()
    for container in range(3):
        entries = await read_back(await store.open(container, world.claim(container)))
        assert list(entries.values()) == [b"%d" % (container + 3 * each) for each in range(3)]
