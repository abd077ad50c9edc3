"""The `SegmentStores` port over the wire protocol: what the controller's functions and workflows use.

Blocking and thread-safe. One connection per segment store, kept while it is used often enough. A request whose store
is away, restarting or no longer the owner is repeated, with the owner looked up anew, until `deadline_s` has passed:
every operation of the port may be repeated.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.adapters.tcp.connection import CONNECT_TIMEOUT_S, BlockingConnection
from headrace.adapters.tcp.replies import error_of_reply
from headrace.codec import wire_commands as wire
from headrace.model.containers import CLUSTER_PARTITION, claim_sort, container_claim
from headrace.model.errors import InvalidRequestError, NotFoundError, UnavailableError
from headrace.model.names import container_of_segment
from headrace.ports.metadata_store import Key, MetadataStore
from headrace.ports.segment_stores import SegmentInfo, SegmentScaleRate

ATTEMPT_TIMEOUT_S = 10.0
"""How long one connection is given to answer before the request is tried anew."""

IDLE_MAX_S = 60.0
"""A connection unused for longer is not trusted: a frozen function does not notice that its peer is gone."""

BACK_OFF_FIRST_S = 0.02
BACK_OFF_MAX_S = 1.0

Address = tuple[str, int, int]
Locate = Callable[[int], Address]
"""Host, port and epoch of the store that owns a container; raises UnavailableError if nobody claimed it."""

Request = Callable[[int], wire.WireCommand]
_NOT_FINAL = (wire.WrongHost, wire.ErrorMessage)
"""Replies that may stand for a passing trouble: the container moved, or is not ready yet."""


def locate_by_claims(store: MetadataStore) -> Locate:
    """Finds owners in the claims that segment stores write into the metadata store."""

    def locate(container: int) -> Address:
        record = store.get(Key(CLUSTER_PARTITION, claim_sort(container)))
        if record is None:
            raise UnavailableError(f"no segment store has claimed container {container} yet; retry")
        claim = container_claim(record.body)
        return claim.host, claim.port, record.version

    return locate


@dataclass(slots=True)
class _Store:
    """The connection to one address, and who may use it now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: BlockingConnection | None = None


