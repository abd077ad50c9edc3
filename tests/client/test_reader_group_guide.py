"""The Python examples of the guide on reader groups, each run against everything real but AWS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_cluster import WorkingQueue

from functions import wiring
from headrace.client import Headrace, ScalingPolicy

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "using" / "reader-groups.md"


def test_examples_of_the_guide(
    headrace: Headrace,
    request_queue: WorkingQueue,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(wiring, "request_queue", lambda: request_queue)
    headrace.admin.create_stream("shop", "orders", scaling=ScalingPolicy.fixed(1))
    with headrace.writer("shop", "orders") as writer:
        writer.write_batch([b"one order", b"the last order"], "customer-7")

    @contextmanager
    def connect() -> Iterator[Headrace]:
        yield headrace

    monkeypatch.setattr("headrace.client.connect", connect)
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(examples) == 4
    for example in examples:
        exec(compile(example, str(GUIDE), "exec"), {})  # noqa: S102 - text of this project
    printed = capsys.readouterr().out.splitlines()
    assert "orders 0 0 b'one order'" in printed
    assert "{'tea': 4}" in printed
