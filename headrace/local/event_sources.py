"""What calls the functions of the local stack besides HTTP requests: the messages of queues, and schedules."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from headrace.local.lambda_host import HandlerFailedError
from headrace.local.resources import REGION
from headrace.ports.clock import Clock
from headrace.topology import Queue, Schedule

# SQS event sources: receive a batch, call the function, delete what it did not report as failed.
#
# Each queue has a few threads, so that one slow stream does not stop all others. One thread waits for messages while
# the others process a batch or wait for their turn. The queue never gives two threads messages of the same FIFO group.
# A failed message stays in flight until its visibility time-out. After `max_receive_count` receives the queue moves it
# to its dead-letter queue.

LONG_POLL_S = 20
"""The longest that SQS allows: a stack without work then sends hardly a request. No shutdown waits for a long poll."""

BACKOFF_S = 1.0

THREADS_PER_QUEUE_MAX = 2
"""AWS runs up to the queue's `concurrency_max`; a laptop has two cores."""

_DELETES_PER_CALL_MAX = 10

_log = logging.getLogger(__name__)

Invoke = Callable[[str, Mapping[str, Any]], Any]


class QueuePoller:
    """Processes the messages of one queue until it is stopped."""

    def __init__(self, queue: Queue, queue_url: str, sqs: Any, invoke: Invoke) -> None:
        self.queue = queue
        self._queue_url = queue_url
        self._sqs = sqs
        self._invoke = invoke
        self._arn: str = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"][
            "QueueArn"
        ]
        self._stopping = threading.Event()
        self._receiving = threading.Lock()
        self._batch_ended = threading.Condition()
        self._batches = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"poller-{queue.name}-{number}", daemon=True)
            for number in range(min(queue.concurrency_max, THREADS_PER_QUEUE_MAX))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Process no more messages; return at once."""
        with self._batch_ended:
            self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the running batches, at most `timeout_s`. Return whether they ended in time.

        A long poll that finds no message may go on. What it still receives is not processed, and is visible again
        after its time-out.
        """
        with self._batch_ended:
            return self._batch_ended.wait_for(lambda: not self._batches, timeout_s)

    def poll_once(self, wait_s: int = 0) -> int:
        """Receive and process one batch; return its number of messages."""
        messages = self._receive(wait_s)
        if not messages:
            return 0
        with self._batch_ended:
            if self._stopping.is_set():
                return 0
            self._batches += 1
        try:
            self._work_on(messages)
        finally:
            with self._batch_ended:
                self._batches -= 1
                self._batch_ended.notify_all()
        return len(messages)

    def _receive(self, wait_s: int) -> Sequence[Mapping[str, Any]]:
        with self._receiving:
            if self._stopping.is_set():
                return []
            messages: Sequence[Mapping[str, Any]] = self._sqs.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=self.queue.batch_size,
                WaitTimeSeconds=wait_s,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
            ).get("Messages", [])
            return messages

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.poll_once(LONG_POLL_S)
            except Exception as error:  # noqa: BLE001  The next poll may succeed; the stack watches the emulator.
                if not self._stopping.is_set():
                    unforeseen = not isinstance(error, (BotoCoreError, ClientError))
                    _log.warning("queue %s cannot be polled: %s", self.queue.name, error, exc_info=unforeseen)
                    self._stopping.wait(BACKOFF_S)

    def _work_on(self, messages: Sequence[Mapping[str, Any]]) -> None:
        event = {"Records": [_record(message, self._arn) for message in messages]}
        try:
            failed = failed_ids(
                self._invoke(self.queue.function, event), {message["MessageId"] for message in messages}
            )
        except (HandlerFailedError, ValueError):
            _log.exception("batch of %d messages of %s failed", len(messages), self.queue.name)
            return
        self._delete([message for message in messages if message["MessageId"] not in failed])

    def _delete(self, messages: Sequence[Mapping[str, Any]]) -> None:
        for first in range(0, len(messages), _DELETES_PER_CALL_MAX):
            batch = messages[first : first + _DELETES_PER_CALL_MAX]
            entries = [
                {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]} for index, message in enumerate(batch)
            ]
            self._sqs.delete_message_batch(QueueUrl=self._queue_url, Entries=entries)


def failed_ids(result: Any, message_ids: set[str]) -> set[str]:
    """The messages that a function reports as failed; without a report all messages succeeded.

    Raises:
        ValueError: the report is malformed or names a message outside the batch. All messages have failed then.
    """
    if result is None or result == {}:
        return set()
    if not isinstance(result, dict) or not isinstance(result.get("batchItemFailures", []), list):
        raise ValueError(f"{str(result)[:200]} is not a report of a batch")
    failures = result.get("batchItemFailures", [])
    failed = {failure.get("itemIdentifier") if isinstance(failure, dict) else None for failure in failures}
    if not failed <= message_ids:
        raise ValueError(f"the report names messages that were not in the batch: {sorted(map(str, failed))[:10]}")
    return {str(identifier) for identifier in failed}


def _record(message: Mapping[str, Any], queue_arn: str) -> dict[str, Any]:
    attributes = {
        name: {
            "stringValue": value.get("StringValue"),
            "dataType": value["DataType"],
            "stringListValues": [],
            "binaryListValues": [],
        }
        for name, value in message.get("MessageAttributes", {}).items()
    }
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": attributes,
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": queue_arn,
        "awsRegion": REGION,
    }


# Schedules on the monotonic clock of the machine. After a laptop has slept, one run replaces all missed ones.

SECONDS_PER_MINUTE = 60


class ScheduleTimer:
    """Runs one schedule, first at the start, then once per period."""

    def __init__(self, schedule: Schedule, invoke: Invoke, clock: Clock) -> None:
        self.schedule = schedule
        self._invoke = invoke
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"schedule-{schedule.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Start no more runs; return at once."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for a current run. Return whether it ended in time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def fire_now(self) -> Any:
        """Run once in the caller's thread, in addition to the timetable; return the result of the function.

        Raises:
            HandlerFailedError: the function failed.
        """
        return self._invoke(self.schedule.function, dict(self.schedule.event))

    def _run(self) -> None:
        period_s = self.schedule.every_minutes * SECONDS_PER_MINUTE
        due_s = self._clock.monotonic_s()
        while not self._stopping.is_set():
            try:
                self.fire_now()
            except HandlerFailedError:
                _log.exception("schedule %s failed", self.schedule.name)
            due_s = next_due_s(due_s, self._clock.monotonic_s(), period_s)
            self._stopping.wait(due_s - self._clock.monotonic_s())


def next_due_s(last_due_s: float, now_s: float, period_s: float) -> float:
    """The first time of the timetable after `now_s`; missed runs are skipped."""
    missed = max(0, int((now_s - last_due_s) // period_s))
    return last_due_s + (missed + 1) * period_s
