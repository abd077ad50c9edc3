"""Uses the deployed system as IAM users: `python -m rehearsal.live NAME [tokens]`. Exits with 1 if a check fails.

NAME is a part of the name of the scope, so that a deployment can be used several times. With `tokens` segment stores
demand delegation tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Final

from headrace.client import Headrace, ScalingPolicy, TableConfiguration
from headrace.model.errors import HeadraceError, UnauthorizedError
from rehearsal.callers import api_url, caller
from rehearsal.checks import reading_problems
from rehearsal.fargate import STORES, TASK_LIST

TOKENS: Final = "tokens"
EVENTS: Final = 5_000
KEYS: Final = 97
PATIENCE_S: Final = 180
COMMITTED: Final = b"committed"
STREAM: Final = "orders"
HISTORY: Final = "history"
HISTORY_EVENTS: Final = 2_048
HISTORY_EVENT_BYTES: Final = 4_096


class CheckFailedError(RuntimeError):
    """The system did not do what it must."""


class LiveUse:
    """The steps in their order. Each prints what it has seen."""

    def __init__(self, name: str, *, has_tokens: bool) -> None:
        self.scope, self._has_tokens = f"shop-{name}", has_tokens
        self._started_s = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started_s:6.1f} s  {text}", flush=True)

    def run(self) -> None:
        self._create()
        self._write()
        self._read_all()
        self._read_from_zones()
        self._read_with_spark()
        self._refuse()
        self._await_watermark()
        self._use_table()
        self._end()

    def _create(self) -> None:
        with caller("manager") as headrace:
            headrace.admin.create_scope(self.scope)
            headrace.admin.create_stream(self.scope, STREAM)
        with caller("operator") as headrace:
            serving = [each for each in headrace.admin.cluster.get().stores if each.state == "SERVING"]
        self.say(f"scope and stream created; {len(serving)} stores serve")

    def _write(self) -> None:
        with caller("writer") as headrace:
            write_numbers(headrace, self.scope, 0, EVENTS)
        with caller("manager") as headrace:
            active = [each.segment_id for each in headrace.admin.segments(self.scope, STREAM)]
            ranges = [(part / 4, (part + 1) / 4) for part in range(4)]
            headrace.admin.scale_stream(self.scope, STREAM, seal=active, ranges=ranges)
        with caller("writer") as headrace:
            write_numbers(headrace, self.scope, EVENTS, 2 * EVENTS)
            with headrace.transactional_writer(self.scope, STREAM) as writer:
                with writer.begin() as transaction:
                    transaction.write(COMMITTED, routing_key="k")
                    transaction.flush()
                aborted = writer.begin()
                aborted.write(b"aborted", routing_key="k")
                aborted.flush()
                aborted.abort()
        self.say(f"{2 * EVENTS} events written, 4 segments in between, a transaction committed and one aborted")

    def _read_all(self) -> None:
        with caller("reader") as headrace:
            deadline = time.monotonic() + PATIENCE_S
            while COMMITTED not in (events := read_events(headrace, self.scope)) and time.monotonic() < deadline:
                time.sleep(1)
        numbers = [int(each) for each in events if each.isdigit()]
        others = [each for each in events if not each.isdigit()]
        problems = reading_problems(2 * EVENTS, numbers, KEYS)
        if problems or others != [COMMITTED]:
            raise CheckFailedError(f"read: {'; '.join(problems) or others}")
        self.say(
            f"{len(events)} events read, each once and in the order of its key; nothing of the aborted transaction"
        )

    def _read_from_zones(self) -> None:
        """A reader in another zone than the store reads history from S3, and one in its zone from the store."""
        with caller("manager") as headrace:
            headrace.admin.create_stream(self.scope, HISTORY, scaling=ScalingPolicy.fixed(1))
        written = [b"%d" % each + b" " * (HISTORY_EVENT_BYTES - len(b"%d" % each)) for each in range(HISTORY_EVENTS)]
        with caller("writer") as headrace, headrace.writer(self.scope, HISTORY) as writer:
            writer.write_batch(written, ["one"] * len(written))
            writer.flush()
        with caller("reader") as headrace:
            own = headrace.admin.endpoint(self.scope, HISTORY, 0).zone
            self._await_history(headrace)
        other = next(each["HEADRACE_ZONE"] for each in store_environments() if each["HEADRACE_ZONE"] != own)
        sent = {}
        for zone in (other, own):
            before = bytes_sent_by_stores()
            with caller("reader", zone=zone) as headrace:
                if (read := read_events(headrace, self.scope, HISTORY)) != written:
                    raise CheckFailedError(f"{len(read)} events were read in {zone}, not those that were written")
            sent[zone] = bytes_sent_by_stores() - before
        size = HISTORY_EVENTS * HISTORY_EVENT_BYTES
        if sent[other] * 10 > size or sent[own] < size:
            raise CheckFailedError(f"the store in {own} sent {sent} of {size} bytes")
        with caller("manager") as headrace:
            headrace.admin.seal_stream(self.scope, HISTORY)
            headrace.admin.delete_stream(self.scope, HISTORY)
        self.say(f"{size} bytes read in {other} and in {own}: the store in {own} sent {sent[other]} and {sent[own]}")

    def _await_history(self, headrace: Headrace) -> None:
        """Until S3 has all of it."""
        deadline = time.monotonic() + PATIENCE_S
        (end,) = headrace.admin.stream_cut(self.scope, HISTORY, at="latest").offsets.values()
        while headrace.admin.chunks(self.scope, HISTORY, 0, from_offset=0, to_offset=end).stored_until < end:
            if time.monotonic() > deadline:
                raise CheckFailedError(f"S3 has not all of the stream within {PATIENCE_S} s")
            time.sleep(1)

    def _read_with_spark(self) -> None:
        command = [sys.executable, "-m", "rehearsal.spark_read", api_url(), self.scope, STREAM]
        with caller("reader"):  # Spark reads the credentials from the variables, as a job does
            finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode != 0 or finished.stdout.split()[-2:] != [str(2 * EVENTS + 1)] * 2:
            raise CheckFailedError(f"Spark: {finished.stdout[-500:]} {finished.stderr[-2_000:]}")
        self.say(f"{2 * EVENTS + 1} events read by a batch of Spark, all different")

    def _refuse(self) -> None:
        with caller("reader") as headrace:
            admin = headrace.admin
            self._must_fail("a reader creates a scope", lambda: admin.create_scope("forbidden"))
            if self._has_tokens:  # without them segment stores know no callers
                self._must_fail("a reader writes", lambda: write_numbers(headrace, self.scope, 0, 1))
        with caller("writer") as headrace:
            admin = headrace.admin
            self._must_fail("a writer deletes a stream", lambda: admin.delete_stream(self.scope, STREAM))
            self._must_fail("a writer changes the number of copies", lambda: admin.cluster.set_copies(1))

    def _must_fail(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except UnauthorizedError:
            self.say(f"refused as it must be: {what}")
        else:
            raise CheckFailedError(f"{what}, and is not refused")

    def _await_watermark(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with caller("writer") as headrace, headrace.writer(self.scope, STREAM) as writer:
            while headrace.admin.watermarks.newest(self.scope, STREAM).watermark is None:
                if time.monotonic() > deadline:
                    raise CheckFailedError(f"no tick has written a watermark within {PATIENCE_S} s")
                writer.write(b"later", routing_key="0")
                writer.flush()
                writer.note_time(int(time.time() * 1000))
                time.sleep(1)
        self.say("a tick has written a watermark")

    def _use_table(self) -> None:
        with caller("manager") as headrace:
            headrace.admin.tables.create(self.scope, "stock", TableConfiguration(2, 8, 0))
        with caller("writer") as headrace, headrace.key_value_table(self.scope, "stock") as table:
            version = table.put(b"article1", b"17")
            table.replace(b"article1", b"16", version)
            entry = table.get(b"article1")
            if entry is None or entry.value != b"16":
                raise CheckFailedError(f"the table has {entry}")
        with caller("manager") as headrace:
            headrace.admin.tables.delete(self.scope, "stock")
        self.say("table created, written, read and deleted")

    def _end(self) -> None:
        with caller("manager") as headrace:
            admin = headrace.admin
            admin.truncate_stream(self.scope, STREAM, admin.stream_cut(self.scope, STREAM, at="latest"))
            if left := read_events(headrace, self.scope):
                raise CheckFailedError(f"{len(left)} events are there after the truncation")
            admin.seal_stream(self.scope, STREAM)
            admin.delete_stream(self.scope, STREAM)
            admin.delete_scope(self.scope)
            self.say("truncated, sealed and deleted")
        with caller("operator") as headrace:
            if letters := headrace.admin.dead_letters.page().letters:
                raise CheckFailedError(f"dead letters: {letters}")
            logs = headrace.admin.cluster.logs().logs
            self.say(f"no dead letters; copies of logs: {sorted({each.copies or 0 for each in logs})}")


def store_environments() -> list[dict[str, str]]:
    """The variables of the tasks of stores."""
    tasks = json.loads(TASK_LIST.read_text())
    return [each["environment"] for each in tasks if each["service"].startswith(STORES)]


def bytes_sent_by_stores() -> int:
    """The data that the running stores have sent to readers."""
    sent = 0
    for environment in store_environments():
        with urllib.request.urlopen(
            f"http://127.0.0.1:{environment['HEADRACE_HEALTH_PORT']}/metrics", timeout=10
        ) as page:
            lines = page.read().decode().splitlines()
        sent += sum(int(float(line.split()[-1])) for line in lines if line.startswith("headrace_read_bytes_total"))
    return sent


def write_numbers(headrace: Headrace, scope: str, first: int, end: int) -> None:
    """Write the numbers from `first` to `end` - 1, number n with the key n % KEYS."""
    with headrace.writer(scope, STREAM) as writer:
        writer.write_batch(
            [b"%d" % each for each in range(first, end)], [str(each % KEYS) for each in range(first, end)]
        )
        writer.flush()


def read_events(headrace: Headrace, scope: str, stream: str = STREAM) -> list[bytes]:
    """All events from the head to the tail as it is now."""
    events: list[bytes] = []
    end = headrace.admin.stream_cut(scope, stream, at="latest")
    with headrace.reader(scope, stream, start="earliest", end=end) as reader:
        while (batch := reader.read_batch()) is not None:
            events += batch.events
    return events


if __name__ == "__main__":
    try:
        LiveUse(sys.argv[1], has_tokens=TOKENS in sys.argv[2:]).run()
    except (CheckFailedError, HeadraceError) as error:
        print(f"FAILED: {error!r}", flush=True)
        sys.exit(1)
