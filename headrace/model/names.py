"""Names of scopes, streams and segments: the composition and the parsing as Pravega has them, and the checks.

Users may have '_' inside a name, which Pravega's Java client refuses. A '_' in front and the suffix TABLE_SUFFIX are
reserved: clients give such names to state and segments of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.model import limits, routing
from headrace.model.errors import InvalidRequestError
from headrace.model.segments import segment_epoch, segment_id, segment_number

TABLE_SUFFIX = "_kvtable"
"""Segments of a table `t` are named as those of a stream `t_kvtable`; so is the state of a group of the Rust client."""

_USER_NAME = re.compile(rf"[A-Za-z0-9.\-][A-Za-z0-9._\-]*(?<!{TABLE_SUFFIX})")
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._\-]+")
_KNOWN_NAME = re.compile(r"_?[A-Za-z0-9.\-][A-Za-z0-9._\-]*")
_SEGMENT_NAME_PART = re.compile(r"[A-Za-z0-9._\-]+")
_DOT_SEGMENTS = (".", "..")
"""Names that HTTP clients and proxies take out of a path, so that the request would reach another resource."""

_EPOCH_DELIMITER = ".#epoch."
_TRANSACTION_DELIMITER = "#transaction."
_TRANSIENT_DELIMITER = "#transient."
_UUID_HEX_CHARACTERS = 32
_MARK_PREFIX = "_MARK"
_SEGMENT_NAME = re.compile(r"(?P<scope>[^/]+)/(?P<stream>[^/]+)/(?P<number>\d{1,10})(?:\.#epoch\.(?P<epoch>\d{1,10}))?")


def check_scope_name(name: str) -> str:
    """Returns `name` if a user may give it to a scope, else raises InvalidRequestError."""
    return _check_user_name("scope", name, limits.SCOPE_NAME_CHARACTERS_MAX)


def check_stream_name(name: str) -> str:
    """Returns `name` if a user may give it to a stream, else raises InvalidRequestError."""
    return _check_user_name("stream", name, limits.STREAM_NAME_CHARACTERS_MAX)


def check_reader_group_name(name: str) -> str:
    """Returns `name` if a user may give it to a reader group, else raises InvalidRequestError."""
    return _check_user_name("reader group", name, limits.STREAM_NAME_CHARACTERS_MAX)


def check_reader_name(name: str) -> str:
    """Returns `name` if a user may give it to a reader of a group, else raises InvalidRequestError."""
    return _check_user_name("reader", name, limits.STREAM_NAME_CHARACTERS_MAX)


def check_table_name(name: str) -> str:
    """Returns `name` if a user may give it to a key-value table, else raises InvalidRequestError."""
    return _check_user_name("key-value table", name, limits.STREAM_NAME_CHARACTERS_MAX)


def check_known_name(kind: str, name: str) -> str:
    """Returns `name` if it may be that of a scope or stream, of a user or (after a '_') of the system."""
    return refuse_dot_segment(kind, check_name_prefix(kind, name))


def check_name_prefix(kind: str, name: str) -> str:
    """Returns `name` if known names may begin so."""
    characters_max = limits.SCOPE_NAME_CHARACTERS_MAX
    if not _KNOWN_NAME.fullmatch(name) or len(name) > characters_max:
        raise InvalidRequestError(
            f"{kind} name {name[:300]!r} cannot exist: names are 1 to {characters_max} of the letters A-Z and a-z, the "
            f"digits, '.', '_' and '-', with at most one '_' in front{_example(name, characters_max)}",
            details={"kind": kind, "characters_max": characters_max},
            code="invalid_name",
        )
    return name


def refuse_dot_segment(kind: str, name: str, code: str = "invalid_name") -> str:
    """Returns `name`; raises InvalidRequestError for '.' and '..', which are removed from the paths of requests."""
    if name in _DOT_SEGMENTS:
        raise InvalidRequestError(
            f"{kind} name {name!r} is not allowed: '.' and '..' have another meaning in the path of a request",
            details={"kind": kind},
            code=code,
        )
    return name


def check_segment_name_part(kind: str, name: str) -> str:
    """Returns `name` if it may be the scope or stream in a segment's name. Clients choose such names for own tables."""
    if not _SEGMENT_NAME_PART.fullmatch(name):
        raise InvalidRequestError(
            f"{kind} {name[:300]!r} cannot be part of a segment's name: use letters A-Z and a-z, digits, '.', '-', '_'",
            details={"kind": kind},
            code="invalid_name",
        )
    return refuse_dot_segment(kind, name)


def _check_user_name(kind: str, name: str, characters_max: int) -> str:
    if not _USER_NAME.fullmatch(name) or len(name) > characters_max:
        raise InvalidRequestError(
            f"{kind} name {name[:300]!r} is not allowed: use 1 to {characters_max} of the letters A-Z and a-z, "
            f"the digits, '.', '_' and '-', without a '_' in front or {TABLE_SUFFIX} at the end"
            f"{_example(name, characters_max)}",
            details={"kind": kind, "characters_max": characters_max},
            code="invalid_name",
        )
    return refuse_dot_segment(kind, name)


