"""Arguments of several sub-commands: names, stream cuts, key ranges. argparse prints the error of an invalid one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from headrace.codec.stream_cut_text import parse_stream_cut_text
from headrace.model.errors import InvalidRequestError
from headrace.model.names import check_known_name
from headrace.model.segments import KeyRange

T = TypeVar("T")
CUT_HELP = "SEGMENT:OFFSET,... or the text of a stream cut"
INT64_MAX = (1 << 63) - 1


class ScopedName(NamedTuple):
    """The name of a stream, a reader group or a table, with its scope."""

    scope: str
    name: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}"


def checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """`check` as a type for argparse: its InvalidRequestError becomes a usage error."""

    def convert(text: str) -> T:
        try:
            return check(text)
        except InvalidRequestError as error:
            raise argparse.ArgumentTypeError(error.message) from error

    return convert


def _scoped_name(text: str) -> ScopedName:
    scope, slash, name = text.partition("/")
    if not slash:
        raise InvalidRequestError(f"{text[:300]!r} has no scope: expected SCOPE/NAME")
    return ScopedName(check_known_name("scope", scope), check_known_name("stream", name))


def _number(text: str) -> int:
    """Accepts only ASCII digits: `int` also accepts blanks, underscores and the digits of other scripts."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= INT64_MAX):
        raise InvalidRequestError(f"{text[:100]!a} is not a number from 0 to {INT64_MAX}")
    return int(text)


def _key_range(text: str) -> KeyRange:
    low, _, high = text.partition(":")
    try:
        return KeyRange(float(low), float(high))
    except ValueError:
        raise InvalidRequestError(
            f"{text[:100]!a} is not a key range: expected LOW:HIGH, for example 0.25:0.5"
        ) from None


def _cut(text: str) -> dict[int, int]:
    """Parses `SEGMENT:OFFSET,...`, or the text form that Pravega's clients and `headrace stream cut` return."""
    if ":" not in text:
        return parse_stream_cut_text(text).offsets
    pairs = [pair.partition(":") for pair in text.split(",")]
    offsets = {_number(segment): _number(offset) for segment, _, offset in pairs}
    if len(offsets) != len(pairs):
        raise InvalidRequestError("the stream cut names a segment twice")
    return offsets


scoped_name = checked(_scoped_name)
scope_name = checked(lambda text: check_known_name("scope", text))
number = checked(_number)
key_range = checked(_key_range)
cut = checked(_cut)


def positive(text: str) -> int:
    """A number greater than 0."""
    found = number(text)
    if found < 1:
        raise argparse.ArgumentTypeError("expected a number greater than 0")
    return found


def add_stream(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", type=scoped_name, metavar="SCOPE/STREAM")


def stream_of(options: argparse.Namespace) -> ScopedName:
    """The stream that the argument of `add_stream` names."""
    found: ScopedName = options.stream
    return found


def add_scope(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scope", type=scope_name, metavar="SCOPE")


def add_from_and_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="from_cut", type=cut, metavar="CUT", help=f"{CUT_HELP} (default: the head)")
    parser.add_argument("--to", dest="to_cut", type=cut, metavar="CUT", help=f"{CUT_HELP} (default: the tail)")


def add_no_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait", action="store_true", help="return when the request is accepted, not when it is done"
    )
