"""Columns of events (Arrow or numpy) into framed runs per segment, without a Python object per event.

Each distinct routing key is hashed once. The events of a slice are then ordered by segment with one stable sort, so
that those of one key keep their order, and are framed together (`headrace/codec/event_columns.py`).

This module needs pyarrow and numpy (extra `headrace[arrow]`). `event_writer.py` imports it for the first `write_many`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.batch_accumulator import KEYS_KEPT_MAX, BatchAccumulator, RoutesNow
from headrace.client.writing.event_blocks import Block, EventKeys, EventRun, SegmentQueue, is_large
from headrace.codec.event_columns import FramedEvents, IntArray, frame_events, payload_offsets
from headrace.model.errors import InvalidRequestError
from headrace.model.limits import EVENT_HEADER_BYTES
from headrace.model.routing import routing_key_position

SLICE_EVENTS: Final = 65_536
SLICE_BYTES: Final = 4 * 1024 * 1024
"""So many events or bytes of payload are framed at once. A slice has one event at least."""

EVENT_COLUMN: Final = "event"
ROUTING_KEY_COLUMN: Final = "routing_key"

_position: Final = lru_cache(KEYS_KEPT_MAX)(routing_key_position)


class _SameKey:
    """The keys of events that all have one, or that all have none."""

    __slots__ = ("_count", "_key")

    def __init__(self, key: str | None, count: int) -> None:
        self._key, self._count = key, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str | None]:
        return repeat(self._key, self._count)


class _CodedKeys:
    """The keys of events as indexes of distinct keys. The last distinct key is None; it has the index -1."""

    __slots__ = ("_codes", "_names")

    def __init__(self, names: Sequence[str | None], codes: IntArray) -> None:
        self._names, self._codes = names, codes

    def __len__(self) -> int:
        return len(self._codes)

    def __iter__(self) -> Iterator[str | None]:
        return map(self._names.__getitem__, self._codes.tolist())


class _FramedRun:
    """Events of a slice that go to one segment, framed one after the other."""

    __slots__ = ("_data", "_keys", "count", "ends", "size_bytes")

    def __init__(self, framed: FramedEvents, first: int, last: int, keys: KeySlice) -> None:
        start = int(framed.ends[first - 1]) if first else 0
        self._data = framed.data[start : int(framed.ends[last - 1])]
        self._keys = keys
        self.count = last - first
        self.ends: Any = framed.ends[first:last] - start
        self.size_bytes = len(self._data)

    def fill(self, block: Block, first: int, last: int) -> None:
        start = int(self.ends[first - 1]) if first else 0
        framed = self._data[start : int(self.ends[last - 1])]
        if is_large(len(framed)):  # a single event, which is appended in pieces
            event = bytes(framed[EVENT_HEADER_BYTES:])
            block.extend((event,), tuple(self._keys.part(first, last)), (len(event),))
        else:
            block.extend_framed(framed, self._keys.part(first, last))


@dataclass(frozen=True, slots=True)
class KeySlice:
    """The keys of a slice of events, or of a run of it: `codes` index `names`, or all events have the key `same`."""

    names: Sequence[str | None]
    codes: IntArray | None
    same: str | None

    def part(self, first: int, last: int) -> EventKeys:
        if self.codes is None:
            return _SameKey(self.same, last - first)
        return _CodedKeys(self.names, self.codes[first:last])

    def between(self, first: int, last: int, order: IntArray | None = None) -> KeySlice:
        """The keys at the positions `[first, last)`, after a change of the order if one is given."""
        if self.codes is None:
            return self
        codes = self.codes if order is None else self.codes[order]
        return KeySlice(self.names, codes[first:last], None)


class ColumnSlice:
    """Events that are added to a writer's blocks together."""

    def __init__(self, payloads: pa.LargeBinaryArray, keys: KeySlice, positions: np.ndarray[Any, Any]) -> None:
        """`positions` are those of the events in the key space, or a single one of all of them."""
        self._payloads = payloads
        self._keys = keys
        self._positions = positions

    def add_to(self, accumulator: BatchAccumulator, ack: Ack) -> bool:
        """Adds the events. Adds none and returns False if the buffer is full or a segment was replaced meanwhile.

        Raises:
            HeadraceError: the writer has failed, or is closed.
        """
        if not accumulator.has_room():
            return False
        # Framing takes no lock. If a segment is replaced in the meantime, it is done again.
        routes = accumulator.routes_now()
        return accumulator.add_runs(routes, self._runs(routes), ack)

    def _runs(self, routes: RoutesNow) -> list[tuple[SegmentQueue, EventRun]]:
        count = len(self._payloads)
        targets = np.searchsorted(np.asarray(routes.bounds), self._positions, side="left")
        if len(targets) == 1:
            targets = targets.repeat(count)
        order: IntArray | None = None
        keys = self._keys
        changes = np.flatnonzero(np.diff(targets)) + 1
        if len(changes) > len(routes.queues):  # otherwise the events are already in few runs
            order = np.argsort(targets.astype(np.uint16), kind="stable")  # 16 bits: sorted in linear time
            targets = targets[order]
            keys = keys.between(0, count, order)
            changes = np.flatnonzero(np.diff(targets)) + 1
        framed = frame_events(self._payloads, order)
        firsts = [0, *changes.tolist()]
        lasts = [*firsts[1:], count]
        return [
            (routes.queues[int(targets[first])], _FramedRun(framed, first, last, keys.between(first, last)))
            for first, last in zip(firsts, lasts, strict=True)
        ]


