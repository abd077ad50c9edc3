"""Types of arguments and options that several commands have. The parsers name what is wrong with a value.

Times are by the clock and the time zone of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from headrace.adapters.system_clock import local_now
from headrace.cli import name_completion
from headrace.cli.quantities import parse_size
from headrace.cli.standard_streams import print_message
from headrace.codec.places import (
    ParsedPlace,
    parse_cut,
    parse_number,
    parse_place,
    parse_segment,
    parse_time,
    parse_time_ms,
)
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_known_name
from headrace.model.segments import KeyRange
from headrace.model.stream_cuts import StreamCut

T = TypeVar("T")
PORT_MAX = 65_535
CUT_HELP = "SEGMENT:OFFSET,... or the text of a stream cut"


class ScopedName(NamedTuple):
    """The name of a stream, a reader group or a table, with its scope."""

    scope: str
    name: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}"


def checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """`check` as a parser for Typer: its InvalidRequestError becomes a usage error.

    Typer also calls a parser with the default value, which needs no check.
    """

    def parse(text: str | T) -> T:
        if not isinstance(text, str):
            return text
        try:
            return check(text)
        except InvalidRequestError as error:
            raise typer.BadParameter(error.message) from error

    parse.__name__ = "text"  # help texts show it as the type
    return parse


def parse_scoped_name(text: str) -> ScopedName:
    scope, slash, name = text.partition("/")
    if not slash:
        raise InvalidRequestError(f"{text[:300]!r} has no scope: expected SCOPE/NAME")
    return ScopedName(check_known_name("scope", scope), check_known_name("stream", name))


def parse_positive(text: str) -> int:
    value = parse_number(text)
    if value < 1:
        raise InvalidRequestError("expected a number greater than 0")
    return value


def parse_port(text: str) -> int:
    """A port, or 0 for any free one."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(PORT_MAX)) and int(text) <= PORT_MAX:
        return int(text)
    raise InvalidRequestError(f"{text[:100]!a} is not a port: expected 0 to {PORT_MAX}")


def parse_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise InvalidRequestError(f"{text[:100]!a} is not a number of seconds from 0 to 999999")
    return number


def parse_key_range(text: str) -> KeyRange:
    low, _, high = text.partition(":")
    try:
        return KeyRange(float(low), float(high))
    except ValueError:
        raise InvalidRequestError(
            f"{text[:100]!a} is not a key range: expected LOW:HIGH, for example 0.25:0.5"
        ) from None


def _all_of(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    return lambda text: tuple(parse(part) for part in text.split(","))


def rollover_size_option(help_text: str) -> Any:
    """The option for the size at which Pravega would begin another file of a segment."""
    return typer.Option(
        "--rollover-size", "--rollover-size-bytes", parser=checked(parse_size), metavar="SIZE", help=help_text
    )


seconds = checked(parse_seconds)
number = checked(parse_number)
positive = checked(parse_positive)
cut = checked(parse_cut)
scoped_name = checked(parse_scoped_name)
a_segment = checked(parse_segment)
segments = checked(_all_of(parse_segment))
key_ranges = checked(_all_of(parse_key_range))

ScopeName = Annotated[
    str,
    typer.Argument(
        parser=checked(lambda text: check_known_name("scope", text)),
        metavar="SCOPE",
        show_default=False,
        autocompletion=name_completion.scopes,
    ),
]
StreamName = Annotated[
    ScopedName,
    typer.Argument(
        parser=scoped_name, metavar="SCOPE/STREAM", show_default=False, autocompletion=name_completion.streams
    ),
]
GroupName = Annotated[
    ScopedName,
    typer.Argument(
        parser=scoped_name, metavar="SCOPE/GROUP", show_default=False, autocompletion=name_completion.groups
    ),
]
TableName = Annotated[
    ScopedName,
    typer.Argument(
        parser=scoped_name, metavar="SCOPE/TABLE", show_default=False, autocompletion=name_completion.tables
    ),
]
SegmentId = Annotated[
    int,
    typer.Argument(
        parser=a_segment,
        metavar="SEGMENT",
        show_default=False,
        help="NUMBER@EPOCH, as `headrace segment list` shows it, or the id",
    ),
]
CutArgument = Annotated[dict[int, int], typer.Argument(parser=cut, metavar="CUT", help=CUT_HELP, show_default=False)]
FromCut = Annotated[
    dict[int, int] | None,
    typer.Option("--from", parser=cut, metavar="CUT", help=f"{CUT_HELP} (default: the head)", show_default=False),
]
ToCut = Annotated[
    dict[int, int] | None,
    typer.Option("--to", parser=cut, metavar="CUT", help=f"{CUT_HELP} (default: the tail)", show_default=False),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="return when the request is accepted, not when it is done")]
Long = Annotated[
    bool, typer.Option("--long", "-l", help="show state and totals too, which takes several requests for each")
]
REQUESTS_AT_ONCE = 8
"""Of a command that asks for many things."""


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
