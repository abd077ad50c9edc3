"""The time, the randomness and the limits of the client while a random program runs. All is undone at the end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final
from unittest import mock

from fuzz.randomness import Random, seeded_default_random
from headrace.client import large_events
from headrace.client.delegation_tokens import AsyncDelegationTokens
from headrace.client.reading import event_reader
from headrace.client.single_segment import byte_stream
from headrace.client.writing import batch_accumulator, event_blocks, event_writer, ordered_calls, transactional_writer

EVENT_BYTES_MAX: Final = 300
"""So small that some events are large ones, which are appended in chunks."""

_STARTED_AT_S: Final = 1_800_000_000.0
_BITS_MAX: Final = 1 << 32


def now_s() -> float:
    """The wall clock of the running loop, in seconds since the Unix epoch."""
    return _STARTED_AT_S + asyncio.get_running_loop().time()


def now_us() -> int:
    """The same in microseconds."""
    return round(now_s() * 1e6)


@contextmanager
def patched_client(random: Random) -> Iterator[None]:
    """Give the client the time of the running loop, the randomness of a seed, and limits that are soon reached."""
    loop = asyncio.get_running_loop()
    own = Random(random.getrandbits(64))
    limits = {
        (event_blocks, "EVENT_BYTES_MAX"): EVENT_BYTES_MAX,
        (event_writer, "EVENT_BYTES_MAX"): EVENT_BYTES_MAX,
        (transactional_writer, "EVENT_BYTES_MAX"): EVENT_BYTES_MAX,
        (byte_stream, "BLOCK_BYTES"): EVENT_BYTES_MAX,
        (byte_stream, "EXPECTING_BLOCK_BYTES"): random.choice((90, EVENT_BYTES_MAX)),
        (large_events, "CHUNK_BYTES"): random.choice((100, EVENT_BYTES_MAX)),
        (ordered_calls, "BATCH_SLICE_EVENTS"): random.choice((3, 10_000)),
        (batch_accumulator, "KEYS_KEPT_MAX"): random.choice((1, 100_000)),
        (event_reader, "WINDOW_BYTES_MIN"): 60,
        (event_reader, "WINDOW_BYTES_MAX"): random.choice((60, 700, 1 << 20)),
    }
    with ExitStack() as patches:
        for (module, name), value in limits.items():
            patches.enter_context(mock.patch.object(module, name, value))
        patches.enter_context(mock.patch("time.time", now_s))
        patches.enter_context(mock.patch("time.monotonic", loop.time))
        clocks = {"now_s": now_s, "monotonic_s": loop.time}  # defaults, which were taken before
        defaults = AsyncDelegationTokens.__init__.__kwdefaults__
        assert defaults is not None, "the clocks are keyword parameters"
        patches.enter_context(mock.patch.dict(defaults, clocks))
        patches.enter_context(mock.patch.object(secrets, "randbits", own.getrandbits))
        patches.enter_context(mock.patch.object(secrets, "token_hex", partial(_token_hex, own)))
        patches.enter_context(seeded_default_random(random.randrange(_BITS_MAX)))
        yield


def _token_hex(random: Random, nbytes: int = 32) -> str:
    return random.randbytes(nbytes).hex()
