"""A local stack, a scope of its own for each test, and what a test asks of the streams there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from headrace.client import Headrace, ScalingPolicy


class SinkWorld:
    """One scope. The stream `out` is what the tests write to."""

    def __init__(self, client: Headrace, url: str, scope: str) -> None:
        self.client, self.url, self.scope = client, url, scope
        client.admin.create_scope(scope)

    @property
    def options(self) -> dict[str, str]:
        return {"controller": self.url, "scope": self.scope, "stream": "out", "default_num_segments": "2"}

    def fill(self, stream: str, first: int, last: int) -> None:
        """Writes the events `first` to `last - 1`."""
        self.client.admin.create_stream(self.scope, stream, scaling=ScalingPolicy.fixed(2), exist_ok=True)
        with self.client.writer(self.scope, stream) as writer:
            writer.write_batch([b"%d" % n for n in range(first, last)], [str(n % 7) for n in range(first, last)])

    def events(self, stream: str = "out") -> list[bytes]:
        """All events of a stream that readers can see now."""
        tail = self.client.admin.stream_cut(self.scope, stream, at="latest")
        with self.client.reader(self.scope, stream, start="earliest", end=tail) as reader:
            return [read.event for read in reader]

    def numbers(self, stream: str = "out") -> Counter[int]:
        return Counter(map(int, self.events(stream)))

    def open_labels(self, stream: str = "out") -> list[str | None]:
        """The labels of all transactions that are neither committed nor aborted."""
        return [transaction.label for transaction in self.client.admin.transactions.list_open(self.scope, stream)]

    def wait_until_open(self, labels: Sequence[str], stream: str = "out") -> None:
        """Waits until exactly the transactions with these labels are left: aborts run in the background."""
        for _ in range(3_000):
            if sorted(map(str, self.open_labels(stream))) == sorted(labels):
                return
            Event().wait(0.1)
        raise AssertionError(f"still open: {self.open_labels(stream)}, not {labels}")


def forget_last_commit(checkpoint: Path) -> int:
    """Makes the checkpoint as a crash leaves it after the sink's commit and before Spark's; the batch's number."""
    commits = sorted(checkpoint.glob("commits/[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    return int(commits[-1].name)


def each_once(first: int, last: int) -> Counter[int]:
    return Counter(range(first, last))
