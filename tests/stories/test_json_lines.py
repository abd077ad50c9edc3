"""JSON lines that the command line writes are JSON for readers, for example for the Spark connector."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from headrace.client import Headrace
from headrace.spark.event_schemas import parse_event_schema
from headrace.spark.json_columns import json_columns

Shell = Callable[[str], tuple[int, str, str]]

BAD = (b'{"n": NaN}', b'{"n": 1, "n": 2}', b'{"s": "\xed\xa0\x80"}', b'{"s": "\\udfff"}', '{"n": 1}'.encode("utf-16"))


def test_lines_that_readers_refuse_are_not_written(
    shell: Shell, headrace_client: Headrace, headrace_scope: str, tmp_path: Path
):
    stream = f"{headrace_scope}/t"
    assert shell(f"headrace stream create {stream} --segments 1")[0] == 0
    good = json.dumps({"n": 1, "s": "Straße 😀"}).encode()
    (tmp_path / "good").write_bytes(b"\xef\xbb\xbf" + good + b"\r\n\n" + good + b"\n")
    written = f"headrace event write {stream} --format jsonl --key-field n"
    code, out, err = shell(f"{written} good good")
    assert (code, out, err.count("begins with a byte order mark")) == (0, "4 events written\n", 2)
    for number, line in enumerate(BAD):
        (tmp_path / f"bad-{number}").write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
        code, out, err = shell(f"{written} bad-{number}")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "line 2 is not JSON" in err
        assert err.endswith("; 1 event before it is written; to continue: --from-line 2\n")
    with headrace_client.reader(
        headrace_scope, "t", end=headrace_client.admin.stream_cut(headrace_scope, "t")
    ) as reader:
        events = [read.event for read in reader]
    assert events == [good] * (4 + len(BAD))
    assert json_columns(parse_event_schema("n BIGINT, s STRING"), pa.array(events, pa.binary())).bad == {}
