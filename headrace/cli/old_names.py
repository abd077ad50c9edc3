"""Names of commands and options before release 0.2, which keep working for one release with a notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.codec.places import parse_segment, segment_text
from headrace.model.errors import InvalidRequestError

SHARED_WITH_VALUE = frozenset({"--url", "--auth", "--retry-s"})
"""The shared options that are followed by a value, so that it is not taken for the name of a command."""


class Renamed(NamedTuple):
    """The current words for an old command. `added` are options that it needs to do the same."""

    current: tuple[str, ...]
    added: tuple[str, ...] = ()
    options: Mapping[str, str] = {}


COMMANDS: Mapping[tuple[str, ...], Renamed] = {
    ("event", "append"): Renamed(("event", "write")),
    ("event", "tail"): Renamed(("event", "read"), ("--follow",), {"--start": "--from"}),
    ("reader-group",): Renamed(("group",)),
}
"""Old commands by their words."""

OPTIONS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("event", "read"): {"--start": "--from"},
    ("stream", "cut"): {"--time": "--at"},
}
"""Old options of commands that keep their names."""

_TIMES = frozenset({"--time"})
"""Old options whose values were times, where `10:05` never was a stream cut."""

LISTS: Mapping[tuple[str, str], tuple[str, ...]] = {("stream", "scale"): ("--seal", "--range")}
"""Options whose values were separate words, and are one word with commas now."""


def with_current_names(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments with current names, and a notice for each old name in them."""
    at = _positions(arguments)
    words = tuple(arguments[index] for index in at)
    for length in (2, 1):
        renamed = COMMANDS.get(words[:length])
        if renamed is not None:
            return _rename(arguments, at[:length], renamed)
    notices: list[str] = []
    if len(words) == 2 and words in OPTIONS:
        arguments, notices = _with_options(arguments, at[1], OPTIONS[words])
    if len(words) == 2 and words in LISTS:
        arguments, notices = _with_lists(arguments, LISTS[words])
    return arguments, notices


def _positions(arguments: list[str]) -> list[int]:
    """The positions of the first two words that are neither options nor values of shared options."""
    positions: list[int] = []
    index = 0
    while index < len(arguments) and len(positions) < 2:
        if arguments[index] in SHARED_WITH_VALUE:
            index += 1
        elif not arguments[index].startswith("-"):
            positions.append(index)
        index += 1
    return positions


def _rename(arguments: list[str], at: list[int], renamed: Renamed) -> tuple[list[str], list[str]]:
    changed = list(arguments)
    for index, word in zip(at, renamed.current, strict=True):
        changed[index] = word
    old = " ".join(arguments[index] for index in at)
    new = " ".join((*renamed.current, *renamed.added))
    changed, notices = _with_options(changed, at[-1], renamed.options)
    changed[at[-1] + 1 : at[-1] + 1] = renamed.added
    return changed, [_notice(old, new), *notices]


def _with_options(arguments: list[str], after: int, options: Mapping[str, str]) -> tuple[list[str], list[str]]:
    changed, notices = list(arguments), []
    for index in range(after + 1, len(arguments)):
        name, equals, value = arguments[index].partition("=")
        if name not in options:
            continue
        changed[index] = options[name] + equals + (value if name in _TIMES else _cut_with_epochs(value))
        if name not in _TIMES and not equals and index + 1 < len(arguments):
            changed[index + 1] = _cut_with_epochs(arguments[index + 1])
        notices.append(_notice(name, options[name]))
    return changed, notices


def _cut_with_epochs(text: str) -> str:
    """A stream cut with `NUMBER@EPOCH` for segment ids, because `10:05` is a time of day now."""
    try:
        pairs = [pair.split(":") for pair in text.split(",")]
        return ",".join(f"{segment_text(parse_segment(segment))}:{offset}" for segment, offset in pairs)
    except (InvalidRequestError, ValueError):
        return text


def _with_lists(arguments: list[str], options: tuple[str, ...]) -> tuple[list[str], list[str]]:
    changed: list[str] = []
    notices: list[str] = []
    joining = False
    for argument in arguments:
        is_value = not argument.startswith("-") and "/" not in argument  # a name of a stream has a slash
        if joining and is_value and changed[-1] not in options:
            changed[-1] += f",{argument}"
            notices.append("values of --seal and --range are separated by commas now, without blanks")
            continue
        joining = argument in options or (joining and bool(changed) and changed[-1] in options)
        changed.append(argument)
    return changed, notices[:1]


def _notice(old: str, new: str) -> str:
    return f"`{old}` is `{new}` now; the old name works until release 0.3"
