"""The power goes at every step of a journal that copies old entries forward: nothing acknowledged is lost, ever."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from fuzz.power_cuts import Replay, Survivor, Trace, TracedPorts
from headrace.adapters.memory.chunk_storage import MemoryChunkStorage
from headrace.adapters.memory.metadata_store import MemoryMetadataStore
from headrace.segmentstore.log.journal import file_copies
from headrace.segmentstore.log.journal.journal_thread import Journal
from headrace.segmentstore.log.one_copy_ledgers import OneCopyLedgers

CONTAINERS = 4
FILE_BYTES = 12 << 10
COPY_FROM_FILES = 3
WAIT_S = 20


@dataclass
class Log:
    """What a container was told, and asked for, and at which step of the trace."""

    payloads: dict[int, bytes] = field(default_factory=dict)
    acknowledged_at: dict[int, int] = field(default_factory=dict)
    truncated_at: list[tuple[int, int]] = field(default_factory=list)

    def needed(self, step: int) -> list[int]:
        """The entries that must be there if the power goes after this step."""
        before = max((entry for entry, at in self.truncated_at if at <= step), default=0)
        return sorted(entry for entry, at in self.acknowledged_at.items() if at <= step and entry >= before)


def open_journal(disk, seed, copy_from_files=COPY_FROM_FILES):
    random = Random(seed)
    journal = Journal(
        disk,
        lambda: random.getrandbits(64),
        lambda call: call(),
        file_bytes=FILE_BYTES,
        copy_from_files=copy_from_files,
    )
    journal.start()
    return journal, OneCopyLedgers(journal)


class Load:
    """Containers of unlike pace, one of them nearly idle; each round ends when all of it is durable."""

    def __init__(self, trace: Trace, random: Random) -> None:
        self.logs = [Log() for _ in range(CONTAINERS)]
        self._trace = trace
        self._random = random

    def append(self, container, ledger) -> threading.Event:
        log, durable = self.logs[container], threading.Event()
        payload = self._random.randbytes(self._random.randint(1, 1500))
        entry = ledger.next_entry
        log.payloads[entry] = payload

        def done(error):
            assert error is None
            log.acknowledged_at[entry] = self._trace.position
            durable.set()

        assert ledger.append([payload], done) == entry
        return durable

    def truncate(self, container, ledger, before) -> None:
        self.logs[container].truncated_at.append((before, self._trace.position))
        ledger.truncate(before)

    def live(self, journal, ledgers, epoch, rounds) -> None:
        random = self._random
        opened = [ledgers.open(container, epoch) for container in range(CONTAINERS)]
        readings = [ledger.recover() for ledger in opened[:2]]
        for number in range(rounds):
            containers = random.choices(range(CONTAINERS), [1, 4, 12, 3], k=random.randint(1, 4))
            waiting = [self.append(container, opened[container]) for container in containers]
            for durable in waiting:
                assert durable.wait(WAIT_S)
            if number == rounds // 2:
                readings.clear()
                self.logs[3].truncated_at.append((opened[3].next_entry + 1, self._trace.position))
                ledgers.forget(3)
                opened[3] = ledgers.open(3, epoch)
            for container in (1, 2):
                ledger = opened[container]
                if random.random() < 0.3:
                    self.truncate(container, ledger, max(0, ledger.next_entry - 3))


def check(survivor, load, step, seed):
    """Recover twice; the second time after another power cut, while the first recovery's copying had begun."""
    disk, found_before = survivor.disk, None
    for attempt in range(2):
        journal, ledgers = open_journal(disk, seed + attempt)
        ledgers_found = []
        for container, log in enumerate(load.logs):
            ledger = ledgers.open(container, 99 + attempt)
            found = {each.entry: bytes(each.payload) for each in ledger.recover()}
            assert all(after > before for before, after in pairwise(found)), "not in order"
            assert all(log.payloads[entry] == payload for entry, payload in found.items()), "something else"
            missing = [entry for entry in log.needed(step) if entry not in found]
            assert not missing, f"container {container} lost {missing} at step {step}"
            ledgers_found.append(found)
        if found_before is not None:
            assert ledgers_found == found_before, "a power cut after a recovery took back what it had told"
        found_before = ledgers_found
        again = disk.cut_power(seed)
        journal.close()
        disk = again


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_nothing_is_lost_whenever_the_power_goes(seed, monkeypatch):
    monkeypatch.setattr(file_copies, "PORTION_BYTES", 1500)  # commits of clients come between
    random = Random(seed)
    trace = Trace(Survivor())
    disk = trace.origin.disk.cut_power(0)
    load = Load(trace, random)
    copied = 0
    for life in range(3):
        ports = TracedPorts(trace, disk, MemoryMetadataStore(), MemoryChunkStorage())
        journal, ledgers = open_journal(ports, seed * 10 + life)
        load.live(journal, ledgers, life, 40)
        journal.close()
        copied += journal.copied_bytes
    assert copied > 0
    replay = Replay(trace)
    for step in range(trace.position + 1):
        replay.advance(step)
        check(replay.cut(seed + step), load, step, step)
