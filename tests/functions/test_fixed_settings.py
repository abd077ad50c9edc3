"""API functions of a deployment whose fixed settings were changed refuse every request, and look only once."""

from __future__ import annotations

from typing import Any

import pytest
from stream_world import Calls, WatchedStore

from functions import wiring
from headrace import topology
from headrace.metadata.fixed_settings import FixedSetting, check_fixed_setting


@pytest.fixture
def calls(world: Any, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Counts the requests of functions to the metadata store."""
    calls = Calls()
    watched = WatchedStore(world.store, calls)
    monkeypatch.setattr(wiring, "metadata_store", lambda: watched)
    wiring.forget_services()
    return calls


@pytest.fixture
def recorded(world: Any) -> None:
    """The deployment has begun with its present settings."""
    check_fixed_setting(world.store, FixedSetting.CONTAINERS, topology.CONTAINER_COUNT)
    check_fixed_setting(world.store, FixedSetting.BUCKETS, topology.BUCKET_COUNT)


@pytest.mark.usefixtures("recorded")
def test_a_process_asks_once(call: Any, calls: Calls):
    counts = []
    for _ in range(3):
        assert call("GET", "/v1/scopes").status == 200
        counts.append(dict(calls.counts))
        calls.counts.clear()
    assert counts == [{"read": 1, "query": 1}, {"query": 1}, {"query": 1}]


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("setting", FixedSetting)
def test_a_changed_setting_is_refused(call: Any, world: Any, monkeypatch: pytest.MonkeyPatch, setting: FixedSetting):
    match setting:
        case FixedSetting.CONTAINERS:
            began_with = topology.CONTAINER_COUNT
            monkeypatch.setenv("HEADRACE_CONTAINER_COUNT", "9")
        case FixedSetting.BUCKETS:
            began_with = topology.BUCKET_COUNT
            monkeypatch.setattr(topology, "BUCKET_COUNT", 9)
    wiring.forget_services()  # as in a process that has just started
    before = world.contents()
    for _ in range(2):
        answer = call("POST", "/v1/scopes", {"scopeName": "s"})
        assert (answer.status, answer.code) == (503, "setting_changed")
        assert f"began with {began_with} {setting}, and is configured for 9" in answer.body["error"]["message"]
    assert world.contents() == before
    monkeypatch.undo()


def test_a_setting_that_is_recorded_later_is_found(call: Any, world: Any, calls: Calls):
    """A function that may only read records nothing: ticks and stores do."""
    assert call("GET", "/v1/scopes").status == 200
    assert set(calls.counts) == {"read", "query"}
    check_fixed_setting(world.store, FixedSetting.BUCKETS, topology.BUCKET_COUNT + 1)
    assert call("GET", "/v1/scopes").code == "setting_changed"
