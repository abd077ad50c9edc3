"""The record of a container's log: golden bytes and key, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from golden_records import GoldenRecords
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.container_log import (
    LOGS_FIRST,
    LOGS_LAST,
    container_log_body,
    container_log_key,
    decode_container_log,
    write_container_log,
)
from headrace.model.container_logs import (
    LEDGERS_MAX,
    REPLICA_ID_BYTES,
    ContainerLog,
    LedgerStart,
    LogState,
    ReplicaId,
    emptied,
)
from headrace.model.errors import CorruptError
from headrace.ports.metadata_store import BODY_BYTES_MAX, Create, Key, Replace

A, B, C = (ReplicaId(bytes([number]) * REPLICA_ID_BYTES) for number in (0x0A, 0xB0, 0xFF))
LOG = ContainerLog(3, LogState.OPEN, (A, B, C), (LedgerStart(12, 2041), LedgerStart(15, 9000)), 1800)
GOLDEN = {
    "format": 1,
    "copies": 3,
    "state": "OPEN",
    "members": ["0a" * 16, "b0" * 16, "ff" * 16],
    "ledgers": [[12, 2041], [15, 9000]],
    "truncated": 1800,
    "next": None,
}
GOLDEN_BYTES = (
    b'{"format":1,"copies":3,"state":"OPEN","members":["0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a",'
    b'"b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0","ffffffffffffffffffffffffffffffff"],'
    b'"ledgers":[[12,2041],[15,9000]],"truncated":1800,"next":null}'
)
EMPTY = {**GOLDEN, "state": "EMPTY", "members": [], "ledgers": [], "truncated": 9100, "next": 9100}


class TestContainerLog(GoldenRecords):
    shapes = {"container log": (LOG, container_log_body, decode_container_log, GOLDEN)}


def test_golden_bytes():
    assert json.dumps(container_log_body(LOG), separators=(",", ":")).encode() == GOLDEN_BYTES


def test_empty_log_names_its_next_entry():
    assert container_log_body(emptied(LOG, 9100)) == EMPTY
    assert decode_container_log(EMPTY) == emptied(LOG, 9100)
    assert decode_container_log({**EMPTY, "state": "LOST"}).state is LogState.LOST


def test_log_names_the_ledger_after_a_loss():
    log = replace(LOG, continued_at=LedgerStart(15, 9000))
    assert container_log_body(log) == {**GOLDEN, "continued": [15, 9000]}
    assert decode_container_log({**GOLDEN, "continued": [15, 9000]}) == log
    with pytest.raises(CorruptError):
        decode_container_log({**GOLDEN, "continued": [15]})


def test_one_member_may_be_left_of_three_copies():
    assert decode_container_log({**GOLDEN, "members": ["0a" * 16]}).members == (A,)


def test_log_without_copies_has_no_members():
    body = {**GOLDEN, "copies": 0, "members": []}
    assert container_log_body(decode_container_log(body)) == body
    with pytest.raises(CorruptError, match="1 members of 0 copies"):
        decode_container_log({**body, "members": ["0a" * 16]})


def test_key():
    assert container_log_key(7) == Key("cluster", "log/0007")
    assert LOGS_FIRST < "log/9999" < LOGS_LAST


def test_first_version_of_a_record_is_one():
    assert write_container_log(7, LOG, 0) == Create(container_log_key(7), GOLDEN, 1)
    assert write_container_log(7, LOG, 1) == Replace(container_log_key(7), GOLDEN, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"copies": 0},
        {"copies": 4},
        {"copies": True},
        {"state": "OPENED"},
        {"members": []},
        {"members": ["0a" * 16] * 2},
        {"members": ["0A" * 16, "b0" * 16]},
        {"members": ["0a" * 15, "b0" * 16]},
        {"members": [" " + "0a" * 16, "b0" * 16]},
        {"members": [7, "b0" * 16]},
        {"members": "0a" * 16},
        {"copies": 1},
        {"members": [f"{number:032x}" for number in range(4)]},
        {"ledgers": []},
        {"ledgers": [[12, 2041], [12, 9000]]},
        {"ledgers": [[12, 2041], [15, 2040]]},
        {"ledgers": [[12, 2041, 1]]},
        {"ledgers": [[12]]},
        {"ledgers": [[12, -1]]},
        {"ledgers": [["12", 0]]},
        {"ledgers": [[True, 0]]},
        {"ledgers": [[number, 0] for number in range(LEDGERS_MAX + 1)]},
        {"truncated": -1},
        {"truncated": 1.5},
        {"next": 9},
        {"state": "EMPTY", "next": 9},
    ],
)
def test_an_invalid_log_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_container_log(GOLDEN | change)


@pytest.mark.parametrize("change", [{"next": None}, {"next": -1}, {"members": ["0a" * 16]}, {"ledgers": [[1, 1]]}])
def test_an_invalid_empty_log_is_refused(change: dict[str, Any]):
    with pytest.raises(CorruptError):
        decode_container_log(EMPTY | change)


@st.composite
def logs(draw: st.DrawFn) -> ContainerLog:
    copies = draw(st.integers(1, 3))
    truncated_before = draw(st.integers(0, 2**63))
    if draw(st.booleans()):
        state = draw(st.sampled_from([LogState.EMPTY, LogState.LOST]))
        return ContainerLog(copies, state, (), (), truncated_before, draw(st.integers(0, 2**63)))
    ids = st.binary(min_size=REPLICA_ID_BYTES, max_size=REPLICA_ID_BYTES).map(ReplicaId)
    members = draw(st.lists(ids, min_size=1, max_size=copies, unique=True))
    epochs = sorted(draw(st.sets(st.integers(0, 2**40), min_size=1, max_size=5)))
    firsts = sorted(draw(st.lists(st.integers(0, 2**63), min_size=len(epochs), max_size=len(epochs))))
    ledgers = tuple(map(LedgerStart, epochs, firsts))
    return ContainerLog(copies, LogState.OPEN, tuple(members), ledgers, truncated_before)


@given(logs())
def test_each_log_comes_back(log: ContainerLog):
    assert decode_container_log(json.loads(json.dumps(container_log_body(log)))) == log


def test_the_largest_record_fits_into_the_metadata_store():
    ledgers = tuple(LedgerStart(2**53 + number, 2**62 + number) for number in range(LEDGERS_MAX))
    body = container_log_body(ContainerLog(3, LogState.OPEN, (A, B, C), ledgers, 2**62))
    assert len(json.dumps(body)) < BODY_BYTES_MAX
