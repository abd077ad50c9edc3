"""Clients of a real store that wants delegation tokens: expiry, revocation and missing permissions in traffic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from real_cluster import RealCluster, client_of, serve_functions
from token_clients import KEY, KEYS

from functions import token_wiring, wiring
from headrace.adapters.system_clock import SystemClock
from headrace.client import Headrace, ScalingPolicy, UnauthorizedError, delegation_tokens
from headrace.codec.delegation_tokens import TokenKey, TokenKeys
from headrace.controller.services.token_issue import DelegationTokens
from headrace.model.errors import HeadraceError

SCOPE, STREAM = "shop", "orders"
UPKEEP_S = 0.05


class _Keys:
    """Keys that a test replaces."""

    def __init__(self) -> None:
        self.now = KEYS

    def keys(self) -> TokenKeys:
        return self.now


class _ShiftedClock:
    """The system's clock, and `shift_ms` later."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.shift_ms = 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.shift_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


class World:
    """A cluster whose store uses `keys`. `clock` is that of the store, and at first of the controller."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys, self.clock = _Keys(), _ShiftedClock()
        self.controller_clock = self.clock
        self.cluster = RealCluster(self.clock, token_keys=self.keys)
        self.life_s = 600
        self.requests: list[str] = []
        serve_functions(self.cluster, monkeypatch)
        monkeypatch.setenv("HEADRACE_TOKENS", "required")
        monkeypatch.setattr(token_wiring, "delegation_tokens", self._issuer)

    def _issuer(self) -> DelegationTokens:
        return DelegationTokens(self.keys, self.controller_clock, self.life_s)

    @contextmanager
    def upkeep(self) -> Iterator[None]:
        """Runs what a store process runs each second, more often."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(UPKEEP_S):
                self.cluster.upkeep_tokens()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def revoke_all(self, number: int) -> None:
        """All tokens end at once; later ones have another key."""
        self.keys.now = TokenKeys((TokenKey(f"key-{number}", bytes([number]) * 32),))

    def close(self) -> None:
        self.cluster.close()
        wiring.forget_services()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def client(world: World) -> Iterator[Headrace]:
    with client_of(world.cluster) as headrace:
        headrace.admin.create_scope(SCOPE)
        headrace.admin.create_stream(SCOPE, STREAM, scaling=ScalingPolicy.fixed(2))
        yield headrace


