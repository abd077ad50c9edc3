"""The environment of a function: typed, and clear about what is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from functions.environment import Environment, EnvironmentVariableError
from headrace import topology


def test_values_are_read_by_their_names():
    environment = Environment({"HEADRACE_METADATA_TABLE": "t", "HEADRACE_CONTAINER_COUNT": "3"})
    assert environment.metadata_table == "t"
    assert environment.container_count == 3


def test_the_container_count_defaults_to_the_topology():
    assert Environment({}).container_count == topology.CONTAINER_COUNT


@pytest.mark.parametrize(
    "name",
    [
        "metadata_table",
        "chunk_bucket",
        "requests_queue_url",
        "tables_queue_url",
        "commits_queue_url",
        "aborts_queue_url",
        "ticks_queue_url",
    ],
)
@pytest.mark.parametrize("value", [None, ""])
def test_missing_variable_is_named(name: str, value: str | None):
    variable = f"HEADRACE_{name.upper()}"
    with pytest.raises(EnvironmentVariableError, match=variable):
        getattr(Environment({} if value is None else {variable: value}), name)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
def test_invalid_container_count_is_refused(text: str):
    with pytest.raises(EnvironmentVariableError, match="HEADRACE_CONTAINER_COUNT"):
        _ = Environment({"HEADRACE_CONTAINER_COUNT": text}).container_count


def test_time_to_keep_completed_transactions_is_configurable():
    assert Environment({}).completed_transactions_kept_ms == 24 * 3600 * 1000
    named = Environment({"HEADRACE_COMPLETED_TRANSACTIONS_KEPT_S": "7200"})
    assert named.completed_transactions_kept_ms == 7_200_000


def test_buckets_are_as_many_as_the_deployment_says():
    program = "from headrace import topology; print(topology.BUCKET_COUNT, {t.buckets for t in topology.TICKS})"
    environment = os.environ | {"HEADRACE_BUCKET_COUNT": "32"}
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert finished.stdout == "32 {32, 1}\n"


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1.5"])
def test_invalid_bucket_count_is_refused(text: str):
    environment = os.environ | {"HEADRACE_BUCKET_COUNT": text}
    program = [sys.executable, "-c", "from headrace import topology"]
    finished = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert f"HEADRACE_BUCKET_COUNT is {text!r}: expected a whole number, at least 1" in finished.stderr
