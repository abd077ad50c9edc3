"""One change of the ensemble at a time, and what is written while its outcome is not known."""

from __future__ import annotations

import pytest
from takeovers import LOG, OWN, B, C, D

from headrace.model.container_logs import Ensemble, LedgerStart
from headrace.replication.bounds import WriterBounds
from headrace.replication.effects import ReadRecord, WriteRecord, WriterEffect
from headrace.replication.ensemble_change import ChangePhase, EnsembleChange

BOUNDS = WriterBounds(record_retry_ms=200, change_patience_ms=5_000)
VERSION, EPOCH = 7, 6
WANTED = Ensemble((OWN, B, D))
BEGAN = 1_000


def change() -> EnsembleChange:
    made = EnsembleChange(LOG, VERSION, EPOCH, BOUNDS)
    made.begin(WANTED, BEGAN)
    return made


def advance(
    made: EnsembleChange, now_ms: int, *, holds: int = 20, truncated: int = 12, stalls: bool = False
) -> list[WriterEffect]:
    return made.advance(holds, 20, truncated, now_ms, stalls=stalls)


def written_members(effects: list[WriterEffect]) -> tuple[object, ...]:
    (effect,) = effects
    assert isinstance(effect, WriteRecord)
    return effect.log.members


def test_nothing_is_written_without_a_change():
    made = EnsembleChange(LOG, VERSION, EPOCH, BOUNDS)
    assert advance(made, 0) == advance(made, 10**9, stalls=True) == []
    assert made.phase is ChangePhase.NONE
    assert made.wanted is None


def test_the_record_waits_for_what_is_acknowledged():
    made = change()
    assert advance(made, BEGAN, holds=19) == []
    assert made.wanted == WANTED
    assert not made.is_asking
    assert advance(made, BEGAN, holds=20) == [WriteRecord(LOG.with_members(WANTED.members, 12), VERSION, EPOCH)]
    assert made.is_asking
    assert advance(made, BEGAN) == [], "the request is under way"
    made.written(VERSION + 1)
    assert (made.phase, made.wanted, made.version) == (ChangePhase.NONE, None, VERSION + 1)
    assert made.current == WANTED
    assert made.log.truncated_before == 12


def test_a_change_that_gets_nowhere_is_given_up():
    made = change()
    assert advance(made, BEGAN + BOUNDS.change_patience_ms - 1, holds=0) == []
    assert made.wanted == WANTED
    assert advance(made, BEGAN + BOUNDS.change_patience_ms, holds=0) == []
    assert (made.phase, made.wanted) == (ChangePhase.NONE, None)
    made.begin(Ensemble((OWN, B)), BEGAN + 6_000)
    assert made.wanted == Ensemble((OWN, B))


def test_an_unknown_write_is_repeated_under_its_version():
    made = change()
    first = advance(made, BEGAN)
    made.unknown(BEGAN + 50)
    assert advance(made, BEGAN + 50 + BOUNDS.record_retry_ms - 1, truncated=15) == []
    assert advance(made, BEGAN + 50 + BOUNDS.record_retry_ms, truncated=15) == first
    assert made.wanted == WANTED, "both ensembles count until a higher version is seen"


def test_an_unknown_change_that_stalls_is_written_back():
    made = change()
    advance(made, BEGAN)
    made.unknown(BEGAN + 10)
    early = BEGAN + BOUNDS.change_patience_ms - 1
    assert written_members(advance(made, early, stalls=True)) == WANTED.members
    made.unknown(early)
    late = early + BOUNDS.record_retry_ms
    assert written_members(advance(made, late, stalls=False)) == WANTED.members, "it holds up nothing"
    made.unknown(late)
    back_ms = late + BOUNDS.record_retry_ms
    assert advance(made, back_ms, truncated=17, stalls=True) == [
        WriteRecord(LOG.with_members(LOG.members, 17), VERSION, EPOCH)
    ]
    made.unknown(back_ms)
    again = advance(made, back_ms + BOUNDS.record_retry_ms, truncated=19, stalls=True)
    assert again == [WriteRecord(LOG.with_members(LOG.members, 17), VERSION, EPOCH)], "patience begins again"
    made.written(VERSION + 1)
    assert made.current.members == LOG.members


def test_patience_counts_to_the_millisecond():
    made = change()
    advance(made, BEGAN)
    made.unknown(BEGAN)
    assert written_members(advance(made, BEGAN + BOUNDS.change_patience_ms, stalls=True)) == LOG.members


def test_only_a_higher_version_ends_the_change():
    made = change()
    advance(made, BEGAN)
    assert made.conflict() == [ReadRecord()]
    assert made.is_asking
    assert advance(made, BEGAN + 10_000, stalls=True) == [], "the read is under way"
    made.record_read(LOG, VERSION, BEGAN + 20)
    assert made.phase is ChangePhase.UNKNOWN
    assert made.wanted == WANTED
    assert advance(made, BEGAN + 20 + BOUNDS.record_retry_ms - 1) == []
    assert advance(made, BEGAN + 20 + BOUNDS.record_retry_ms)
    made.conflict()
    seen = LOG.with_members((OWN, C), 10)
    made.record_read(seen, VERSION + 2, BEGAN + 500)
    assert (made.log, made.version, made.phase, made.wanted) == (seen, VERSION + 2, ChangePhase.NONE, None)


@pytest.mark.parametrize("truncated", [10, 14])
def test_the_record_gets_the_truncation_point(truncated: int):
    made = change()
    (effect,) = advance(made, BEGAN, truncated=truncated)
    assert isinstance(effect, WriteRecord)
    assert effect.log.truncated_before == truncated
    assert effect.log.ledgers == (LedgerStart(5, 10),)


def test_a_conflict_is_a_read():
    made = change()
    assert advance(made, BEGAN)
    assert made.conflict() == [ReadRecord()]
    assert made.phase is ChangePhase.READING
