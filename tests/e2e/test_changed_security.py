"""Each combination of TLS and tokens, on a stack that changes from each to the next while one client goes on."""

from __future__ import annotations

import threading
from itertools import product
from pathlib import Path

import pytest
from changing_stack import changing_stack

from headrace.client import GroupStream, Headrace, HeadraceError, ReaderGroupConfiguration, ScalingPolicy, connect
from headrace.model.tls_modes import TlsMode

PER_STEP = 40


def use(headrace: Headrace, step: int) -> list[bytes]:
    """What programs do, in streams of the step; a table and a group among it. Returns what was written."""
    events = [b"%d" % number for number in range(step * PER_STEP, (step + 1) * PER_STEP)]
    stream, half = f"orders-{step}", PER_STEP // 2
    headrace.admin.create_stream("shop", stream, scaling=ScalingPolicy.fixed(2))
    with headrace.writer("shop", stream) as writer:
        writer.write_batch(events[:half], [str(number % 3) for number in range(half)])
    with headrace.transactional_writer("shop", stream) as writer:
        transaction = writer.begin()
        for event in events[half:]:
            transaction.write(event, routing_key="key")
        transaction.commit(wait=True)
    headrace.admin.reader_groups.create("shop", stream, ReaderGroupConfiguration((GroupStream("shop", stream),)))
    read: list[bytes] = []
    with headrace.reader_group("shop", stream) as group, group.reader("reader") as reader:
        while len(read) < PER_STEP:
            batch = reader.read_batch(timeout_s=60)
            assert batch is not None
            read += batch.events
    assert sorted(read) == sorted(events)
    return events


def read_outside(url: str, stream: str) -> list[bytes]:
    """What a client outside the network of the stores reads: it comes through other ports."""
    with connect(url, network="external") as headrace:
        end = headrace.admin.stream_cut("shop", stream)
        with headrace.reader("shop", stream, start="earliest", end=end) as reader:
            return [each.event for each in reader]


@pytest.mark.nightly
def test_a1_each_combination_of_modes_serves_a_client(tmp_path: Path) -> None:
    """TLS also goes off again here: one store has no other that could refuse it."""
    combinations = list(product(TlsMode, (False, True)))
    with (
        changing_stack(tmp_path / "data", segment_stores=1, bridge=True) as stack,
        connect(stack.url) as headrace,
    ):
        port = stack.state["endpoints"]["grpc"].rpartition(":")[2]
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "all", scaling=ScalingPolicy.fixed(2))
        written: list[bytes] = []
        with headrace.writer("shop", "all") as writer, headrace.reader("shop", "all", start="earliest") as reader:
            for step, (tls, tokens) in enumerate(combinations):
                stack.change(tls, tokens=tokens)
                host = "tls://localhost" if tls.accepts_tls else "tcp://127.0.0.1"
                assert stack.state["endpoints"]["grpc"] == f"{host}:{port}"
                assert bool(stack.state["externalPorts"]) == (tls is TlsMode.REQUIRED)
                events = use(headrace, step)
                if tls is TlsMode.REQUIRED:
                    assert sorted(read_outside(stack.url, f"orders-{step}")) == sorted(events)
                writer.write_batch(events, ["key"] * len(events))
                written += events
                read: list[bytes] = []
                while len(read) < len(events):
                    batch = reader.read_batch(timeout_s=60)
                    assert batch is not None
                    read += batch.events
                assert read == events
            end = headrace.admin.stream_cut("shop", "all")
            with headrace.reader("shop", "all", start="earliest", end=end) as again:
                assert [each.event for each in again] == written
    logs = "".join(path.read_text() for path in (tmp_path / "data").rglob("*.log"))
    # A token is a JSON Web Token: its head begins with `{"` in base64.
    assert [word for word in ("eyJ", "PRIVATE KEY") if word in logs] == []


def write_as_new_client(url: str) -> bool:
    """Returns whether the stores demand tokens of it."""
    with connect(url) as client, client.writer("shop", "all") as writer:
        writer.write_batch([b"event"] * 8, [str(number) for number in range(8)])
        writer.flush(60)
        return client.admin.delegation_tokens.demanded


@pytest.mark.nightly
def test_tokens_go_off_without_refusing_a_new_client(tmp_path: Path) -> None:
    """A new client asks the controller for a token if a store demands one, and stores of both kinds run meanwhile."""
    with changing_stack(tmp_path / "data", segment_stores=3) as stack, connect(stack.url) as headrace:
        headrace.admin.create_scope("shop")
        headrace.admin.create_stream("shop", "all", scaling=ScalingPolicy.fixed(4))
        stack.change(TlsMode.OFF, tokens=True)
        assert write_as_new_client(stack.url)
        changed, failures = threading.Event(), list[Exception]()

        def write_until_changed() -> None:
            try:
                while not changed.is_set():
                    write_as_new_client(stack.url)
            except HeadraceError as error:
                failures.append(error)

        clients = threading.Thread(target=write_until_changed)
        clients.start()
        try:
            stack.change(TlsMode.OFF, tokens=False)
        finally:
            changed.set()
            clients.join()
        assert failures == []
        assert not write_as_new_client(stack.url)
