"""Counts the API calls that a boto3 or botocore client makes: what an operation costs is pinned by tests, not guessed.

    counter = RequestCounter(client)
    with counter.counting() as calls:
        store.get(key)
    assert calls == {"GetItem": 1}

Retries of one call count once (botocore's event `before-call`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RequestCounter:
    """Every call of `client` from now on, by API operation; counts calls of all threads."""

    def __init__(self, client: Any) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        client.meta.events.register("before-call.*.*", self._count)

    def _count(self, model: Any, **_: Any) -> None:
        with self._lock:
            self._counts[model.name] += 1

    @property
    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    @contextmanager
    def counting(self) -> Iterator[dict[str, int]]:
        """A dict that, after the block, holds the calls made inside of it."""
        before = Counter(self.counts)
        inside: dict[str, int] = {}
        yield inside
        inside.update(Counter(self.counts) - before)
