"""Positions that a user types: before the head, behind the tail, of another stream, and names that lead elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.client import Headrace
from headrace.codec.stream_cut_text import stream_cut_text
from headrace.model.stream_cuts import StreamCut

Shell = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def stream(shell: Shell, headrace_scope: str) -> str:
    name = f"{headrace_scope}/t"
    assert shell(f"headrace stream create {name} --segments 1")[0] == 0
    assert shell(f"seq 1 5 | headrace event write {name}")[:2] == (0, "5 events written\n")
    return name


def test_a_position_beyond_the_tail_is_refused(
    shell: Shell, headrace_client: Headrace, headrace_scope: str, stream: str
):
    tail = headrace_client.admin.stream_cut(headrace_scope, "t")
    ((segment, offset),) = tail.positions
    beyond = stream_cut_text(StreamCut(headrace_scope, "t", ((segment, offset + 1_000),)))
    for command in (
        f"headrace event read {stream} --from '{beyond}'",
        f"headrace event read {stream} --to '{beyond}'",
        f"headrace stream truncate {stream} '{beyond}'",
    ):
        code, out, err = shell(command)
        assert (code, out, err.count("\n")) == (1, "", 1), command
        assert f"{offset + 1_000} of segment" in err, command
    assert shell(f"headrace event read {stream} --from '{stream_cut_text(tail)}'")[:2] == (0, "")
    assert shell(f"headrace event read {stream}")[:2] == (0, "1\n2\n3\n4\n5\n")


def test_a_name_of_dots_reaches_no_other_resource(shell: Shell, headrace_scope: str, stream: str):
    for command in (
        f"headrace stream delete {headrace_scope}/..",
        f"headrace stream describe {headrace_scope}/.",
        "headrace scope delete .. --recursive",
    ):
        code, out, err = shell(command)
        assert (code, out) == (2, ""), command
        assert "'.'" in err, command
    assert shell(f"headrace event read {stream}")[1] == "1\n2\n3\n4\n5\n"


def test_events_since_a_local_time_are_read(shell: Shell, stream: str):
    assert shell(f"headrace event read {stream} --from -1h")[1] == "1\n2\n3\n4\n5\n"
    local = "$(TZ=America/New_York date -d '-1 hour' +%Y-%m-%dT%H:%M:%S)"
    assert shell(f"TZ=America/New_York headrace event read {stream} --from {local}")[1] == "1\n2\n3\n4\n5\n"
    read = f"TZ=America/New_York headrace event read {stream} --from 2026-03-08T02:30"
    code, out, err = shell(read)
    assert (code, out, err.count("\n")) == (0, "1\n2\n3\n4\n5\n", 1)
    assert "clocks" in err, "this local time does not exist"
