"""What the address of a stream's page says: where to read from, which segment, which key, which window of history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from headrace.adapters.system_clock import local_now
from headrace.cli.parameters import ScopedName
from headrace.codec.places import End, parse_number, parse_place, parse_segment, segment_text
from headrace.console.console_state import LONG_TEXT_MAX, text_parameter
from headrace.model.errors import InvalidRequestError
from headrace.model.stream_cuts import StreamCut

EPOCHS_DEFAULT = 60
EPOCH_CHOICES = (10, EPOCHS_DEFAULT, 200)


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """The parameters as text, as a user types them; `until` and `epochs` choose the window of the history."""

    stream: ScopedName
    place: str = ""
    segment: str = ""
    key: str | None = None
    needle: str = ""
    until: int | None = None
    epochs: int = EPOCHS_DEFAULT

    @classmethod
    def of(cls, request: Request, stream: ScopedName) -> StreamQuery:
        """Raises InvalidRequestError for a number that is none."""
        until = text_parameter(request, "until")
        epochs = text_parameter(request, "epochs")
        chosen = parse_number(epochs) if epochs else EPOCHS_DEFAULT
        if chosen not in EPOCH_CHOICES:
            raise InvalidRequestError(f"{chosen} epochs are not one of the choices {EPOCH_CHOICES}")
        return cls(
            stream,
            text_parameter(request, "from", LONG_TEXT_MAX),
            text_parameter(request, "segment"),
            text_parameter(request, "key") or None,
            text_parameter(request, "filter"),
            max(1, parse_number(until)) if until else None,
            chosen,
        )

    def address(self, part: str = "", **changes: Any) -> str:
        """The address of the page, or of a `part` of it, with other values of some parameters."""
        changed = replace(self, **changes) if changes else self
        parameters = {
            "from": changed.place,
            "segment": changed.segment,
            "key": changed.key,
            "filter": changed.needle,
            "until": changed.until,
            "epochs": None if changed.epochs == EPOCHS_DEFAULT else changed.epochs,
        }
        query = urlencode({name: value for name, value in parameters.items() if value})
        path = f"/streams/{self.stream.scope}/{self.stream.name}{f'/{part}' if part else ''}"
        return f"{path}?{query}" if query else path

    def at(self, time_ms: int) -> str:
        """The address with this time as the start."""
        return self.address(place=datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds"))

    @property
    def segment_id(self) -> int | None:
        """Raises InvalidRequestError for text that is not a segment."""
        return parse_segment(self.segment) if self.segment else None

    @property
    def start(self) -> End | datetime | StreamCut:
        """Where to read from; without a choice the end. Raises InvalidRequestError for what is not a place."""
        place = parse_place(self.place or "latest", local_now())
        return StreamCut.of(*self.stream, place) if isinstance(place, dict) else place

    @property
    def command(self) -> str:
        """The command that reads the same events."""
        if self.place in ("", "latest"):
            return f"headrace event read {self.stream} --follow"
        return f"headrace event read {self.stream} --from {self.place}"


def segment_address(query: StreamQuery, segment_id: int, *, is_open: bool) -> str:
    """The address that follows a segment: an open one from its end, a sealed one from its first event."""
    return query.address(segment=segment_text(segment_id), place="latest" if is_open else "earliest") + "#events"
