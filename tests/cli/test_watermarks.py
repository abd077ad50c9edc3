"""`headrace watermark`: notes of writers, the newest watermark."""

from __future__ import annotations

from command_line import ReadJson, Run, Show

from functions.processors.tick_work import TICK_WORK
from headrace import topology


def _tick() -> None:
    for bucket in range(topology.BUCKET_COUNT):
        TICK_WORK["watermarks"](bucket)


def test_from_a_note_to_a_watermark(stream: str, ok: Show, as_json: ReadJson):
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
    assert ok("watermark", "get", stream) == "from -5 to 7 at 0@0:15,1@0:20\n"
    assert as_json("watermark", "get", stream)["watermark"] == {
        "lowerTime": -5, "upperTime": 7, "cut": {"0": 15, "1": 20},
    }  # fmt: skip


def test_a_writer_is_removed(stream: str, run: Run, ok: Show, as_json: ReadJson):
    ok("watermark", "note", stream, "w", "--time", "5", "--position", "0:10")
    assert as_json("watermark", "remove-writer", stream, "w") == {"writer": "w", "removed": True}
    assert ok("watermark", "remove-writer", stream, "w") == "watermarks of s/t do not wait for writer w\n"
    assert run("watermark", "remove-writer", stream, "other").code == 3
