"""`headrace up --secure`: clients without a setting, stores that die, and a stack that was plain before."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.client import (
    Headrace,
    ReaderGroupConfiguration,
    ScalingPolicy,
    TlsOptions,
    UnavailableError,
    connect,
)
from headrace.local.running import running_stack
from headrace.model.reader_groups import GroupStream
from headrace.wire.connections.blocking import BlockingConnection

SCOPE, STREAM = "shop", "orders"


def written(headrace: Headrace, first: int, count: int) -> None:
    with headrace.writer(SCOPE, STREAM) as writer:
        for number in range(first, first + count):
            writer.write(b"%d" % number, routing_key=str(number))


def read(headrace: Headrace) -> list[int]:
    with headrace.reader(SCOPE, STREAM, end=headrace.admin.stream_cut(SCOPE, STREAM)) as reader:
        return sorted(int(event.event) for event in reader)


def store_of(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = state["segmentStores"][0]
    return found


def test_a1_everything_works_without_a_setting(tmp_path: Path):
    with (
        running_stack(tmp_path, segment_stores=3, secure=True) as state,
        connect(state["endpoints"]["http"]) as headrace,
    ):
        headrace.admin.create_scope(SCOPE)
        headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(2))
        written(headrace, 0, 100)
        headrace.admin.scale_stream(SCOPE, STREAM, seal=[0], ranges=[(0.0, 0.25), (0.25, 0.5)])
        written(headrace, 100, 100)
        with headrace.transactional_writer(SCOPE, STREAM) as writer:
            transaction = writer.begin()
            transaction.write(b"200", routing_key="200")
            transaction.commit(wait=True)
        configuration = ReaderGroupConfiguration((GroupStream(SCOPE, STREAM),))
        headrace.admin.reader_groups.create(SCOPE, "billing", configuration)
        with headrace.reader_group(SCOPE, "billing") as group, group.reader("first") as reader:
            assert reader.read_batch(timeout_s=60) is not None
        assert read(headrace) == list(range(201))
        store = store_of(state)
        with pytest.raises(UnavailableError):
            BlockingConnection(store["host"], store["port"])
        assert len(headrace.admin.trust.authorities().certificates) == 1
        os.kill(store["pid"], signal.SIGKILL)
        written(headrace, 201, 50)
        assert read(headrace) == list(range(251))


def test_a_plain_stack_becomes_secure(tmp_path: Path):
    with running_stack(tmp_path, segment_stores=1) as state, connect(state["endpoints"]["http"]) as headrace:
        headrace.admin.create_scope(SCOPE)
        headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(1))
        written(headrace, 0, 10)
    for _ in range(2):  # another authority each time
        with running_stack(tmp_path, segment_stores=1, secure=True) as state:
            with connect(state["endpoints"]["http"]) as headrace:
                written(headrace, len(read(headrace)), 10)
                pem = headrace.admin.trust.authorities().pem
            (tmp_path / "ca.pem").write_text(pem)
            with connect(state["endpoints"]["http"], tls=TlsOptions(ca_file=tmp_path / "ca.pem")) as headrace:
                assert read(headrace) == list(range(len(read(headrace))))
    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert "PRIVATE KEY" not in logs
    with running_stack(tmp_path, segment_stores=1) as state, connect(state["endpoints"]["http"]) as headrace:
        assert read(headrace) == list(range(30))
