"""The driver of a query is killed after the commit of the sink and before that of Spark. See also `fuzz spark-sink`."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from fuzz.sink_faults import Fault
from fuzz.sink_stack import sink_stack
from fuzz.spark_engines import Engine
from fuzz.spark_sink import Plan, copy_under_faults

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.xdist_group("spark")]


def test_a_killed_driver_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Its tasks fail at their first attempts, too, after they have written."""
    engine = Engine(pyspark.__version__[:3], Path(sys.executable))
    plan = Plan(engine.forms[0], [[Fault("driver-after-commit", "commit", 2)], []], fails_tasks=True)
    (tmp_path / "query").mkdir()
    with sink_stack(tmp_path) as stack:
        copied = copy_under_faults(stack, engine, "copies", tmp_path / "query", plan)
    assert copied.runs == 2
    assert copied.happened["driver-after-commit"] == copied.happened["recognised-replay"] == 1
    assert copied.happened["failed-task"] > 0
