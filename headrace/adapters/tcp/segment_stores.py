"""The `SegmentStores` port over the wire protocol: what the controller's functions and workflows use.

It is blocking and thread-safe. store_calls.py finds the stores and repeats requests.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from headrace import wire
from headrace.adapters.tcp.store_calls import Ask, Locate, Request, StoreCalls, no_token
from headrace.adapters.tcp.store_trust import StoreTrust
from headrace.model.errors import ConflictError, InvalidRequestError, NotFoundError, SealedError, UnavailableError
from headrace.model.limits import READ_BYTES_MAX
from headrace.model.segment_attributes import CONTROLLER_WRITER, MAY_LACK_BYTES
from headrace.ports.segment_stores import AttributeBound, SegmentInfo, SegmentScaleRate, check_append

_NUMBERS_OF_AN_INCARNATION = 1 << 32
"""More than the bytes of an append: a late one fits only where the segment ends, so its number would be too small. The
first segment number of an incarnation has 31 bits, so that the sum is a number of 63."""

_MERGED_AT_ONCE_MAX = 1_000
"""Sources that a segment store takes in one request."""

_ASKED_AT_ONCE_MAX = 1_000
"""Segments that are asked about within one deadline."""


class TcpSegmentStores:
    """Segment stores found by `locate`, for segments spread over `container_count` containers.

    Segments whose logs are in S3 are spread over `s3_containers` more.

    Every method raises UnavailableError when an owner did not answer within `deadline_s`. `token` returns the
    delegation token that allows everything, as `InternalToken.token` does. `trust` is needed for stores that use TLS.
    """

    def __init__(
        self,
        locate: Locate,
        container_count: int,
        s3_containers: int = 0,
        *,
        deadline_s: float = 20.0,
        token: Callable[[], str] = no_token,
        trust: StoreTrust | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._deadline_s = deadline_s
        self._calls = StoreCalls(
            locate,
            container_count,
            s3_containers,
            deadline_s=deadline_s,
            token=token,
            trust=trust,
            monotonic_s=monotonic_s,
            sleep=sleep,
            jitter=jitter,
        )

    def close(self) -> None:
        """Closes all connections; the next call opens new ones."""
        self._calls.close()

    def is_unreachable(self, name: str) -> bool:
        """Whether the segment's store has just not answered, and other callers are trying it again."""
        return self._calls.is_unreachable(name)

    # Creation, sealing, truncation, deletion

    def create_segment(self, name: str, rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None:
        """Create the segment; one that exists is not changed."""
        self.create_segments([name], rate, rollover_size_bytes)

    def create_segments(self, names: Sequence[str], rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None:
        def request(name: str, request_id: int) -> wire.WireCommand:
            return wire.CreateSegment(
                request_id, name, rate.target_rate, rate.scale_type, rollover_size_bytes=rollover_size_bytes
            )

        self._expect_each(names, request, wire.SegmentCreated, wire.SegmentAlreadyExists)

    def seal_segment(self, name: str) -> None:
        """Seals the segment; NotFoundError if there is none."""
        self.seal_segments([name])

    def seal_segments(self, names: Sequence[str]) -> None:
        self._expect_each(
            names, lambda name, number: wire.SealSegment(number, name), wire.SegmentSealed, wire.SegmentIsSealed
        )

    def truncate_segment(self, name: str, offset: int) -> None:
        """Remove the bytes before `offset`; raises InvalidRequestError if that is beyond the segment's end."""
        reply = self._call(name, lambda number: wire.TruncateSegment(number, name, offset))
        _check_truncated(name, offset, reply)

    def truncate_segment_up_to(self, name: str, offset: int, bound: AttributeBound) -> bool:
        def request(request_id: int) -> wire.WireCommand:
            return wire.TruncateSegmentUpTo(request_id, name, offset, bound.attribute_id, bound.value_max)

        reply = self._call(name, request)
        if isinstance(reply, wire.SegmentAttributeUpdated):
            return False
        _check_truncated(name, offset, reply)
        return True

    def delete_segment(self, name: str) -> None:
        """Removes the segment; fine if there is none."""
        self.delete_segments([name])

    def delete_segments(self, names: Sequence[str]) -> None:
        self._expect_each(
            names, lambda name, number: wire.DeleteSegment(number, name), wire.SegmentDeleted, wire.NoSuchSegment
        )

    def delete_segment_up_to(self, name: str, bound: AttributeBound) -> bool:
        def request(request_id: int) -> wire.WireCommand:
            return wire.DeleteSegmentUpTo(request_id, name, bound.attribute_id, bound.value_max)

        reply = self._call(name, request)
        _check(reply, wire.SegmentDeleted, wire.NoSuchSegment, wire.SegmentAttributeUpdated)
        return not isinstance(reply, wire.SegmentAttributeUpdated)

    def segment_info(self, name: str) -> SegmentInfo:
        """Raises NotFoundError if there is no such segment."""
        return self.segment_infos([name])[0]

    def segment_infos(self, names: list[str]) -> list[SegmentInfo]:
        """Raises NotFoundError if one of the segments does not exist."""
        replies = self._call_each(names, lambda name, number: wire.GetStreamSegmentInfo(number, name))
        return [_segment_info(name, reply) for name, reply in zip(names, replies, strict=True)]

    def locate_offsets(self, targets: Sequence[tuple[str, int]]) -> list[int]:
        offsets: list[int] = []
        for first in range(0, len(targets), _ASKED_AT_ONCE_MAX):
            asked = targets[first : first + _ASKED_AT_ONCE_MAX]
            replies = self._calls.call([(name, _location(name, target)) for name, target in asked])
            offsets += map(_located_offset, replies)
        return offsets

    def update_segment_policy(self, name: str, rate: SegmentScaleRate) -> None:
        def request(request_id: int) -> wire.WireCommand:
            return wire.UpdateSegmentPolicy(request_id, name, rate.target_rate, rate.scale_type)

        _check(self._call(name, request), wire.SegmentPolicyUpdated)

    def merge_segments(self, target: str, sources: Sequence[str]) -> None:
        for first in range(0, len(sources), _MERGED_AT_ONCE_MAX):
            self._merge(target, tuple(sources[first : first + _MERGED_AT_ONCE_MAX]))

    def incomplete_segments(self, names: Sequence[str]) -> set[str]:
        def request(name: str, request_id: int) -> wire.WireCommand:
            return wire.GetSegmentAttribute(request_id, name, MAY_LACK_BYTES)

        incomplete: set[str] = set()
        for first in range(0, len(names), _ASKED_AT_ONCE_MAX):
            asked = names[first : first + _ASKED_AT_ONCE_MAX]
            for name, reply in zip(asked, self._call_each(asked, request), strict=True):
                _check(reply, wire.SegmentAttribute, wire.NoSuchSegment)
                if not isinstance(reply, wire.SegmentAttribute) or reply.value != wire.NO_ATTRIBUTE_VALUE:
                    incomplete.add(name)
        return incomplete

    # Bytes

    def append(self, name: str, data: bytes, expected_offset: int, incarnation: int = 0) -> int:
        check_append(name, data)
        end = expected_offset + len(data)
        number = end + incarnation * _NUMBERS_OF_AN_INCARNATION
        refusal = self._calls.converse(name, lambda ask: _append_once(ask, name, data, expected_offset, number))
        if refusal is None:
            return end
        info = self.segment_info(name)
        if info.start_offset <= expected_offset and end <= info.length:
            if self.read(name, expected_offset, len(data)) == data:
                return end
        elif isinstance(refusal, SealedError) and info.length == expected_offset:
            raise refusal
        raise ConflictError(
            f"segment {name} has length {info.length}, expected {expected_offset}",
            details={"segment": name, "offset": info.length},
        )

    def read(self, name: str, offset: int, length_max: int) -> bytes:
        info = self.segment_info(name)
        if offset < info.start_offset:
            raise wire.error_of_reply(wire.SegmentIsTruncated(0, name, info.start_offset, "", offset))
        end = min(offset + length_max, info.length)
        data = bytearray()
        while offset + len(data) < end:  # a read at the end would be held until something is there
            start = offset + len(data)
            data += self._read_once(name, start, min(end - start, READ_BYTES_MAX))
        return bytes(data[: max(0, end - offset)])

    # Attributes

    def get_attribute(self, name: str, attribute_id: int) -> int | None:
        reply = self._call(name, lambda number: wire.GetSegmentAttribute(number, name, attribute_id))
        if not isinstance(reply, wire.SegmentAttribute):
            raise wire.error_of_reply(reply)
        return None if reply.value == wire.NO_ATTRIBUTE_VALUE else reply.value

    def compare_and_set_attribute(self, name: str, attribute_id: int, value: int, expected: int | None) -> bool:
        condition = wire.NO_ATTRIBUTE_VALUE if expected is None else expected

        def request(request_id: int) -> wire.WireCommand:
            return wire.UpdateSegmentAttribute(request_id, name, attribute_id, value, condition)

        return self._set_attribute(name, attribute_id, value, request)

    def set_attribute_up_to(
        self, name: str, attribute_id: int, value: int, expected: int | None, bound: AttributeBound
    ) -> bool:
        condition = wire.NO_ATTRIBUTE_VALUE if expected is None else expected

        def request(request_id: int) -> wire.WireCommand:
            return wire.UpdateSegmentAttributeUpTo(
                request_id, name, attribute_id, value, condition, bound.attribute_id, bound.value_max
            )

        return self._set_attribute(name, attribute_id, value, request)

    def _set_attribute(self, name: str, attribute_id: int, value: int, request: Request) -> bool:
        reply = self._call(name, request)
        if not isinstance(reply, wire.SegmentAttributeUpdated):
            raise wire.error_of_reply(reply)
        return reply.success or self.get_attribute(name, attribute_id) == value

    # Tables

    def create_table_segment(self, name: str, key_length: int, rollover_size_bytes: int = 0) -> None:
        def request(request_id: int) -> wire.WireCommand:
            return wire.CreateTableSegment(
                request_id, name, key_length=key_length, rollover_size_bytes=rollover_size_bytes
            )

        _check(self._call(name, request), wire.SegmentCreated, wire.SegmentAlreadyExists)

    def delete_table_segment(self, name: str) -> None:
        reply = self._call(name, lambda number: wire.DeleteTableSegment(number, name, must_be_empty=False))
        _check(reply, wire.SegmentDeleted, wire.NoSuchSegment)

    def _merge(self, target: str, sources: tuple[str, ...]) -> None:
        reply = self._call(target, lambda number: wire.MergeSegmentsBatch(number, target, sources))
        _check(reply, wire.SegmentsBatchMerged)

    def _read_once(self, name: str, offset: int, length: int) -> bytes:
        reply = self._call(name, lambda number: wire.ReadSegment(name, offset, length, "", number))
        if not isinstance(reply, wire.SegmentRead):
            raise wire.error_of_reply(reply)
        return bytes(reply.data)

    def _expect_each(
        self, names: Sequence[str], request: Callable[[str, int], wire.WireCommand], *expected: type[wire.WireCommand]
    ) -> None:
        for reply in self._call_each(names, request):
            _check(reply, *expected)

    def _call_each(
        self, names: Sequence[str], request: Callable[[str, int], wire.WireCommand]
    ) -> list[wire.WireCommand]:
        def of_one(name: str) -> Request:
            return lambda request_id: request(name, request_id)

        return self._calls.call([(name, of_one(name)) for name in names])

    def _call(self, name: str, request: Request) -> wire.WireCommand:
        return self._calls.call([(name, request)])[0]


def _append_once(
    ask: Ask, name: str, data: bytes, expected_offset: int, event_number: int
) -> ConflictError | SealedError | None:
    """Append over one connection; why that was refused, which it also is if an earlier attempt has succeeded.

    Raises UnavailableError when it has to be repeated, and else the error of the store's reply.
    """
    lost = ConflictError(f"the end of segment {name} is not at {expected_offset}", details={"segment": name})
    reply = ask(lambda number: wire.SetupAppend(number, CONTROLLER_WRITER, name))
    if not isinstance(reply, wire.AppendSetup):
        raise wire.error_of_reply(reply)
    if reply.last_event_number >= event_number:
        return lost

    def request(request_id: int) -> wire.WireCommand:
        return wire.ConditionalBlockEnd(CONTROLLER_WRITER, event_number, expected_offset, data, request_id)

    reply = ask(request)
    match reply:
        case wire.DataAppended():
            return None
        case wire.ConditionalCheckFailed():
            return lost
        case wire.SegmentIsSealed():
            return SealedError(f"segment {name} is sealed", details={"segment": name})
        case wire.InvalidEventNumber():
            raise UnavailableError(f"another connection appended to segment {name} at the same time")
        case _:
            raise wire.error_of_reply(reply)


def _location(name: str, target: int) -> Request:
    return lambda request_id: wire.LocateOffset(request_id, name, target)


def _located_offset(reply: wire.WireCommand) -> int:
    if not isinstance(reply, wire.OffsetLocated):
        raise wire.error_of_reply(reply)
    return reply.offset


def _segment_info(name: str, reply: wire.WireCommand) -> SegmentInfo:
    if not isinstance(reply, wire.StreamSegmentInfo):
        raise wire.error_of_reply(reply)
    if not reply.exists:
        raise NotFoundError(f"there is no segment {name}", details={"segment": name})
    return SegmentInfo(name, reply.start_offset, reply.write_offset, reply.is_sealed, reply.last_modified)


def _check_truncated(name: str, offset: int, reply: wire.WireCommand) -> None:
    if isinstance(reply, wire.SegmentIsTruncated):
        raise InvalidRequestError(
            f"segment {name} cannot be truncated at {offset}: that is beyond its end",
            details={"segment": name, "offset": offset},
        )
    _check(reply, wire.SegmentTruncated)


def _check(reply: wire.WireCommand, *expected: type[wire.WireCommand]) -> None:
    if not isinstance(reply, expected):
        raise wire.error_of_reply(reply)
