"""Resets of a reader group that are refused or interrupted: its readers go on, and stop asking the controller."""

from __future__ import annotations

import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace.api.reader_groups import ReaderGroupView
from headrace.client import (
    GroupReader,
    GroupStream,
    Headrace,
    IllegalStateError,
    InvalidRequestError,
    ReaderGroup,
    ReaderGroupConfiguration,
    ScalingPolicy,
    StreamCut,
    UnavailableError,
)
from headrace.client.administration.reader_groups_admin import AsyncReaderGroupsAdmin
from headrace.model.group_updates import NoteUpdating

REFRESH_MS = 500


@pytest.fixture
def group(headrace: Headrace, request_queue: WorkingQueue, monkeypatch: pytest.MonkeyPatch) -> ReaderGroup:
    """A group that reads one event of `orders`."""
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders") as writer:
        writer.write(b"an order")
    streams = (GroupStream("shop", "orders"),)
    reads = ReaderGroupConfiguration(streams, group_refresh_ms=REFRESH_MS, automatic_checkpoint_interval_ms=0)
    headrace.admin.reader_groups.create("shop", "billing", reads)
    return headrace.reader_group("shop", "billing")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups for whose configuration the controller was asked."""
    found: list[str] = []
    ask = AsyncReaderGroupsAdmin.get

    async def get(admin: AsyncReaderGroupsAdmin, scope: str, group: str) -> ReaderGroupView:
        found.append(group)
        return await ask(admin, scope, group)

    monkeypatch.setattr(AsyncReaderGroupsAdmin, "get", get)
    return found


def is_updating(group: ReaderGroup) -> bool:
    return group._thread.run(group._core._synchronizer.fetch()).is_updating


def note_updating(group: ReaderGroup) -> None:
    """What a process leaves that dies at the beginning of a reset."""
    entries = group._core._synchronizer.entries
    group._thread.run(entries.update_unconditionally([NoteUpdating(True)]))


def read_until_settled(group: ReaderGroup, reader: GroupReader) -> int:
    """Reads without pause until the group no longer waits for a configuration. Returns the number of calls."""
    calls = 0
    while is_updating(group):
        reader.read_batch(timeout_s=0.01)
        calls += 1
    return calls


def test_refused_reset_is_forgotten_at_once(group: ReaderGroup, asked: list[str]) -> None:
    with group.reader("r1") as reader:
        with pytest.raises(InvalidRequestError):
            group.reset([StreamCut.of("shop", "orders", {77: 5})])
        assert not is_updating(group)
        asked.clear()
        assert reader.read_batch(timeout_s=10) is not None
        assert not asked


def test_readers_end_the_reset_of_a_dead_process(group: ReaderGroup, asked: list[str]) -> None:
    with group.reader("r1") as reader:
        assert reader.read_batch(timeout_s=10) is not None
        note_updating(group)
        asked.clear()
        assert read_until_settled(group, reader) > 2
        assert len(asked) == 2


def test_idle_reader_ends_the_reset_of_a_dead_process(group: ReaderGroup) -> None:
    with group.reader("r1") as reader:
        assert reader.read_batch(timeout_s=10) is not None
        note_updating(group)
        assert reader.read_batch(timeout_s=2) is None
        assert not is_updating(group)


def test_readers_take_a_reset_whose_answer_was_lost(group: ReaderGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process gets an error, and the controller has the new configuration."""
    update = AsyncReaderGroupsAdmin.update

    async def lost(
        admin: AsyncReaderGroupsAdmin, known: ReaderGroupView, configuration: ReaderGroupConfiguration
    ) -> ReaderGroupView:
        await update(admin, known, configuration)
        raise UnavailableError("the answer was lost")

    monkeypatch.setattr(AsyncReaderGroupsAdmin, "update", lost)
    with group.reader("r1") as reader:
        assert reader.read_batch(timeout_s=10) is not None
        with pytest.raises(UnavailableError):
            group.reset("earliest")
        batch = reader.read_batch(timeout_s=10)
        assert batch is not None
        assert batch.events == [b"an order"]
        assert not is_updating(group)


def test_reset_that_came_second_completes_the_first(
    headrace: Headrace, group: ReaderGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one died after the controller had its configuration; the second one is refused for it."""
    update = AsyncReaderGroupsAdmin.update

    async def second(
        admin: AsyncReaderGroupsAdmin, known: ReaderGroupView, configuration: ReaderGroupConfiguration
    ) -> ReaderGroupView:
        await update(admin, known, configuration)
        return await update(admin, known, ReaderGroupConfiguration((GroupStream("shop", "orders"),)))

    monkeypatch.setattr(AsyncReaderGroupsAdmin, "update", second)
    with group.reader("r1") as reader:
        assert reader.read_batch(timeout_s=10) is not None
        with pytest.raises(IllegalStateError) as refused:
            group.reset("earliest")
        assert refused.value.specific_code == "reader_group_mismatch"
        assert not is_updating(group)
        assert reader.read_batch(timeout_s=10) is not None
