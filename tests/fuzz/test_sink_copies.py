"""A copy with the parts of the connector that need no Spark, under kills: each event once. See `fuzz spark-sink`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuzz.sink_faults import Fault
from fuzz.sink_stack import sink_stack
from fuzz.spark_engines import WITHOUT_SPARK, Engine
from fuzz.spark_sink import Plan, copy_under_faults

FIRST_RUN = [
    Fault("store", "append", 1),
    Fault("controller-before-decision", "commit", 2, is_before=True),
    Fault("driver-after-commit", "commit", 3),
]
SECOND_RUN = [Fault("split", "commit", 1, 0.01), Fault("truncate", "commit", 2, is_before=True)]


@pytest.mark.nightly
def test_a_copy_survives_kills_and_changes(tmp_path: Path) -> None:
    (tmp_path / "query").mkdir()
    plan = Plan("sink", [FIRST_RUN, SECOND_RUN], is_ordered=True, fails_tasks=True)
    with sink_stack(tmp_path) as stack:
        copied = copy_under_faults(stack, Engine(WITHOUT_SPARK, Path(sys.executable)), "s", tmp_path / "query", plan)
    assert copied.runs == 2
    wanted = ("store", "controller-before-decision", "driver-after-commit", "recognised-replay", "split", "truncate")
    assert [copied.happened[name] for name in wanted] == [1] * len(wanted)
    assert copied.happened["failed-task"] > 0
