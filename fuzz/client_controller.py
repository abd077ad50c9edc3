"""The controller of a random client program: answers the client's HTTP requests, late, with errors, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx

from fuzz.client_network import FIRST_PORT, HOST
from fuzz.client_patches import now_s
from fuzz.client_streams import SCOPE, StoredSegment, StoredStream, StoredTransaction
from fuzz.client_tokens import TokenBook
from fuzz.randomness import Random
from headrace.api.response_headers import TOKENS, TOKENS_REQUIRED
from headrace.api.segments import (
    EpochSegments,
    RangeBetween,
    RangesBetween,
    SegmentEndpoint,
    StartedSegment,
    Successor,
    Successors,
)
from headrace.api.stream_cuts import ExplainedCutCheck, StreamCutView
from headrace.api.transactions import NewTransaction, TransactionSegmentView
from headrace.model.errors import HeadraceError, IllegalStateError, SealedError
from headrace.model.stream_cuts import StreamCut, invalid_cut
from headrace.model.transactions import TransactionState, transaction_text

_PATH: Final = f"/v1/scopes/{SCOPE}/streams/"
_REFUSED: Final = 412
_ID_BITS: Final = 128
_UNRECORDED_SHARE: Final = 0.2
_ENDED: Final = {
    TransactionState.COMMITTING: "transaction_committed",
    TransactionState.COMMITTED: "transaction_committed",
    TransactionState.ABORTED: "transaction_aborted",
}

Query = Mapping[str, str]
Body = Mapping[str, Any]


class ClientController(httpx.AsyncBaseTransport):
    """The client's transport. `spawn` runs what goes on after an answer."""

    def __init__(
        self,
        random: Random,
        streams: dict[str, StoredStream],
        tokens: TokenBook,
        spawn: Callable[[Any], object],
        pause: Callable[[], float],
    ) -> None:
        self.happened: Counter[str] = Counter()
        self.is_calm = False
        self.is_down = False
        self.failing_share = 0.0
        self._random = random
        self._streams = streams
        self._tokens = tokens
        self._spawn = spawn
        self._pause = pause

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._pause())
        fails = not self.is_calm and self._random.random() < self.failing_share
        kind = self._random.choice(("connect", "lost", "status")) if fails else ""
        if self.is_down or kind == "connect":
            self.happened["controller failures"] += 1
            raise httpx.ConnectError("the controller is down")
        headers = {TOKENS: TOKENS_REQUIRED} if self._tokens.are_wanted and self._random.random() < 0.7 else {}
        if kind == "status":
            self.happened["controller failures"] += 1
            error = {"code": "unavailable", "message": "the controller is busy", "retry": "later"}
            return httpx.Response(503, json={"error": error}, headers=headers)
        body = json.loads(request.content) if request.content else {}
        try:
            answer = self._answer(request.method, request.url.path, dict(request.url.params), body)
        except HeadraceError as refused:
            return httpx.Response(_REFUSED, json={"error": _error_json(refused)}, headers=headers)
        await asyncio.sleep(self._pause())
        if kind == "lost":
            self.happened["lost answers"] += 1
            raise httpx.ReadTimeout("the answer is lost")
        return httpx.Response(200, json=answer, headers=headers)

    def _answer(self, method: str, path: str, query: Query, body: Body) -> dict[str, Any]:
        name, *parts = path.removeprefix(_PATH).split("/")
        stream = self._streams[name]
        match method, parts:
            case _, ["delegation-token"]:
                token, expires_ms = self._tokens.issue()
                return {"token": token, "expiresMs": expires_ms}
            case "GET", ["segments"]:
                shown = [] if stream.is_sealed and "epoch" not in query else stream.active
                segments = tuple(StartedSegment(*_fields(stream, each), 0) for each in shown)
                return EpochSegments(stream.epoch, segments, stream.is_sealed).to_json()
            case "GET", ["segments", identifier, "successors"]:
                return self._successors(stream, stream.segments[int(identifier)])
            case "GET", ["segments", identifier, "endpoint"]:
                owner = stream.segments[int(identifier)].owner
                return SegmentEndpoint(HOST, FIRST_PORT + owner, "local", 1, 0).to_json()
            case "POST", ["segments", "between"]:
                return _between(stream, _offsets(body["from"]), _offsets(body["to"])).to_json()
            case "POST", ["stream-cuts", "check"]:
                cut = _offsets(body["cut"])
                beyond = [segment for segment, at in cut.items() if at > len(stream.segments[segment].data)]
                problem = invalid_cut(f"{beyond} are beyond the tail") if beyond else None
                return ExplainedCutCheck.of(problem).to_json()
            case "GET", ["stream-cut"]:
                return StreamCutView.of(cut_at(stream, query["at"])).to_json()
            case _, ["writers", *_]:
                return {}
            case "POST", ["transaction-leases"]:
                return {"leases": [_renewed(stream, text, int(body["lease"])) for text in body["transactions"]]}
            case _, ["transactions", *rest]:
                return self._transactions(stream, method, rest, body)
        raise AssertionError(f"no answer to {method} {path}")

    def _successors(self, stream: StoredStream, segment: StoredSegment) -> dict[str, Any]:
        if not self.is_calm and self._random.random() < _UNRECORDED_SHARE:
            return Successors((), False).to_json()
        found = [
            Successor(*_fields(stream, successor), tuple(stream.segments[successor].predecessors))
            for successor in segment.successors
        ]
        return Successors(tuple(found), stream.is_sealed and not found).to_json()

    # Transactions

    def _transactions(self, stream: StoredStream, method: str, parts: list[str], body: Body) -> dict[str, Any]:
        match method, parts:
            case "POST", []:
                return _transaction_json(stream, self._begin(stream, body))
            case "POST", [text, "segments"]:
                transaction = stream.transactions[text]
                _check_open(transaction)
                for parent in body["segments"]:
                    _create_segment(stream, transaction, int(parent))
            case "GET", [text]:
                transaction = stream.transactions[text]
            case "PUT", [text, "lease"]:
                transaction = _with_lease(stream, text, int(body["lease"]))
            case "PUT", [text, "state"]:
                transaction = stream.transactions[text]
                self._end(stream, transaction, TransactionState(body["state"]))
            case _:
                raise AssertionError(f"no answer to {method} {parts}")
        return _transaction_json(stream, transaction)

    def _begin(self, stream: StoredStream, body: Body) -> StoredTransaction:
        if not stream.begins_transactions:
            raise SealedError("the stream is sealed")
        text = transaction_text(self._random.getrandbits(_ID_BITS))
        lease_ms = int(body["lease"])
        lease_end_ms = int(now_s() * 1000) + lease_ms
        transaction = StoredTransaction(text, stream.epoch, lease_end_ms, tuple(stream.active))
        stream.transactions[text] = transaction
        self.happened["transactions"] += 1
        self._spawn(self._expire(stream, transaction))
        return transaction

    def _end(self, stream: StoredStream, transaction: StoredTransaction, state: TransactionState) -> None:
        is_commit = state is TransactionState.COMMITTING
        if transaction.state is TransactionState.OPEN:
            if is_commit:
                transaction.state = TransactionState.COMMITTING
                self._spawn(stream.commit(transaction, self._pause))
            else:
                stream.abort(transaction)
        elif is_commit == (transaction.state is TransactionState.ABORTED):
            _check_open(transaction)

    async def _expire(self, stream: StoredStream, transaction: StoredTransaction) -> None:
        while transaction.state is TransactionState.OPEN:
            left_s = transaction.lease_end_ms / 1000 - now_s()
            if left_s <= 0:
                self.happened["expired leases"] += 1
                stream.abort(transaction)
            else:
                await asyncio.sleep(left_s)