class TcpSegmentStores:
    """Segment stores found by `locate`, for segments spread over `container_count` containers.

    Every method raises UnavailableError when an owner did not answer within `deadline_s`.
    """

    def __init__(
        self,
        locate: Locate,
        container_count: int,
        *,
        deadline_s: float = 20.0,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._locate = locate
        self._container_count = container_count
        self._deadline_s = deadline_s
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._jitter = jitter
        self._lock = threading.Lock()
        self._stores: dict[tuple[str, int], _Store] = {}
        self._addresses: dict[int, Address] = {}

    def create_segment(self, name: str, rate: SegmentScaleRate, rollover_size_bytes: int = 0) -> None:
        """Creates the segment; one that exists is left as it is."""

        def request(request_id: int) -> wire.WireCommand:
            return wire.CreateSegment(
                request_id, name, rate.target_rate, rate.scale_type, rollover_size_bytes=rollover_size_bytes
            )

        self._expect(name, request, wire.SegmentCreated, wire.SegmentAlreadyExists)

    def seal_segment(self, name: str) -> None:
        """Seals the segment; NotFoundError if there is none."""
        self._expect(name, lambda number: wire.SealSegment(number, name), wire.SegmentSealed, wire.SegmentIsSealed)

    def truncate_segment(self, name: str, offset: int) -> None:
        """Removes what lies before `offset`; InvalidRequestError if that is beyond the segment's end."""
        reply = self._call([(name, lambda number: wire.TruncateSegment(number, name, offset))])[0]
        if isinstance(reply, wire.SegmentIsTruncated):
            raise InvalidRequestError(
                f"segment {name} cannot be truncated at {offset}: that is beyond its end",
                details={"segment": name, "offset": offset},
            )
        _check(reply, wire.SegmentTruncated)

    def delete_segment(self, name: str) -> None:
        """Removes the segment; fine if there is none."""
        self._expect(name, lambda number: wire.DeleteSegment(number, name), wire.SegmentDeleted, wire.NoSuchSegment)

    def segment_info(self, name: str) -> SegmentInfo:
        """Raises NotFoundError if there is no such segment."""
        return self.segment_infos([name])[0]

    def segment_infos(self, names: list[str]) -> list[SegmentInfo]:
        """Raises NotFoundError if one of the segments does not exist."""
        replies = self._call([(name, _info_request(name)) for name in names])
        return [_segment_info(name, reply) for name, reply in zip(names, replies, strict=True)]

    def close(self) -> None:
        """Closes all connections; the next call opens new ones."""
        with self._lock:
            stores = list(self._stores.values())
            self._stores.clear()
        for store in stores:
            with store.lock:
                if store.connection is not None:
                    store.connection.close()

    def _expect(self, name: str, request: Request, *expected: type[wire.WireCommand]) -> None:
        _check(self._call([(name, request)])[0], *expected)

    def _call(self, requests: list[tuple[str, Request]]) -> list[wire.WireCommand]:
        """The final reply of each request; WrongHost and lost connections are not final."""
        replies: dict[int, wire.WireCommand] = {}
        deadline_s = self._monotonic_s() + self._deadline_s
        back_off_s = BACK_OFF_FIRST_S
        while True:
            problem = self._attempt(requests, replies, deadline_s)
            if problem is None:
                return [replies[index] for index in range(len(requests))]
            back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)
            wait_s = back_off_s * (0.5 + self._jitter() / 2)
            if self._monotonic_s() + wait_s >= deadline_s:
                raise UnavailableError(
                    f"no answer for segment {requests[0][0]} within {self._deadline_s:g} s; last problem: {problem}",
                    details=problem.details,
                ) from problem
            self._sleep(wait_s)

    def _attempt(
        self, requests: list[tuple[str, Request]], replies: dict[int, wire.WireCommand], deadline_s: float
    ) -> UnavailableError | None:
        """Asks each owner once for what `replies` lacks; the last problem if something is still missing."""
        problem: UnavailableError | None = None
        by_address: dict[tuple[str, int], list[int]] = {}
        for index, (name, _) in enumerate(requests):
            if index in replies:
                continue
            try:
                host, port, _ = self._address(name)
                by_address.setdefault((host, port), []).append(index)
            except UnavailableError as unclaimed:
                problem = unclaimed
        for (host, port), indexes in by_address.items():
            try:
                answers = self._call_store(host, port, [requests[index][1] for index in indexes], deadline_s)
            except UnavailableError as lost:
                self._forget([requests[index][0] for index in indexes])
                problem = lost
                continue
            for index, answer in zip(indexes, answers, strict=True):
                error = error_of_reply(answer) if type(answer) in _NOT_FINAL else None
                if isinstance(error, UnavailableError):
                    self._forget([requests[index][0]])
                    if isinstance(answer, wire.WrongHost):
                        self._drop_connection(host, port)
                    problem = error
                else:
                    replies[index] = answer
        return problem

    def _call_store(self, host: str, port: int, requests: list[Request], deadline_s: float) -> list[wire.WireCommand]:
        with self._lock:
            store = self._stores.setdefault((host, port), _Store())
        with store.lock:
            now_s = self._monotonic_s()
            attempt_deadline_s = min(deadline_s, now_s + ATTEMPT_TIMEOUT_S)
            kept = store.connection
            if kept is not None and not kept.is_closed and now_s - kept.last_used_s <= IDLE_MAX_S:
                try:
                    return kept.call(requests, attempt_deadline_s)
                except UnavailableError:
                    if self._monotonic_s() >= attempt_deadline_s:
                        raise
                    # The store restarted or dropped an idle connection: that says nothing about it now.
            if kept is not None:
                kept.close()
            store.connection = BlockingConnection(
                host,
                port,
                timeout_s=max(0.001, min(CONNECT_TIMEOUT_S, attempt_deadline_s - now_s)),
                monotonic_s=self._monotonic_s,
            )
            return store.connection.call(requests, attempt_deadline_s)

    def _drop_connection(self, host: str, port: int) -> None:
        """It leads to a store, or to what is left of one, that is not the owner any more."""
        store = self._stores[host, port]
        with store.lock:
            if store.connection is not None:
                store.connection.close()

    def _address(self, segment: str) -> Address:
        container = container_of_segment(segment, self._container_count)
        address = self._addresses.get(container)
        if address is None:
            address = self._addresses[container] = self._locate(container)
        return address

    def _forget(self, segments: list[str]) -> None:
        for segment in segments:
            self._addresses.pop(container_of_segment(segment, self._container_count), None)


def _info_request(name: str) -> Request:
    return lambda number: wire.GetStreamSegmentInfo(number, name)


def _segment_info(name: str, reply: wire.WireCommand) -> SegmentInfo:
    if not isinstance(reply, wire.StreamSegmentInfo):
        raise error_of_reply(reply)
    if not reply.exists:
        raise NotFoundError(f"there is no segment {name}", details={"segment": name})
    return SegmentInfo(name, reply.start_offset, reply.write_offset, reply.is_sealed, reply.last_modified)


def _check(reply: wire.WireCommand, *expected: type[wire.WireCommand]) -> None:
    if not isinstance(reply, expected):
        raise error_of_reply(reply)