def _fetches(client: Headrace, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The requests for tokens that a client sends from now on."""
    api, sent = client._core._api, []
    request = api.request

    async def note(method: str, path: str, **named: Any) -> dict[str, Any]:
        if path.endswith("/delegation-token"):
            sent.append((method, path))
        return await request(method, path, **named)

    monkeypatch.setattr(api, "request", note)
    return sent


def _write_and_read_while(
    client: Headrace, goes_on: Callable[[int], bool], large_every: int = 0, reader_client: Headrace | None = None
) -> int:
    """Writes numbered events with one key and reads them, until `goes_on` says no. All came once and in order."""
    read: list[int] = []
    opened = reader_client or client
    with client.writer(SCOPE, STREAM) as writer, opened.reader(SCOPE, STREAM) as reader:
        events, number = iter(reader), 0
        while goes_on(number):
            batch = [b"%d" % event_number for event_number in range(number, number + 50)]
            if large_every and number % large_every == 0:
                batch[7] += b" " * (9 << 20)
            acks = [writer.write(event, "one key") for event in batch]
            acks[-1].result(timeout_s=60)
            read += [int(next(events).event) for _ in batch]
            number += len(batch)
    assert read == list(range(number))
    return number


def test_large_events_and_scaling_with_tokens(client: Headrace) -> None:
    count = _write_and_read_while(client, lambda number: number < 200, large_every=100)
    replaced = [segment.segment_id for segment in client.admin.segments(SCOPE, STREAM)]
    client.admin.scale_stream(SCOPE, STREAM, seal=replaced, ranges=[(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
    assert count == 200
    with client.writer(SCOPE, STREAM) as writer:
        writer.write(b"200", "one key")
    with client.reader(SCOPE, STREAM, end=client.admin.stream_cut(SCOPE, STREAM)) as reader:
        assert [int(event.event) for event in reader] == list(range(201))


def test_a5_three_renewals_lose_and_repeat_nothing(
    world: World, client: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of one or two seconds. The store never refuses one: they are replaced before their end."""
    monkeypatch.setattr(delegation_tokens, "HELD_S_MIN", 0.1)
    world.life_s = 2
    with client_of(world.cluster) as reading, world.upkeep():
        written, read = _fetches(client, monkeypatch), _fetches(reading, monkeypatch)
        _write_and_read_while(client, lambda _: len(written) < 4 or len(read) < 4, reader_client=reading)
        assert world.cluster.store is not None
        assert sum(world.cluster.store.metrics.tokens_refused.values()) == 0


@pytest.mark.parametrize("ahead_s", [-50, 50])
def test_a5_fifty_seconds_between_clocks_refuse_no_token(
    world: World, client: Headrace, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """The controller's clock is so much ahead of those of the store and the client. Tokens live for 51 s."""
    monkeypatch.setattr(delegation_tokens, "HELD_S_MIN", 0.1)
    world.controller_clock, world.life_s = _ShiftedClock(), 51
    world.controller_clock.shift_ms = ahead_s * 1_000
    sent = _fetches(client, monkeypatch)
    with world.upkeep():
        _write_and_read_while(client, lambda number: number < 500 or (ahead_s < 0 and len(sent) < 4))
    assert world.cluster.store is not None
    assert sum(world.cluster.store.metrics.tokens_refused.values()) == 0


def test_a5_ended_tokens_lose_and_repeat_nothing(
    world: World, client: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the deployment runs ahead, so that clients learn of each end from the store."""
    sent = _fetches(client, monkeypatch)

    def goes_on(number: int) -> bool:
        if number % 300 == 150:
            world.clock.shift_ms += (world.life_s + 61) * 1000
        return number < 1200

    with world.upkeep():
        _write_and_read_while(client, goes_on)
    assert len(sent) >= 4
    assert world.cluster.store is not None
    assert world.cluster.store.metrics.tokens_refused["token_expired"] > 0


def test_a7_revoked_keys_lose_and_repeat_nothing(world: World, client: Headrace) -> None:
    def goes_on(number: int) -> bool:
        if number % 300 == 150:
            world.revoke_all(1 + number // 300)
        return number < 1200

    with world.upkeep():
        _write_and_read_while(client, goes_on, large_every=400)
    assert world.cluster.store is not None
    assert world.cluster.store.metrics.tokens_refused["token_expired"] > 0


def test_a_controller_that_hears_of_new_keys_late(world: World, client: Headrace) -> None:
    """Until then it issues tokens that the store refuses, and clients ask again after a while."""
    assert world.cluster.store is not None
    assert world.cluster.store.tokens is not None
    with client.writer(SCOPE, STREAM) as writer:
        writer.write(b"0", "key").result(timeout_s=60)
        old, world.keys.now = world.keys.now, TokenKeys((TokenKey("other", b"o" * 32),))
        world.cluster.upkeep_tokens()
        world.keys.now = old
        hears = threading.Timer(1.0, lambda: setattr(world.keys, "now", TokenKeys((TokenKey("other", b"o" * 32),))))
        hears.start()
        writer.write(b"1", "key").result(timeout_s=60)
        hears.join()
    with client.reader(SCOPE, STREAM, end=client.admin.stream_cut(SCOPE, STREAM)) as reader:
        assert [event.event for event in reader] == [b"0", b"1"]


def _allow_only_reading(client: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an IAM policy that allows GET does: the gateway answers by itself."""
    api = client._core._api
    request = api.request

    async def checked(method: str, path: str, **named: Any) -> dict[str, Any]:
        if method != "GET" and path.endswith("/delegation-token"):
            raise UnauthorizedError("status 403: User is not authorized to access this resource")
        return await request(method, path, **named)

    monkeypatch.setattr(api, "request", checked)


def test_permission_to_read_only(world: World, client: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.writer(SCOPE, STREAM) as writer:
        writer.write(b"event", "key")
    with client_of(world.cluster) as reading:
        _allow_only_reading(reading, monkeypatch)
        with reading.reader(SCOPE, STREAM) as reader:
            assert next(iter(reader)).event == b"event"
        (part,) = reading.segment_ranges(SCOPE, STREAM)
        with reading.range_reader(part, read_history_from="segment_store") as ranges:
            assert [event.event for event in ranges] == [b"event"]
        refused: HeadraceError | None = None
        try:
            with reading.writer(SCOPE, STREAM) as writer:
                writer.write(b"refused", "key")
        except HeadraceError as error:
            refused = error
        assert isinstance(refused, UnauthorizedError)
        assert "no permission to write to stream shop/orders" in refused.message
        assert "POST /v1/scopes/shop/streams/orders/delegation-token" in refused.message
        assert refused.details == {"scope": "shop", "stream": "orders", "access": "READ_UPDATE"}


def test_a_store_refuses_what_a_token_does_not_allow(world: World, client: Headrace) -> None:
    """A client that uses a token for reading to write: the store has the last word."""
    assert KEY in world.keys.now.keys
    tokens = client._core.admin.delegation_tokens
    issue = tokens._api.request

    async def always_reading(method: str, path: str, **named: Any) -> dict[str, Any]:
        return await issue("GET" if path.endswith("/delegation-token") else method, path, **named)

    tokens._api.request = always_reading
    message = "refuses the token that the controller has issued"
    with pytest.raises(UnauthorizedError, match=message) as refused, client.writer(SCOPE, STREAM) as writer:
        writer.write(b"refused", "key")
    assert refused.value.specific_code == "token_invalid"


def test_tokens_that_are_turned_off(world: World, client: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """First at the controller, then at the store, as a deployment does. Clients go on, and ask for no more tokens."""
    monkeypatch.setattr(delegation_tokens, "HELD_S_MIN", 0.1)
    world.life_s, off_at = 2, 100

    def goes_on(number: int) -> bool:
        if number == off_at:
            monkeypatch.setenv("HEADRACE_TOKENS", "off")
            monkeypatch.setattr(token_wiring, "delegation_tokens", lambda: DelegationTokens(None, world.clock, 600))
            world.cluster.stop_store()
            world.cluster.token_keys = None
            world.cluster.start_store()
        if number > off_at:
            time.sleep(0.001)  # else the number of writes ends before the token does, on a fast machine
        return number <= off_at or (number < 100_000 and client.admin.delegation_tokens.demanded)

    _write_and_read_while(client, goes_on)
    assert not client.admin.delegation_tokens.demanded