def _example(name: str, characters_max: int) -> str:
    """A possible name that is like this one, as the end of a message."""
    similar = _OTHER_CHARACTERS.sub("-", name[:characters_max]).removesuffix(TABLE_SUFFIX).strip("-._")
    return f", for example {similar}" if _USER_NAME.fullmatch(similar) else ""


def scoped_stream_name(scope: str, stream: str) -> str:
    return f"{scope}/{stream}"


def segment_name(scope: str, stream: str, identifier: int) -> str:
    """The name on the wire, for example `s/t/0.#epoch.0`."""
    return f"{scope}/{stream}/{segment_number(identifier)}{_EPOCH_DELIMITER}{segment_epoch(identifier)}"


def mark_stream_name(stream: str) -> str:
    """The name under which clients ask for the watermarks of a stream."""
    return f"{_MARK_PREFIX}{stream}"


def stream_of_mark_stream(name: str) -> str | None:
    """The stream whose watermarks a client requests by this name; None if the name is not that of a mark stream."""
    stream = name.removeprefix(_MARK_PREFIX)
    return stream if stream and stream != name else None


def mark_segment_name(scope: str, stream: str) -> str:
    """The segment that holds the watermarks of a stream."""
    return segment_name(scope, mark_stream_name(stream), segment_id(0, 0))


@dataclass(frozen=True, slots=True)
class StreamSegmentName:
    """The parts of a stream segment's name."""

    scope: str
    stream: str
    segment_id: int


def parse_segment_name(name: str) -> StreamSegmentName:
    """The parts of a stream segment's name; the form without an epoch means epoch 0.

    Raises:
        InvalidRequestError: the text is not the name of a stream segment.
    """
    match = _SEGMENT_NAME.fullmatch(name)
    if match is None:
        raise InvalidRequestError(f"{name[:300]!r} is not a stream segment's name: expected scope/stream/0.#epoch.0")
    return StreamSegmentName(
        match["scope"], match["stream"], segment_id(int(match["epoch"] or 0), int(match["number"]))
    )


def transaction_segment_name(parent: str, transaction_id: int) -> str:
    """The name of the segment that holds a transaction's part of `parent`; the id is an unsigned 128-bit number."""
    return f"{parent}{_TRANSACTION_DELIMITER}{transaction_id:032x}"


def transient_segment_name(parent: str, writer_id: int, unique: int) -> str:
    """The name of a transient segment (large events); both numbers are unsigned and 128 bits wide."""
    return f"{parent}{_TRANSIENT_DELIMITER}{writer_id:032x}.{unique:032x}"


def is_transient_segment_name(name: str) -> bool:
    """Whether the segment is deleted together with the connection that created it."""
    return _TRANSIENT_DELIMITER in name


def is_transient_segment_of(name: str, parent: str) -> bool:
    """Whether the segment is a transient one of exactly this segment, which may belong to a transaction."""
    suffix = name.removeprefix(parent + _TRANSIENT_DELIMITER)
    return suffix != name and "#" not in suffix


def is_transaction_segment_name(name: str) -> bool:
    """Whether the segment holds a transaction's part of another one."""
    return _TRANSACTION_DELIMITER in name


def parent_segment_name(name: str) -> str | None:
    """The segment that a transaction or transient segment belongs to; None for any other segment."""
    for delimiter in (_TRANSACTION_DELIMITER, _TRANSIENT_DELIMITER):
        parent, found, suffix = name.rpartition(delimiter)
        if found and len(suffix) >= _UUID_HEX_CHARACTERS:
            return parent
    return None


def container_of_segment(name: str, container_count: int) -> int:
    """The container that owns a segment: all epochs of a number, its transactions and transients share one."""
    return routing.container_of_hash_key(container_hash_key(name), container_count)


def container_hash_key(name: str) -> str:
    """The part of a segment's name that determines its container.

    It takes time in proportion to the length, also for names that no segment has: a client may send any name.
    """
    end = _end_of_stream_segment(name)
    epoch = name.rfind(_EPOCH_DELIMITER, 0, end)
    return name[:epoch] if epoch > 0 else name[:end]


def check_nesting(name: str) -> str:
    """Returns `name` if it belongs to other segments as names can: a transient segment of a transaction's at most."""
    if any(name.count(delimiter) > 1 for delimiter in (_TRANSACTION_DELIMITER, _TRANSIENT_DELIMITER)):
        raise InvalidRequestError(
            f"segment name {name[:300]!r} cannot exist: it names several transactions or transient segments",
            code="invalid_name",
        )
    return name


def _end_of_stream_segment(name: str) -> int:
    """Where the name of the segment ends to which `name` belongs, directly or through others.

    It repeats `parent_segment_name`, but looks at no part of the name twice.
    """
    end = len(name)
    positions = dict.fromkeys((_TRANSACTION_DELIMITER, _TRANSIENT_DELIMITER), end)
    while True:
        for delimiter, position in positions.items():
            if position >= 0 and position + len(delimiter) > end:
                positions[delimiter] = position = name.rfind(delimiter, 0, end)
            if position >= 0 and end - position - len(delimiter) >= _UUID_HEX_CHARACTERS:
                end = position
                break
        else:
            return end