def column_slices(
    events: Any, routing_keys: Any, event_bytes_max: int, too_large: Callable[[int], InvalidRequestError]
) -> list[ColumnSlice]:
    """The slices of the events of `AsyncEventWriter.write_many`.

    Raises:
        InvalidRequestError: these are no columns of events and keys, or an event is larger than `event_bytes_max`; the
            error is then `too_large(bytes)`.
    """
    try:
        return _slices(events, routing_keys, event_bytes_max, too_large)
    except pa.ArrowException as error:  # some forms of a type are not implemented
        raise InvalidRequestError(f"Arrow cannot convert these events or routing keys: {error}") from error


def _slices(
    events: Any, routing_keys: Any, event_bytes_max: int, too_large: Callable[[int], InvalidRequestError]
) -> list[ColumnSlice]:
    slices: list[ColumnSlice] = []
    for payloads, keys in _aligned(*_columns(events, routing_keys)):
        offsets = payload_offsets(payloads)
        if len(payloads) and (largest_bytes := int(np.diff(offsets).max())) > event_bytes_max:
            raise too_large(largest_bytes)
        key_slice, position_of_code = _coded(keys)
        first = 0
        while first < len(payloads):
            fitting = int(np.searchsorted(offsets, offsets[first] + SLICE_BYTES, side="right")) - 1
            last = min(max(first + 1, fitting), first + SLICE_EVENTS, len(payloads))
            keys_here = key_slice.between(first, last)
            positions = _positions(keys_here, position_of_code, last - first)
            slices.append(ColumnSlice(payloads.slice(first, last - first), keys_here, positions))
            first = last
    return slices


def _columns(events: Any, routing_keys: Any) -> tuple[Any, Any]:
    """Takes the columns of a table apart."""
    _check_column(events, "events")
    if hasattr(events, "__arrow_c_stream__") and not isinstance(events, pa.ChunkedArray | pa.Table):
        events = _exported(events, "events")
        if pa.types.is_struct(events.type):  # a table of another library
            events = pa.Table.from_struct_array(events)
    if not isinstance(events, pa.RecordBatch | pa.Table):
        return events, routing_keys
    if EVENT_COLUMN not in events.schema.names:
        names = ", ".join(events.schema.names)
        raise InvalidRequestError(f'the table has no column "{EVENT_COLUMN}", only {names}; pass a column instead')
    if routing_keys is None and ROUTING_KEY_COLUMN in events.schema.names:
        routing_keys = _only_column(events, ROUTING_KEY_COLUMN)
    return _only_column(events, EVENT_COLUMN), routing_keys


def _only_column(table: Any, name: str) -> Any:
    if (count := table.schema.names.count(name)) > 1:
        raise InvalidRequestError(f'the table has {count} columns "{name}": rename all but one of them')
    return table.column(name)


def _check_column(column: Any, what: str) -> None:
    """Refuses objects that have values, but are not a column of them."""
    if isinstance(column, str | bytes | bytearray | memoryview):
        raise InvalidRequestError(f"{what} are a column, not one {type(column).__name__}: pass a list, or use `write`")
    if isinstance(column, Mapping | Set):
        raise InvalidRequestError(
            f"{what} are a column or a table, not a {type(column).__name__}: pass a list, or make a table of it with "
            "`pyarrow.table`"
        )
    if isinstance(column, np.ma.MaskedArray) and column.ndim > 1:
        raise InvalidRequestError(f"{what} are a column, not rows of a masked array: fill what is masked")


def _aligned(events: Any, routing_keys: Any) -> Iterator[tuple[pa.LargeBinaryArray, Any]]:
    """Yields payloads with as many keys, or with one key or None for all of them."""
    column = _chunked(_payloads(events), "events")
    if column.null_count:
        raise InvalidRequestError(f"{column.null_count} of the events are null: drop or fill them")
    if routing_keys is None or isinstance(routing_keys, str):
        for chunk in column.chunks:
            yield chunk, routing_keys
        return
    keys = _chunked(_keys(routing_keys), "routing keys")
    if len(keys) != len(column):
        raise InvalidRequestError(f"{len(column)} events came with {len(keys)} routing keys")
    for batch in pa.Table.from_arrays([column, keys], [EVENT_COLUMN, ROUTING_KEY_COLUMN]).to_batches():
        yield batch.column(0), batch.column(1)


def _chunked(column: Any, what: str) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return column
    return pa.chunked_array([column], column.type)