def cut_at(stream: StoredStream, at: str) -> StreamCut:
    """Return the cut at the head or the tail."""
    if at == "head":
        return StreamCut.of(SCOPE, stream.name, dict.fromkeys(stream.first, 0))
    return StreamCut.of(SCOPE, stream.name, {each: len(stream.segments[each].data) for each in stream.active})


def _between(stream: StoredStream, start: dict[int, int], end: dict[int, int] | None) -> RangesBetween:
    end = end or cut_at(stream, "tail").offsets
    after, before = set(start), set(end)
    for identifier, segment in stream.segments.items():  # in the order in which they were made
        if not after.isdisjoint(segment.predecessors):
            after.add(identifier)
    for identifier in reversed(stream.segments):
        if identifier in before:
            before.update(stream.segments[identifier].predecessors)
    found = [segment for segment in stream.segments if segment in after and segment in before]
    ranges = [
        RangeBetween(
            *_fields(stream, identifier),
            start.get(identifier, 0),
            end.get(identifier, len(stream.segments[identifier].data)),
            tuple(each for each in stream.segments[identifier].predecessors if each in found),
            tuple(each for each in stream.segments[identifier].successors if each in found),
        )
        for identifier in found
    ]
    cut_from, cut_to = (StreamCut.of(SCOPE, stream.name, offsets) for offsets in (start, end))
    return RangesBetween.between(cut_from, cut_to, tuple(ranges))


def _fields(stream: StoredStream, identifier: int) -> tuple[int, float, float, str]:
    """The fields of a `SegmentView`."""
    segment = stream.segments[identifier]
    return identifier, segment.key_range.low, segment.key_range.high, segment.name


def _offsets(found: Mapping[str, int] | None) -> Any:
    return None if found is None else {int(segment): offset for segment, offset in found.items()}


def _transaction_json(stream: StoredStream, transaction: StoredTransaction) -> dict[str, Any]:
    segments = [
        TransactionSegmentView(*_fields(stream, parent), transaction.segment_name(stream, parent))
        for parent in transaction.parents
    ]
    view = NewTransaction(
        transaction.text,
        transaction.state,
        0,
        transaction.lease_end_ms,
        None,
        None,
        segments=tuple(segments),
        on_demand=True,
    )
    return view.to_json()


def _with_lease(stream: StoredStream, text: str, lease_ms: int) -> StoredTransaction:
    transaction = stream.transactions[text]
    _check_open(transaction)
    transaction.lease_end_ms = int(now_s() * 1000) + lease_ms
    return transaction


def _renewed(stream: StoredStream, text: str, lease_ms: int) -> dict[str, Any]:
    """One outcome of a request that renews several leases."""
    try:
        end_ms = _with_lease(stream, text, lease_ms).lease_end_ms
    except HeadraceError as error:
        return {"transaction": text, "status": _REFUSED, "leaseEnd": None, "error": _error_json(error)}
    return {"transaction": text, "status": 200, "leaseEnd": end_ms, "error": None}


def _error_json(refused: HeadraceError) -> dict[str, Any]:
    return {"code": refused.specific_code, "message": refused.message, "retry": refused.retry}


def _create_segment(stream: StoredStream, transaction: StoredTransaction, parent: int) -> None:
    if parent not in transaction.segments:
        of = stream.segments[parent]
        segment = StoredSegment(transaction.segment_name(stream, parent), of.key_range, parent=of)
        transaction.segments[parent] = segment
        stream.add(segment)


def _check_open(transaction: StoredTransaction) -> None:
    if transaction.state is not TransactionState.OPEN:
        raise IllegalStateError("the transaction is not open", code=_ENDED[transaction.state])
