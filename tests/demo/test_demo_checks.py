"""The checks of the demo can fail: they see a lost, doubled, changed or reordered event, and a wrong figure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from demo.__main__ import DemoError, _compare
from demo.flights import Delays, expected_delays, flight_events
from demo.key_order import KeyedDigest


def _flights(rows: list[dict[str, object]]) -> pd.DataFrame:
    columns = {"tailnum": None, "carrier": "AA", "dep_time": float("nan"), "arr_time": float("nan")}
    columns |= {"dep_delay": float("nan"), "arr_delay": float("nan"), "air_time": float("nan"), "hour": 5}
    return pd.DataFrame([columns | row for row in rows])


def test_events_keep_whole_numbers_and_nulls_and_have_a_key():
    flights = _flights([{"tailnum": "N1", "dep_delay": -3.0}, {"tailnum": float("nan"), "carrier": "UA"}])
    first, second = flight_events(flights)
    assert first.routing_key == "N1"
    assert json.loads(first.payload)["dep_delay"] == -3
    assert b"-3.0" not in first.payload
    assert second.routing_key == "UA"
    assert json.loads(second.payload)["tailnum"] is None


def test_a_flight_without_delay_is_counted_but_not_averaged():
    flights = _flights([{"dep_delay": 10.0, "arr_delay": 1.0}, {"dep_delay": 20.0}, {"carrier": "ZZ"}])
    assert expected_delays(flights, "carrier") == {"AA": Delays(2, 15.0, 1.0), "ZZ": Delays(1, None, None)}


def _digest(*events: tuple[str, bytes]) -> KeyedDigest:
    digest = KeyedDigest()
    for key, payload in events:
        digest.add(key, payload)
    return digest


WRITTEN = (("a", b"1"), ("b", b"2"), ("a", b"3"))


def test_order_between_keys_does_not_matter():
    assert _digest(*WRITTEN).differing_keys(_digest(WRITTEN[1], WRITTEN[0], WRITTEN[2])) == []


@pytest.mark.parametrize(
    "read",
    [
        (WRITTEN[2], WRITTEN[1], WRITTEN[0]),
        WRITTEN[:2],
        (*WRITTEN, WRITTEN[2]),
        (WRITTEN[0], WRITTEN[1], ("a", b"4")),
        (("a", b"13"), WRITTEN[1]),
    ],
    ids=["reordered", "lost", "doubled", "changed", "joined"],
)
def test_a_difference_within_a_key_is_seen(read: tuple[tuple[str, bytes], ...]):
    assert _digest(*WRITTEN).differing_keys(_digest(*read)) == ["a"]


def _results(**changes: object) -> pd.DataFrame:
    row = {"carrier": "AA", "events": 2, "mean_dep_delay": 15.0, "mean_arr_delay": 1.0} | changes
    return pd.DataFrame([row])


def test_right_figures_pass():
    _compare(_results(), {"AA": Delays(2, 15.0, 1.0)}, "carrier")


@pytest.mark.parametrize(
    "wrong", [{"events": 3}, {"mean_dep_delay": 15.00001}, {"mean_arr_delay": None}, {"carrier": "UA"}], ids=str
)
def test_wrong_figures_fail(wrong: dict[str, object]):
    with pytest.raises(DemoError):
        _compare(_results(**wrong), {"AA": Delays(2, 15.0, 1.0)}, "carrier")


def test_a_missing_jdk_is_one_clear_line(tmp_path: Path):
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tmp_path)}
    command = [sys.executable, "-m", "demo", "--directory", str(tmp_path / "demo")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    assert "JDK 17" in line
    assert not (tmp_path / "demo").exists()
