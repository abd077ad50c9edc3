"""Pollers over the AWS emulator: deletes, partial failures, dead letters."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import EndpointConnectionError
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace.adapters.system_clock import SystemClock
from headrace.local import event_sources
from headrace.local.event_sources import THREADS_PER_QUEUE_MAX, QueuePoller, ScheduleTimer, failed_ids, next_due_s
from headrace.local.lambda_host import HandlerFailedError
from headrace.topology import REQUESTS_QUEUE, SCHEDULES, Queue, Schedule

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeFilterType, QueueAttributeNameType


MAX_RECEIVE = 3


class Function:
    """Notes batches; answers as it is told."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.answer: Callable[[dict[str, Any]], Any] = lambda event: {"batchItemFailures": []}

    def invoke(self, name: str, event: Any) -> Any:
        assert name == REQUESTS_QUEUE.function
        self.batches.append([record["body"] for record in event["Records"]])
        return self.answer(event)


@pytest.fixture
def function() -> Function:
    return Function()


@pytest.fixture
def queue(unique: str) -> Queue:
    return replace(REQUESTS_QUEUE, name=f"{unique}.fifo", batch_size=10)


@pytest.fixture
def urls(sqs: SQSClient, queue: Queue) -> tuple[str, str]:
    """The queue and its dead letters; failed messages come back at once."""
    kind: dict[QueueAttributeNameType, str] = {"FifoQueue": "true"}
    dead = sqs.create_queue(QueueName=queue.dead_letter_name, Attributes=kind)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": MAX_RECEIVE})
    more: dict[QueueAttributeNameType, str] = {"VisibilityTimeout": "0", "RedrivePolicy": redrive}
    attributes = kind | more
    return sqs.create_queue(QueueName=queue.name, Attributes=attributes)["QueueUrl"], dead


@pytest.fixture
def poller(sqs: SQSClient, queue: Queue, urls: tuple[str, str], function: Function) -> QueuePoller:
    return QueuePoller(queue, urls[0], sqs, function.invoke)


def wait_for_threads(poller: QueuePoller) -> None:
    """`join` waits only for batches."""
    for thread in [
        thread for thread in threading.enumerate() if thread.name.startswith(f"poller-{poller.queue.name}-")
    ]:
        thread.join(30)
        assert not thread.is_alive()


def send(sqs: SQSClient, url: str, *texts: str) -> None:
    for text in texts:
        sqs.send_message(QueueUrl=url, MessageBody=text, MessageGroupId=text[0], MessageDeduplicationId=text)


def waiting(sqs: SQSClient, url: str) -> int:
    names: list[QueueAttributeFilterType] = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(map(int, attributes.values()))


def test_a_batch_that_went_well_is_deleted(
    sqs: SQSClient, urls: tuple[str, str], poller: QueuePoller, function: Function
):
    send(sqs, urls[0], "a1", "a2", "b1")
    assert poller.poll_once() == 3
    assert function.batches == [["a1", "a2", "b1"]]
    assert waiting(sqs, urls[0]) == 0


def test_records_carry_what_lambda_gives(
    sqs: SQSClient, urls: tuple[str, str], poller: QueuePoller, function: Function
):
    seen: list[Any] = []
    function.answer = lambda event: seen.append(event)
    send(sqs, urls[0], "a1")
    poller.poll_once()
    record = seen[0]["Records"][0]
    assert record["eventSource"] == "aws:sqs"
    assert record["eventSourceARN"].endswith(poller.queue.name)
    assert record["attributes"]["MessageGroupId"] == "a"
    assert record["attributes"]["ApproximateReceiveCount"] == "1"


def test_what_failed_comes_again_in_order_and_the_rest_does_not(
    sqs: SQSClient, urls: tuple[str, str], poller: QueuePoller, function: Function
):
    function.answer = lambda event: {
        "batchItemFailures": [
            {"itemIdentifier": record["messageId"]} for record in event["Records"] if record["body"].startswith("a")
        ]
    }
    send(sqs, urls[0], "a1", "b1", "a2")
    poller.poll_once()
    function.answer = lambda event: None
    assert poller.poll_once(wait_s=5) == 2
    assert function.batches == [["a1", "b1", "a2"], ["a1", "a2"]]


def _raise(event: dict[str, Any]) -> Any:
    raise HandlerFailedError("boom")


@pytest.mark.parametrize(
    "answer",
    [
        _raise,
        lambda event: {"batchItemFailures": [{"itemIdentifier": "unknown"}]},
        lambda event: {"batchItemFailures": [{"itemIdentifier": ""}]},
        lambda event: {"batchItemFailures": [{}]},
        lambda event: {"batchItemFailures": "all"},
        lambda event: "fine",
    ],
)
def test_a_raise_or_a_malformed_report_fails_the_whole_batch(
    sqs: SQSClient, urls: tuple[str, str], poller: QueuePoller, function: Function, answer: Any
):
    function.answer = answer
    send(sqs, urls[0], "a1", "b1")
    poller.poll_once()
    assert waiting(sqs, urls[0]) == 2


def test_failing_message_is_dead_lettered_and_group_continues(
    sqs: SQSClient, urls: tuple[str, str], poller: QueuePoller, function: Function
):
    function.answer = lambda event: {
        "batchItemFailures": [
            {"itemIdentifier": record["messageId"]} for record in event["Records"] if record["body"] == "a1"
        ]
    }
    send(sqs, urls[0], "a1")
    for _ in range(MAX_RECEIVE):
        assert poller.poll_once(wait_s=5) == 1
    send(sqs, urls[0], "a2")
    assert poller.poll_once(wait_s=5) == 1
    assert function.batches == [["a1"]] * MAX_RECEIVE + [["a2"]]
    dead = sqs.receive_message(QueueUrl=urls[1], WaitTimeSeconds=5)["Messages"]
    assert [message["Body"] for message in dead] == ["a1"]


