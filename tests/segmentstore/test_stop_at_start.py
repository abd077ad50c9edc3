"""A store that is told to stop while it reads its journal: the files stay open until the scan has ended."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from store_process import PROCESS_WAIT_S as WAIT_S

from headrace.adapters.disk import DiskJournalDisk
from headrace.model.errors import UnavailableError
from headrace.segmentstore.log.journal.journal_scan import Record, RecordScan
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers
from segmentstore_fargate import __main__ as main_module
from segmentstore_fargate.config import StoreConfig
from segmentstore_fargate.layout import settle_layout
from segmentstore_fargate.wiring import SegmentStoreProcess

pytestmark = pytest.mark.anyio


async def test_a_store_that_reads_its_journal_can_be_stopped(aws, config, monkeypatch, caplog):
    """The files stay open as long as they are read, the journal is as it was, and its lock is free."""
    payloads = [bytes([number]) * 100 for number in range(20)]
    _write_journal(config, payloads)
    ended: list[str] = []
    honest_start, honest_iter = Journal.start, RecordScan.__iter__

    process, loop = SegmentStoreProcess(config, {}), asyncio.get_running_loop()
    closing = threading.Event()

    def close(self: Journal, honest: Callable[[Journal], None] = Journal.close) -> None:
        closing.set()
        honest(self)

    def stopped(self: RecordScan) -> Iterator[Record]:
        for record in honest_iter(self):
            yield record
            if not closing.is_set():
                loop.call_soon_threadsafe(process.request_stop)
                assert closing.wait(WAIT_S)
                while not process._journal._closing:
                    time.sleep(0)

    def start(self: Journal) -> None:
        try:
            honest_start(self)
        except Exception as error:
            ended.append(repr(error))
            raise
        ended.append("it was read")

    monkeypatch.setattr(Journal, "close", close)
    monkeypatch.setattr(Journal, "start", start)
    monkeypatch.setattr(RecordScan, "__iter__", stopped)
    assert (await asyncio.wait_for(main_module.serve(process, config), WAIT_S)) == 0
    assert ended == [repr(UnavailableError("the journal was closed while its files were being read"))]
    assert not any(record.exc_info for record in caplog.records)
    monkeypatch.undo()
    assert _read_journal(config) == payloads


def _opened_journal(config: StoreConfig) -> tuple[Journal, DiskJournalDisk]:
    disk = DiskJournalDisk(config.journal_dir)
    journal = Journal(disk, lambda: 1, lambda call: call(), file_bytes=config.journal_file_bytes)
    journal.start()
    return journal, disk


def _write_journal(config: StoreConfig, payloads: list[bytes]) -> None:
    settle_layout(config.data_dir, config.layout, config.copies)
    journal, disk = _opened_journal(config)
    ledger = OneCopyLedgers(journal).open(0, 0)
    for payload in payloads:
        ledger.append([payload], lambda error: None)
    journal.close()
    disk.close()


def _read_journal(config: StoreConfig) -> list[bytes]:
    journal, disk = _opened_journal(config)
    payloads = [bytes(entry.payload) for entry in OneCopyLedgers(journal).open(0, 1).recover()]
    journal.close()
    disk.close()
    return payloads
