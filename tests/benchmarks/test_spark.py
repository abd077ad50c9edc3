"""The benchmark of the Spark connector: what it writes is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.settings import AppendLoad
from benchmarks.spark import EVENTS_PER_WRITE, WORKLOADS, Workload, columns_of, write_files


@pytest.mark.parametrize("text", [False, True])
def test_all_events_have_the_size_of_the_load(text: bool):
    workload = Workload("some", AppendLoad(100, EVENTS_PER_WRITE + 7), text=text)
    columns = list(columns_of(workload))
    assert [len(column) for column in columns] == [EVENTS_PER_WRITE, 7]
    assert {len(event) for column in columns for event in column.to_pylist()} == {100}
    assert columns[0][0] != columns[1][0]


def test_events_of_text_are_json():
    for event in next(columns_of(Workload("some", AppendLoad(100, 20), text=True))).to_pylist():
        assert set(json.loads(event)) == {"id", "text"}


def test_files_hold_the_events_of_the_stream(tmp_path: Path):
    for text in (False, True):
        workload = Workload("some", AppendLoad(100, 1_000), text=text)
        write_files(tmp_path, workload)
        (column,) = columns_of(workload)
        directory = tmp_path / workload.stream
        if text:
            lines = b"".join(file.read_bytes() for file in directory.iterdir()).splitlines()
            assert sorted(lines) == sorted(column.to_pylist())
        else:
            assert pq.read_table(directory)["event"].combine_chunks() == column


def test_workloads_have_streams_of_their_own():
    assert len({workload.stream for workload in WORKLOADS}) == len(WORKLOADS)
    assert all(isinstance(next(columns_of(workload)), pa.BinaryArray) for workload in WORKLOADS)
