"""The key space of a stream over time as an SVG document of its own, for a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.parameters import ScopedName
from headrace.console.key_space_layout import lay_out
from headrace.console.key_space_svg import Picture, Position, draw
from headrace.console.segment_spans import spans_of
from headrace.console.static_files import STATIC_FOLDER

if TYPE_CHECKING:
    from headrace.client.synchronous.synchronous_admin import Admin

EPOCHS_MAX = 200


def key_space_document(admin: Admin, stream: ScopedName, now_ms: int) -> str:
    """The newest epochs of the stream up to `now_ms`, with what was truncated.

    Raises:
        NotFoundError: there is no such stream.
    """
    history = admin.epoch_history(*stream, limit=EPOCHS_MAX)
    page = spans_of(history, admin.stream_cut(*stream, at="latest").offsets, now_ms)
    head = Position("head", "truncated", admin.stream_cut(*stream, at="earliest").offsets)
    style = (STATIC_FOLDER / "key-space.css").read_text()
    return draw(Picture(str(stream), page, lay_out(page), (head,)), style=style)
