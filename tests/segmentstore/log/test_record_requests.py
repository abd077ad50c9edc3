"""Requests of an owner for its log record: what is known afterwards, and what an answer that never comes means."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from headrace.metadata.container_log import ContainerLogRecords, LogWriteOutcome, StoredLog
from headrace.model.container_logs import LEDGERS_REPORTED_FROM, ContainerLog, LedgerStart, LogState, ReplicaId
from headrace.model.errors import CorruptError, HeadraceError, ThrottledError, UnavailableError
from headrace.ports.metadata_store import ItemRefusedError
from headrace.segmentstore.log import record_requests
from headrace.segmentstore.log.record_requests import RecordRequests, report_long_chain

pytestmark = pytest.mark.anyio

CONTAINER, EPOCH, SNAPSHOT = 3, 6, 5
MEMBERS = (ReplicaId(bytes(16)), ReplicaId(bytes([1]) * 16))
LOG = ContainerLog(3, LogState.OPEN, MEMBERS, (LedgerStart(EPOCH, 0),))


class Records:
    """The record of the container. `fails` is raised by each request; `answers` holds them until it is set."""

    def __init__(self, log: ContainerLog | None = LOG) -> None:
        self.stored = StoredLog(log, 4)
        self.fails: HeadraceError | None = None
        self.outcome = LogWriteOutcome.WRITTEN
        self.written: list[tuple[object, ...]] = []
        self.answers = threading.Event()
        self.answers.set()

    def _wait(self) -> None:
        self.answers.wait()
        if self.fails is not None:
            raise self.fails

    def read(self, container: int) -> StoredLog:
        assert container == CONTAINER
        self._wait()
        return self.stored

    def snapshot_epoch(self, container: int) -> int:
        assert container == CONTAINER
        return SNAPSHOT

    def write(self, *arguments: object) -> LogWriteOutcome:
        self._wait()
        self.written.append(arguments)
        return self.outcome


@pytest.fixture
def records() -> Records:
    return Records()


def requests_for(records: Records) -> RecordRequests:
    return RecordRequests(cast("ContainerLogRecords", records), CONTAINER, EPOCH)


async def test_record_is_written_over_what_was_read(records: Records):
    requests = requests_for(records)
    assert await requests.read() == StoredLog(LOG, 4)
    assert requests.past_before == 0
    assert await requests.write(LOG, 4) is LogWriteOutcome.WRITTEN
    assert await requests.write(LOG, 5) is LogWriteOutcome.WRITTEN
    assert records.written == [
        (CONTAINER, LOG, 4, EPOCH, StoredLog(LOG, 4)),
        (CONTAINER, LOG, 5, EPOCH, StoredLog(LOG, 5)),
    ]


async def test_record_that_was_not_written_is_not_known(records: Records):
    requests = requests_for(records)
    await requests.read()
    for records.outcome in (LogWriteOutcome.CONFLICT, LogWriteOutcome.CLAIM_LOST, LogWriteOutcome.UNKNOWN):
        assert await requests.write(LOG, 9) is records.outcome
        assert records.written[-1][-1] == StoredLog(LOG, 4)


async def test_log_without_a_record_has_a_past_before_its_snapshot():
    requests = requests_for(Records(None))
    assert await requests.read() == StoredLog(None, 4)
    assert requests.past_before == SNAPSHOT


@pytest.mark.parametrize("error", [ThrottledError("slow"), UnavailableError("away"), ItemRefusedError("refused")])
async def test_store_that_refuses_has_not_answered(records: Records, error: HeadraceError):
    records.fails = error
    assert await requests_for(records).read() is None


async def test_damaged_record_is_no_missing_answer(records: Records):
    records.fails = CorruptError("not a record")
    with pytest.raises(CorruptError):
        await requests_for(records).read()


async def test_answer_that_does_not_come_is_unknown(
    records: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(record_requests, "ANSWER_PATIENCE_S", 0.01)
    records.answers.clear()
    requests = requests_for(records)
    found = await requests.read(), await requests.write(LOG, 4)
    records.answers.set()  # the loop ends when its threads have
    assert found == (None, LogWriteOutcome.UNKNOWN)
    assert "event=log_record_not_read container=3" in caplog.text
    assert "event=log_record_not_written container=3 version=4" in caplog.text


@pytest.mark.parametrize(("ledgers", "is_long"), [(LEDGERS_REPORTED_FROM - 1, False), (LEDGERS_REPORTED_FROM, True)])
def test_long_chain_is_reported(ledgers: int, is_long: bool, caplog: pytest.LogCaptureFixture):
    log = ContainerLog(3, LogState.OPEN, MEMBERS, tuple(LedgerStart(each, each) for each in range(ledgers)))
    report_long_chain(CONTAINER, log)
    assert (f"event=log_chain_long container=3 ledgers={ledgers}" in caplog.text) is is_long


async def test_only_a_written_chain_is_reported(records: Records, monkeypatch: pytest.MonkeyPatch):
    reported: list[int] = []
    monkeypatch.setattr(record_requests, "report_long_chain", lambda container, _log: reported.append(container))
    requests = requests_for(records)
    for records.outcome in (LogWriteOutcome.CONFLICT, LogWriteOutcome.WRITTEN):
        await requests.write(LOG, 4)
    assert reported == [CONTAINER]