def test_threads_work_until_they_are_stopped(
    sqs: SQSClient, urls: tuple[str, str], poller: QueuePoller, function: Function
):
    worked = threading.Event()
    function.answer = lambda event: worked.set()
    poller.start()
    send(sqs, urls[0], "a1")
    assert worked.wait(30)
    poller.ask_to_stop()
    assert poller.join(30)


class BusyQueue:
    """A double of SQS with a message for each who asks; notes how many ask at the same time."""

    def __init__(self) -> None:
        self.asking = self.asking_most = 0

    def get_queue_attributes(self, **_: Any) -> Any:
        return {"Attributes": {"QueueArn": "arn"}}

    def delete_message_batch(self, **_: Any) -> None:
        return

    def receive_message(self, **_: Any) -> Any:
        self.asking += 1
        self.asking_most = max(self.asking_most, self.asking)
        time.sleep(0.01)  # whoever else may ask does so now
        self.asking -= 1
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b", "MD5OfBody": ""}]}


def test_one_thread_asks_while_all_may_work(queue: Queue):
    sqs, at_work = BusyQueue(), threading.Barrier(THREADS_PER_QUEUE_MAX + 1)

    def invoke(_name: str, _event: Any) -> None:
        at_work.wait(30)

    poller = QueuePoller(queue, "url", sqs, invoke)
    poller.start()
    for _ in range(5):  # passes only when every thread works, and with this one
        at_work.wait(30)
    poller.ask_to_stop()
    at_work.abort()
    assert poller.join(30)
    assert sqs.asking_most == 1


class QuietQueue(BusyQueue):
    """A double of SQS whose first message arrives late in a long poll: when `message_sent` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.polled, self.message_sent, self.answered = threading.Event(), threading.Event(), threading.Event()

    def receive_message(self, **named: Any) -> Any:
        self.polled.set()
        assert self.message_sent.wait(30)
        self.answered.set()
        return super().receive_message(**named)


def test_shutdown_waits_for_no_long_poll(queue: Queue, function: Function):
    sqs = QuietQueue()
    poller = QueuePoller(queue, "url", sqs, function.invoke)
    poller.start()
    assert sqs.polled.wait(30)
    poller.ask_to_stop()
    assert poller.join(0)
    sqs.message_sent.set()
    assert sqs.answered.wait(30)
    wait_for_threads(poller)
    assert not function.batches, "the functions are stopped by then"


@pytest.mark.parametrize("result", [None, {}, {"batchItemFailures": []}])
def test_no_failures_reported(result: Any):
    assert failed_ids(result, {"m"}) == set()


class BrokenQueue(BusyQueue):
    """A double of SQS that refuses; `repeated` tells that a thread has asked again, which it does after its line."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.repeated = threading.Event()
        self._error = error

    def receive_message(self, **_: Any) -> Any:
        self.asking += 1
        if self.asking > THREADS_PER_QUEUE_MAX:
            self.repeated.set()
        raise self._error


@pytest.mark.parametrize(
    ("error", "with_traceback"),
    [(EndpointConnectionError(endpoint_url="http://127.0.0.1:1"), False), (KeyError("Messages"), True)],
)
def test_failed_poll_is_logged_as_one_line_and_repeated(
    queue: Queue,
    function: Function,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    with_traceback: bool,
):
    """Each poller says so: a traceback of every one of them would bury the line that says why the stack ends."""
    monkeypatch.setattr(event_sources, "BACKOFF_S", 0.01)
    sqs = BrokenQueue(error)
    poller = QueuePoller(queue, "url", sqs, function.invoke)
    with caplog.at_level(logging.WARNING):
        poller.start()
        assert sqs.repeated.wait(30)
        poller.ask_to_stop()
        wait_for_threads(poller)
    line = caplog.records[0]
    assert line.getMessage() == f"queue {queue.name} cannot be polled: {error}"
    assert bool(line.exc_info) == with_traceback


@given(last=st.floats(0, 1e6), late=st.floats(0, 1e6), period=st.sampled_from([60.0, 300.0, 3600.0]))
def test_the_next_run_is_on_the_timetable_and_in_the_future(last: float, late: float, period: float):
    now = last + late
    due = next_due_s(last, now, period)
    assert now < due or due == pytest.approx(now)
    assert due - now <= period + 1e-6
    assert ((due - last) / period) == pytest.approx(round((due - last) / period))


def test_a_laptop_that_slept_gets_one_run():
    assert next_due_s(0.0, 3 * 3600.0 + 10, 60.0) == 3 * 3600.0 + 60


def test_fire_now_calls_the_function_with_the_declared_event():
    calls: list[tuple[str, Any]] = []

    def invoke(name: str, event: Any) -> str:
        calls.append((name, event))
        return "done"

    timer = ScheduleTimer(Schedule("s", "f", 5, {"a": "b"}), invoke, SystemClock())
    assert timer.fire_now() == "done"
    assert calls == [("f", {"a": "b"})]


def test_it_fires_when_started_survives_a_failure_and_stops():
    fired = threading.Event()

    def invoke(_name: str, _event: Any) -> None:
        fired.set()
        raise HandlerFailedError("boom")

    timer = ScheduleTimer(SCHEDULES[0], invoke, SystemClock())
    timer.start()
    assert fired.wait(30)
    timer.ask_to_stop()
    assert timer.join(30)
