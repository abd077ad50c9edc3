"""`headrace watermark`: notes of writers, the newest watermark, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from functions.processors.tick_work import TICK_WORK
from headrace import topology


def _tick() -> None:
    for bucket in range(topology.BUCKET_COUNT):
        TICK_WORK["watermarks"](bucket)


def test_from_a_note_to_a_watermark(stream: str, ok: Any, as_json: Any):
    assert ok("watermark", "get", stream) == "stream s/t has no watermark yet\n"
    assert as_json("watermark", "get", stream) == {
        "watermark": None, "markSegment": "s/_MARKt/0.#epoch.0", "offset": 0,
    }  # fmt: skip
    noted = ok("watermark", "note", stream, "w-1", "--time", "-5", "--position", "0:10,1:20")
    assert noted == "writer w-1 has written everything before -5\n"
    assert as_json("watermark", "note", stream, "w-2", "--time", "7", "--position", "0:15") == {
        "writer": "w-2", "time": 7, "noted": True,
    }  # fmt: skip
    _tick()
    assert ok("watermark", "get", stream) == "from -5 to 7 at 0:15, 1:20\n"
    assert as_json("watermark", "get", stream)["watermark"] == {
        "lowerTime": -5, "upperTime": 7, "cut": {"0": 15, "1": 20},
    }  # fmt: skip


def test_a_writer_is_removed(stream: str, run: Any, ok: Any, as_json: Any):
    ok("watermark", "note", stream, "w", "--time", "5", "--position", "0:10")
    assert as_json("watermark", "remove-writer", stream, "w") == {"writer": "w", "removed": True}
    assert ok("watermark", "remove-writer", stream, "w") == "watermarks of s/t do not wait for writer w\n"
    assert run("watermark", "remove-writer", stream, "other").code == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("get", "s/none"), 3),
        (("note", "s/t", "w", "--time", "4", "--position", "0:10"), 1),
        (("note", "s/t", "w", "--time", "6", "--position", "9:10"), 1),
        (("note", "s/t", "w", "--time", "x", "--position", "0:10"), 2),
        (("note", "s/t", "w", "--time", str(1 << 63), "--position", "0:10"), 2),
        (("note", "s/t", "w", "--time", "6", "--position", "0"), 2),
        (("note", "s/t", "_w", "--time", "6", "--position", "0:10"), 2),
        (("note", "s/t", "w", "--time", "6"), 2),
        (("remove-writer", "s/t"), 2),
    ],
)
def test_what_is_refused(stream: str, run: Any, ok: Any, arguments: tuple[str, ...], code: int):
    ok("watermark", "note", stream, "w", "--time", "5", "--position", "0:10")
    ran = run("watermark", *arguments)
    assert ran.code == code
    assert ran.err
    assert not ran.out
