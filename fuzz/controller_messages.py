"""Processors of the queues and periodic ticks: several processes, that may have the same message."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.controller_model import SCOPE, STREAMS
from fuzz.controller_run import ControllerRun, Message
from fuzz.watched_ports import Crash
from headrace import topology
from headrace.controller.engine import RequestProcessor
from headrace.controller.operations.abort_transaction import AbortProcessor
from headrace.controller.operations.commit_transactions import CommitProcessor
from headrace.controller.ticks.advance_watermarks import WatermarkAdvancer, watermark_ticks
from headrace.controller.ticks.expire_transactions import transaction_ticks
from headrace.controller.ticks.remove_orphans import creation_ticks
from headrace.controller.write_dead_letter import handle_dead_letter
from headrace.metadata.due_index import bucket_of
from headrace.model.dead_letters import Delivery, cause_of
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    SealedError,
)
from headrace.ports.clock import PIECE_S, WorkLeftError, time_limit

_TIME_LIMITS_S: Final = (None, 30.0)
_SHORT_S: Final = PIECE_S + 2
"""So long an invocation lasts if calls are slow: it can do a piece or two."""
_INVOCATIONS_MAX: Final = 100
_FAILURES_BEFORE_LETTER: Final = 2
_PAUSES_MS: Final = (11_000, 61_000, 61_000)
_TICKS: Final = ("expire", "expire", "resend", "creations", "retention", "watermarks")
_PASSES: Final = 5
_PASS_MS: Final = 200_000
_REPEATS_MAX: Final = 30
_TICKS_MAX: Final = 1_000


class Messages:
    """Each public method but `settle` is the work of one process."""

    def __init__(self, run: ControllerRun) -> None:
        self._run = run
        self._random = run.random
        self._plane = run.plane
        self._failures: Counter[str] = Counter()
        plane = run.plane
        advancer = WatermarkAdvancer(plane.store, plane.segment_stores, plane.clock)
        self._watermarks = watermark_ticks(plane.store, plane.clock, advancer.advance)

    def process(self, message: Message, limit_s: float | None = None) -> None:
        """Process a message in a new process."""
        kind, body = message
        tools = self._plane.tools()
        processes = {
            "request": RequestProcessor(tools).process,
            "commit": CommitProcessor(tools).process,
            "abort": AbortProcessor(tools).process,
        }
        work = processes[kind]
        if limit_s is None:
            work(body)
            return
        with time_limit(self._plane.clock, limit_s):
            work(body)

    def consume(self) -> None:
        """Take messages, in their order or not, and also old ones again."""
        run, random = self._run, self._random
        for _ in range(random.randint(3, 10)):
            run.collect()
            run.give_turn()
            if run.processed and random.random() < 0.15:
                message = random.choice(run.processed)
            elif run.waiting:
                message = run.waiting.pop(random.randrange(len(run.waiting)) if random.random() < 0.3 else 0)
                if random.random() < run.repeated_share:
                    run.waiting.append(message)
            else:
                continue
            self._consume(message)

    def process_requests(self, stream: str, kind: str = "request") -> None:
        """Process the waiting requests on a stream, or the messages of another kind."""
        self._run.collect()
        self._run.give_turn()
        for message in [each for each in self._run.waiting if each[0] == kind and each[1].get("stream") == stream]:
            if message in self._run.waiting:  # Another process may have taken it.
                self._run.waiting.remove(message)
                self._consume(message)

    def _consume(self, message: Message) -> None:
        run = self._run
        run.processed.append(message)
        run.trace.note(f"process {message}")
        try:
            self.process(message, _SHORT_S if run.slow_calls else self._random.choice(_TIME_LIMITS_S))
            run.note(f"processed {message[0]}")
        except Crash:
            run.waiting.append(message)
            raise
        except WorkLeftError:
            run.waiting.append(message)
            run.note("work left")
        except (CorruptError, NotFoundError):
            raise
        except HeadraceError as error:
            run.happened[f"{message[0]}: {type(error).__name__}"] += 1
            run.trace.note(f"{message[0]}: {error!r}")
            self._fail(message, error)

    def _fail(self, message: Message, error: HeadraceError) -> None:
        """Deliver a message again that failed, or write its dead letter."""
        kind, body = message
        text = json.dumps(body)
        self._failures[text] += 1
        count = self._failures[text]
        is_last = count >= _FAILURES_BEFORE_LETTER and self._random.random() < 0.4
        if is_last or isinstance(error, IllegalStateError):
            delivery = Delivery(kind, "g", text, 0, count)
            with self._run.refusals_noted("dead letter"):
                letter = handle_dead_letter(self._plane.store, delivery, cause_of(error), self._plane.clock.now_ms())
                self._run.note(f"dead letter: {letter.status if letter else 'its request is complete'}")
                return
        self._run.waiting.append(message)

    def process_twice(self, message: Message) -> None:
        """One of several processors that have the same message at once."""
        for _ in range(2):
            self._run.give_turn()
            self._run.processed.append(message)
            try:
                self.process(message)
            except (CorruptError, NotFoundError):
                raise
            except HeadraceError as error:
                self._run.happened[f"storm of {message[0]}: {type(error).__name__}"] += 1
                self._run.trace.note(f"{message[0]}: {error!r}")
                self._run.waiting.append(message)

    def tick(self) -> None:
        """Ticks on the buckets of the streams, some time after each other."""
        random = self._random
        for _ in range(random.randint(1, 3)):
            if random.random() < 0.7:
                self._plane.clock.advance(random.choice(_PAUSES_MS))
            for bucket in sorted({bucket_of(SCOPE, name) for name in STREAMS}):
                what = random.choice(_TICKS)
                with self._run.refusals_noted(f"tick: {what}"):
                    self._tick(what, bucket)

    def _tick(self, what: str, bucket: int) -> None:
        plane = self._plane
        match what:
            case "expire":
                transaction_ticks(plane.tools(), plane.transaction_queues, plane.workers).run(bucket)
            case "resend":
                plane.resend_intents(bucket)
            case "creations":
                creation_ticks(plane.tools()).run(bucket)
            case "retention":
                self._run.retention.ticks.run(bucket)
            case _:
                self._watermarks.run(bucket)

    def settle(self, passes: int = _PASSES, pass_ms: int = _PASS_MS) -> None:
        """Run all ticks and process all messages without faults, until nothing is left to do.

        In the second pass also all former messages arrive again.
        """
        again = list(self._run.processed)
        self._random.shuffle(again)
        for number in range(passes):
            self._plane.clock.advance(pass_ms)
            for stream in STREAMS:
                with suppress(ConflictError, NotFoundError, SealedError):
                    self._plane.streams.unfreeze_stream(SCOPE, stream)
            for bucket in range(topology.BUCKET_COUNT):
                self._tick_until_done(bucket)
            repeated = again if number == 1 else []
            for _ in range(_REPEATS_MAX):
                self._run.collect()
                waiting, self._run.waiting = [*self._run.waiting, *repeated], []
                repeated = []
                if not waiting:
                    break
                for message in waiting:
                    self._settle(message, is_last=number == passes - 1)

    def _tick_until_done(self, bucket: int) -> None:
        self._plane.resend_intents(bucket)
        for _ in range(_TICKS_MAX):
            if not self._plane.expire_transactions(bucket):
                break
        else:
            raise WrongStateError(f"{_TICKS_MAX} ticks leave transactions to expire in bucket {bucket}")
        self._run.retention.ticks.run(bucket)
        self._watermarks.run(bucket)
        creation_ticks(self._plane.tools()).run(bucket)

    def _settle(self, message: Message, *, is_last: bool) -> None:
        try:
            self._process_pieces(message)
            self._run.processed.append(message)
        except IllegalStateError as error:
            self._fail(message, error)
        except (ConflictError, SealedError) as error:
            self._run.happened[f"settled {message[0]}: {type(error).__name__}"] += 1
            if not is_last:
                self._run.waiting.append(message)

    def _process_pieces(self, message: Message) -> None:
        """Process a message in invocations that have little time if calls are slow. Each must get further."""
        for _ in range(_INVOCATIONS_MAX):
            try:
                self.process(message, _SHORT_S if self._run.slow_calls else None)
            except WorkLeftError:
                self._run.happened["work left at the end"] += 1
            else:
                return
        raise WrongStateError(f"{_INVOCATIONS_MAX} invocations have not processed {message}")
