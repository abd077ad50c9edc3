"""Requests to the segment stores that own the segments: it finds the owners, keeps connections and repeats requests.

It is blocking and thread-safe. There is one connection per segment store, which is kept while it is used often enough.
If a store is unreachable, restarting or no longer the owner, the request is repeated with the owner looked up again,
until `deadline_s` or the deadline of the caller (`ports.deadlines`) has passed. So only requests that may be repeated
belong here.
"""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from headrace import wire
from headrace.adapters.tcp.store_trust import StoreTrust
from headrace.metadata.cluster_records import find_claim
from headrace.model.backoff import doubled_pause, half_jitter
from headrace.model.errors import OutOfTimeError, UnavailableError
from headrace.model.log_classes import ContainerLayout
from headrace.ports.clock import require_time, time_left_s
from headrace.ports.metadata_store import MetadataStore
from headrace.wire.client_end import CONNECT_TIMEOUT_S
from headrace.wire.connections.blocking import BlockingConnection
from headrace.wire.tls import STORE_NOT_TRUSTED, StoreTls

# Which containers have no store that answers: a circuit breaker for callers that have other things to do meanwhile.

PROBE_EVERY_S = 10.0


class UnreachableContainers:
    """Learns from what becomes of requests; safe for any number of threads."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._failed_s: dict[int, float] = {}

    def note_failure(self, containers: Iterable[int]) -> None:
        """Record that all attempts of requests to these containers failed."""
        with self._lock:
            for container in containers:
                self._failed_s.setdefault(container, self._monotonic_s())

    def note_answer(self, containers: Iterable[int]) -> None:
        with self._lock:
            for container in containers:
                self._failed_s.pop(container, None)

    def is_unreachable(self, container: int) -> bool:
        """Whether requests to the container are held back for now. One caller in each PROBE_EVERY_S may try it."""
        with self._lock:
            failed_s = self._failed_s.get(container)
            if failed_s is None:
                return False
            now_s = self._monotonic_s()
            if now_s < failed_s + PROBE_EVERY_S:
                return now_s >= failed_s
            self._failed_s[container] = now_s
            return False


ATTEMPT_TIMEOUT_S = 10.0
"""How long a connection may take to answer before the request is tried again."""

IDLE_MAX_S = 60.0
"""A connection that was idle for longer is replaced: a frozen function does not notice that its peer is gone."""

BACKOFF_FIRST_S = 0.04
BACKOFF_MAX_S = 1.0


class StoreAddress(NamedTuple):
    """Where a store is, and the epoch of its claim. `tls_name` is that in its certificate; "": without TLS."""

    host: str
    port: int
    epoch: int
    tls_name: str = ""

    @property
    def place(self) -> Place:
        return self.host, self.port, self.tls_name


Place = tuple[str, int, str]
"""What has a connection of its own: host, port, and the name in the certificate."""

Locate = Callable[[int], StoreAddress]
"""Returns the address of the store that owns a container; UnavailableError if no store has claimed it."""

Request = Callable[[int], wire.WireCommand]
Ask = Callable[[Request], wire.WireCommand]
"""Sends one request over a connection and waits for its reply."""

Result = TypeVar("Result")

TOKEN_REFUSED = "internal_token_refused"
"""The code of the UnavailableError when a store refuses the token of the deployment itself."""


def no_token() -> str:
    """The delegation token of requests in a deployment without tokens."""
    return ""


def locate_by_claims(store: MetadataStore) -> Locate:
    """Finds owners in the claims that segment stores write into the metadata store."""

    def locate(container: int) -> StoreAddress:
        stored = find_claim(store, container)
        if stored is None:
            raise UnavailableError(f"no segment store has claimed container {container} yet; retry")
        claim, epoch = stored
        return StoreAddress(claim.host, claim.port, epoch, claim.tls_name)

    return locate


@dataclass(slots=True)
class _Store:
    """The connection to one address, and who may use it now."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: BlockingConnection | None = None