def _payloads(events: Any) -> Any:
    """The events as an Arrow column of large binary, without a copy of the payloads if that is possible."""
    if isinstance(events, np.ndarray) and (rows := _numpy_rows(events)) is not None:
        return rows
    column = _arrow(events, pa.large_binary(), "events")
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = _decoded(column)
        kind = column.type
    if pa.types.is_fixed_size_binary(kind):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return pa.chunked_array([_fixed_size(chunk) for chunk in chunks], pa.large_binary())
    if not (_is_binary(kind) or _is_text(kind) or pa.types.is_null(kind)):
        raise InvalidRequestError(f"a column of events is binary or string, not {kind}: encode the events first")
    return pc.cast(column, pa.large_binary())


def _decoded(column: Any) -> Any:
    """The values of a dictionary column. Arrow has no such cast for values of each type, so they are cast before."""
    values = column.type.value_type
    if not (_is_binary(values) or _is_text(values)):
        return pc.cast(column, values)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    taken = [pc.take(pc.cast(chunk.dictionary, pa.large_binary()), chunk.indices) for chunk in chunks]
    return pa.chunked_array(taken, pa.large_binary())


def _fixed_size(column: pa.FixedSizeBinaryArray) -> pa.LargeBinaryArray:
    if column.null_count:
        return pc.cast(pc.cast(column, pa.binary()), pa.large_binary())
    size_bytes = column.type.byte_width
    data = column.buffers()[1].slice(column.offset * size_bytes, len(column) * size_bytes)
    return _evenly(data, len(column), size_bytes)


def _evenly(data: Any, count: int, size_bytes: int) -> pa.LargeBinaryArray:
    offsets = np.arange(count + 1, dtype=np.int64) * size_bytes
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), data])


def _numpy_rows(events: np.ndarray[Any, Any]) -> pa.LargeBinaryArray | None:
    """The payloads of an array whose events all have one size; None if they are text, bytes or objects."""
    if events.ndim == 1 and events.dtype.kind in "SUOT":
        return None
    of_bytes = events.ndim == 2 and events.dtype == np.uint8
    of_records = events.ndim == 1 and events.dtype.kind == "V" and not events.dtype.hasobject
    if not (of_bytes or of_records):
        raise InvalidRequestError(
            f"a numpy column of events has bytes (S), text (U), objects (O) or records (V) in one dimension, or uint8 "
            f"in two, not {events.dtype} in {events.ndim}: view it as one of these"
        )
    size_bytes = events.dtype.itemsize * (events.shape[1] if of_bytes else 1)
    return _evenly(pa.py_buffer(events.tobytes()), len(events), size_bytes)


def _keys(routing_keys: Any) -> Any:
    _check_column(routing_keys, "routing keys")
    column = _arrow(routing_keys, pa.large_string(), "routing keys")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (_is_text(kind) or pa.types.is_null(kind)):
        raise InvalidRequestError(f"a column of routing keys is string, not {column.type}: cast it first")
    return column


def _arrow(column: Any, kind: Any, what: str) -> Any:
    """An Arrow array of anything that Arrow takes; `kind` is the type of those whose values are Python objects.

    None, and NA and NaN of pandas, are null.
    """
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    try:
        if hasattr(column, "__arrow_c_stream__"):
            return _exported(column, what)
        if hasattr(column, "__arrow_c_array__"):
            return pa.array(column)
        if isinstance(column, np.ndarray):
            return pa.array(column, from_pandas=True)
        return pa.array(list(column), kind, from_pandas=True)
    except (TypeError, ValueError) as error:  # Arrow raises subclasses of these
        raise InvalidRequestError(f"these {what} are no column of bytes or text: {error}") from error


def _exported(column: Any, what: str) -> Any:
    try:
        return pa.chunked_array(column)
    except (TypeError, ValueError) as error:  # for example, a table with two columns of one name
        raise InvalidRequestError(f"these {what} cannot be exported to Arrow: {error}") from error


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _coded(keys: Any) -> tuple[KeySlice, np.ndarray[Any, Any]]:
    """The keys as codes of distinct ones, and the position in the key space of each code."""
    if keys is None or isinstance(keys, str):
        return KeySlice((), None, keys), np.empty(0) if keys is None else np.array([_position(keys)])
    if pa.types.is_null(keys.type):
        return KeySlice((), None, None), np.empty(0)
    if not pa.types.is_dictionary(keys.type):
        keys = pc.dictionary_encode(keys)
    try:
        names: list[str | None] = [*keys.dictionary.to_pylist(), None]
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"a routing key is not UTF-8: {error}") from error
    codes = pc.fill_null(pc.cast(keys.indices, pa.int64()), -1).to_numpy()
    # A dictionary may itself contain null; the event then has no key either.
    positions = np.array([np.nan if name is None else _position(name) for name in names])
    return KeySlice(names, codes, None), positions


def _positions(keys: KeySlice, position_of_code: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The positions of the events in the key space. Those without a key are spread evenly, from a random start."""
    if keys.codes is not None:
        positions = position_of_code[keys.codes]
        (without,) = np.nonzero(np.isnan(positions))
        positions[without] = _spread(len(without))
        return positions
    return position_of_code if keys.same is not None else _spread(count)


def _spread(count: int) -> np.ndarray[Any, Any]:
    """Positions from a random one on, around the key space once: neighbours mostly share a segment."""
    return (random.random() + np.arange(count) / max(count, 1)) % 1.0
