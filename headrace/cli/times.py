"""Places and times of options, by the clock and the time zone of this machine."""

from __future__ import annotations

from datetime import datetime

from headrace.adapters.system_clock import local_now
from headrace.cli.parameters import ScopedName, checked
from headrace.cli.standard_streams import print_message
from headrace.codec.places import ParsedPlace, parse_place, parse_time, parse_time_ms
from headrace.model.stream_cuts import StreamCut


def local_place(text: str) -> ParsedPlace:
    """Parses a place with the clock and the time zone of this machine."""
    return parse_place(text, local_now(), _tell)


def client_place(stream: ScopedName, parsed: ParsedPlace) -> str | datetime | StreamCut:
    """A parsed place as the client takes it."""
    return StreamCut.of(*stream, parsed) if isinstance(parsed, dict) else parsed


def _local_time(text: str) -> datetime:
    return parse_time(text, local_now(), _tell)


place = checked(local_place)
moment = checked(_local_time)
milliseconds = checked(parse_time_ms)


def _tell(sentence: str) -> None:
    print_message(f"headrace: {sentence}")