class StoreCalls:
    """Asks the stores found by `locate`, for segments spread over `container_count` containers.

    Segments whose logs are in S3 are spread over `s3_containers` more.

    Every method raises UnavailableError when an owner did not answer within `deadline_s`.
    """

    def __init__(
        self,
        locate: Locate,
        container_count: int,
        s3_containers: int = 0,
        *,
        deadline_s: float,
        token: Callable[[], str] = no_token,
        trust: StoreTrust | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`token` returns the delegation token of a request that is sent now, or raises UnavailableError.

        `trust` is needed for stores that use TLS.
        """
        self._token = token
        self._trust = trust
        self._locate = locate
        self._layout = ContainerLayout(container_count, s3_containers)
        self._deadline_s = deadline_s
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._jitter = jitter
        self._lock = threading.Lock()
        self._stores: dict[Place, _Store] = {}
        self._addresses: dict[int, StoreAddress] = {}
        self._unreachable = UnreachableContainers(monotonic_s)

    def close(self) -> None:
        """Closes all connections; the next call opens new ones."""
        with self._lock:
            stores = list(self._stores.values())
            self._stores.clear()
        for store in stores:
            with store.lock:
                if store.connection is not None:
                    store.connection.close()

    def is_unreachable(self, segment: str) -> bool:
        """Whether the segment's store has just not answered anyone, and it is not this caller's turn to try again."""
        return self._unreachable.is_unreachable(self._layout.container_of_segment(segment))

    def call(self, requests: list[tuple[str, Request]]) -> list[wire.WireCommand]:
        """The final reply of each request, given with its segment; WrongHost and lost connections are not final."""
        if not requests:
            return []
        replies: dict[int, wire.WireCommand] = {}
        try:
            self._repeat(requests[0][0], lambda deadline_s: self._attempt(requests, replies, deadline_s))
        except OutOfTimeError:
            raise  # The store was not asked.
        except UnavailableError:
            self._unreachable.note_failure(
                self._containers(name for index, (name, _) in enumerate(requests) if index not in replies)
            )
            raise
        self._unreachable.note_answer(self._containers(name for name, _ in requests))
        return [replies[index] for index in range(len(requests))]

    def converse(self, segment: str, talk: Callable[[Ask], Result]) -> Result:
        """The result of `talk`, which sends several requests to the segment's store on one connection.

        No other caller uses the connection meanwhile. `talk` is called again if the connection is lost or a reply is
        not final, and raises for replies that it cannot use.
        """
        results: list[Result] = []

        def attempt(deadline_s: float) -> UnavailableError | None:
            try:
                place = self._address(segment).place
            except UnavailableError as unclaimed:
                return unclaimed
            try:
                results.append(
                    self._use_store(place, deadline_s, lambda connection, until_s: talk(self._ask(connection, until_s)))
                )
            except UnavailableError as problem:
                self._forget([segment])
                self._drop_connection(place)
                return problem
            return None

        try:
            self._repeat(segment, attempt)
        except OutOfTimeError:
            raise  # The store was not asked.
        except UnavailableError:
            self._unreachable.note_failure(self._containers([segment]))
            raise
        self._unreachable.note_answer(self._containers([segment]))
        return results[0]

    def _containers(self, segments: Iterable[str]) -> set[int]:
        return {self._layout.container_of_segment(segment) for segment in segments}

    def _repeat(self, segment: str, attempt: Callable[[float], UnavailableError | None]) -> None:
        """Attempts, with growing pauses, until there is no problem left."""
        require_time(f"a request to the store of segment {segment}")
        allowed_s = time_left_s(self._deadline_s)
        deadline_s = self._monotonic_s() + allowed_s
        failures = 0
        while (problem := attempt(deadline_s)) is not None:
            failures += 1
            wait_s = half_jitter(doubled_pause(failures, BACKOFF_FIRST_S, BACKOFF_MAX_S), self._jitter())
            if self._monotonic_s() + wait_s >= deadline_s:
                raise UnavailableError(
                    f"no answer for segment {segment} within {allowed_s:g} s; last problem: {problem}",
                    details=problem.details,
                ) from problem
            self._sleep(wait_s)

    def _attempt(
        self, requests: list[tuple[str, Request]], replies: dict[int, wire.WireCommand], deadline_s: float
    ) -> UnavailableError | None:
        """Asks each owner once for what `replies` lacks; the last problem if something is still missing."""
        problem: UnavailableError | None = None
        by_place: dict[Place, list[int]] = {}
        for index, (name, _) in enumerate(requests):
            if index in replies:
                continue
            try:
                by_place.setdefault(self._address(name).place, []).append(index)
            except UnavailableError as unclaimed:
                problem = unclaimed
        for place, indexes in by_place.items():
            try:
                answers = self._call_store(place, [requests[index][1] for index in indexes], deadline_s)
            except UnavailableError as lost:
                self._forget([requests[index][0] for index in indexes])
                problem = lost
                continue
            for index, answer in zip(indexes, answers, strict=True):
                error = _repeatable(answer)
                if error is not None:
                    self._forget([requests[index][0]])
                    if isinstance(answer, wire.WrongHost):
                        self._drop_connection(place)
                    problem = error
                else:
                    replies[index] = answer
        return problem

    def _call_store(self, place: Place, requests: list[Request], deadline_s: float) -> list[wire.WireCommand]:
        token = self._token()
        authorized = [_with_token(request, token) for request in requests] if token else requests
        return self._use_store(place, deadline_s, lambda connection, until_s: connection.call(authorized, until_s))

    def _ask(self, connection: BlockingConnection, deadline_s: float) -> Ask:
        def ask(request: Request) -> wire.WireCommand:
            token = self._token()
            (reply,) = connection.call([_with_token(request, token) if token else request], deadline_s)
            error = _repeatable(reply)
            if error is not None:
                raise error
            return reply

        return ask

    def _use_store(self, place: Place, deadline_s: float, use: Callable[[BlockingConnection, float], Result]) -> Result:
        """What `use` returns for a connection and the moment until which it may wait."""
        with self._lock:
            store = self._stores.setdefault(place, _Store())
        # Another thread may be waiting for this store with the connection in hand: it can be away.
        if not store.lock.acquire(timeout=max(0.0, deadline_s - self._monotonic_s())):
            host, port, _ = place
            raise UnavailableError(
                f"segment store {host}:{port} has not answered earlier requests yet; retry",
                details={"host": host, "port": port},
            )
        try:
            now_s = self._monotonic_s()
            attempt_deadline_s = min(deadline_s, now_s + ATTEMPT_TIMEOUT_S)
            kept = store.connection
            if kept is not None and not kept.is_closed and now_s - kept.last_used_s <= IDLE_MAX_S:
                try:
                    return use(kept, attempt_deadline_s)
                except UnavailableError:
                    if self._monotonic_s() >= attempt_deadline_s:
                        raise
                    # The store restarted or dropped an idle connection: that says nothing about it now.
            if kept is not None:
                kept.close()
            store.connection = self._open(place, max(0.001, min(CONNECT_TIMEOUT_S, attempt_deadline_s - now_s)))
            return use(store.connection, attempt_deadline_s)
        finally:
            store.lock.release()

    def _open(self, place: Place, timeout_s: float) -> BlockingConnection:
        host, port, name = place
        if not name:
            return BlockingConnection(host, port, timeout_s=timeout_s, monotonic_s=self._monotonic_s)
        if self._trust is None:
            raise UnavailableError(f"segment store {host}:{port} uses TLS, for which this process is not set up")
        context = self._trust.context()
        try:
            return self._open_encrypted(place, context, timeout_s)
        except UnavailableError as problem:
            if problem.specific_code != STORE_NOT_TRUSTED:
                raise
            renewed = self._trust.renewed(context, problem)
            if renewed is None:
                raise
        return self._open_encrypted(place, renewed, timeout_s)

    def _open_encrypted(self, place: Place, context: ssl.SSLContext, timeout_s: float) -> BlockingConnection:
        host, port, name = place
        tls = StoreTls(context, name)
        return BlockingConnection(host, port, tls=tls, timeout_s=timeout_s, monotonic_s=self._monotonic_s)

    def _drop_connection(self, place: Place) -> None:
        """It leads to a store, or to what is left of one, that is not the owner any more."""
        with self._lock:
            store = self._stores.get(place)
        if store is None:
            return
        if not store.lock.acquire(blocking=False):
            return  # Another thread uses it, and finds out by itself.
        try:
            if store.connection is not None:
                store.connection.close()
        finally:
            store.lock.release()

    def _address(self, segment: str) -> StoreAddress:
        container = self._layout.container_of_segment(segment)
        address = self._addresses.get(container)
        if address is None:
            address = self._addresses[container] = self._locate(container)
        return address

    def _forget(self, segments: list[str]) -> None:
        for segment in segments:
            self._addresses.pop(self._layout.container_of_segment(segment), None)


def _with_token(request: Request, token: str) -> Request:
    def authorized(request_id: int) -> wire.WireCommand:
        command: Any = request(request_id)
        # The later commands of an append have none: its set-up had one.
        if hasattr(command, "delegation_token"):
            command = replace(command, delegation_token=token)
        with_token: wire.WireCommand = command
        return with_token

    return authorized


def _repeatable(reply: wire.WireCommand) -> UnavailableError | None:
    """The error of a reply that is not final; None for all others."""
    if isinstance(reply, wire.AuthTokenCheckFailed):
        # The caller of this deployment has its rights already: the keys of two of its parts differ for some minutes.
        return UnavailableError(
            f"a segment store refuses the token of the control plane: {wire.error_of_reply(reply).message}",
            code=TOKEN_REFUSED,
        )
    return wire.temporary_error(reply)
