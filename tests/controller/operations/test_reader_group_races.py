"""Many clients race on one reader group and one table: in the end everything fits together."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from stream_world import StreamWorld

from headrace.metadata.subscriber import SubscriberRecords
from headrace.model.errors import ConflictError, HeadraceError
from headrace.model.key_value_tables import TableConfiguration, TableState
from headrace.model.reader_groups import GroupStream, ReaderGroupConfiguration, ReaderGroupState, RetentionMode

CLIENTS, WORKERS, OPERATIONS = 4, 2, 25
STREAMS = ("t", "u")


def _client(world: StreamWorld, seed: int) -> None:
    """Random operations on the group `g` and the table `k`, each with what it knows of the group."""
    chance = random.Random(seed)
    groups, tables = world.reader_groups, world.tables
    for number in range(OPERATIONS):
        reads = ReaderGroupConfiguration(
            tuple(GroupStream("s", stream) for stream in chance.sample(STREAMS, chance.randint(1, 2))),
            chance.choice(list(RetentionMode)),
        )
        identifier = f"{seed:08x}-0000-4000-8000-{number:012x}"
        with suppress(HeadraceError):
            choice = chance.randrange(6)
            if choice == 0:
                groups.create_reader_group("s", "g", identifier, reads)
            elif choice == 1:
                known = groups.get_reader_group("s", "g")
                groups.update_reader_group("s", "g", known.group_id, known.generation, reads)
            elif choice == 2:
                known = groups.get_reader_group("s", "g")
                groups.reset_reader_group("s", "g", known.group_id, known.generation)
            elif choice == 3:
                groups.delete_reader_group("s", "g", groups.get_reader_group("s", "g").group_id)
            elif choice == 4:
                tables.create_table("s", "k", TableConfiguration(2, 4))
            else:
                tables.delete_table("s", "k")


def _worker(world: StreamWorld, stop: threading.Event) -> None:
    while not stop.wait(0.001) or len(world.bare_queue):
        for message in world.bare_queue.receive():
            try:
                world.requests.process(message.body)
            except ConflictError:
                world.bare_queue.release(message.receipt)
            else:
                world.bare_queue.acknowledge(message.receipt)


def _run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("seed", range(4))
def test_many_clients_at_once(world: StreamWorld, seed: int):
    for stream in STREAMS:
        world.create(stream)
    problems: list[BaseException] = []

    def guarded(work: Callable[..., None], *arguments: Any) -> Callable[[], None]:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as problem:  # noqa: BLE001  It is raised by the test.
                problems.append(problem)

        return run

    clients = [threading.Thread(target=guarded(_client, world, seed * 100 + number)) for number in range(CLIENTS)]
    stop = threading.Event()
    workers = [threading.Thread(target=guarded(_worker, world, stop)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    _run(clients)
    stop.set()
    for worker in workers:
        worker.join()
    assert problems == []
    world.sweep()
    world.drain()
    _check(world)


def _check(world: StreamWorld) -> None:
    """No intent is left; the group's stream, its subscriptions and the table's segments are those of their records."""
    records = world.everything()
    assert [place for place in records if place[0].startswith("requests/")] == []
    segments = set(world.bare_segment_stores.names())
    group = _found(lambda: world.reader_groups.get_reader_group("s", "g"))
    assert group is None or group.state is ReaderGroupState.ACTIVE
    assert [name for name in segments if "/_RGg/" in name] == (
        [f"s/_RGg/{world.records.get('s', '_RGg').stream.first_segment_number}.#epoch.0"] if group else []
    )
    for stream in STREAMS:
        subscribers = SubscriberRecords(world.bare_store).all(world.records.get("s", stream).stream)
        expected = group is not None and f"s/{stream}" in group.configuration.subscribed
        assert [(subscriber.name, subscriber.generation) for subscriber in subscribers] == (
            [("s/g", group.generation)] if expected else []
        )
    table = _found(lambda: world.tables.get_table("s", "k"))
    assert table is None or table.state is TableState.ACTIVE
    wanted = {f"s/k_kvtable/{segment.segment_id}.#epoch.0" for segment in table.segments} if table else set()
    assert {name for name in segments if "_kvtable/" in name} == wanted


def _found(ask: Callable[[], Any]) -> Any:
    with suppress(HeadraceError):
        return ask()
    return None
