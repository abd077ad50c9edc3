"""Bounds of one connection. All of them hold for whatever a peer sends."""

from __future__ import annotations

from typing import Final

CONTROL_FRAME_BYTES_MAX: Final = 256 << 10
"""Frames without data, header included; only a list of segments to merge comes near it."""

OUTSTANDING_APPEND_BYTES_MAX: Final = 32 << 20
"""Bytes of a connection that wait for the log; beyond this it is not read until half of them are durable."""

READ_BYTES_MAX: Final = 2 << 20
READ_BYTES_MIN: Final = 8

HELD_READS_MAX: Final = 1024
"""Reads of a connection that wait for data at a tail, or for the peer to take earlier answers."""

RUNNING_REQUESTS_MAX: Final = 256
"""Requests of a connection that wait for the log or for tier 2."""

STORAGE_READS_MAX: Final = 8
"""Reads of a connection under way in tier 2: their answers are in memory whether the peer takes them or not."""

READ_AHEADS_MAX: Final = 16
"""Segments of a connection of which more is asked from tier 2 than was read; the newest count."""

UNTAKEN_REPLY_BYTES_MAX: Final = 1 << 20
"""Replies that wait behind others which the peer does not take; beyond this it is not read until it has."""

TAIL_HOLD_S: Final = 15.0
"""How long a read at the tail is held before it is answered empty; clients give up after 30 s."""

STALL_S: Final = 60.0
"""A connection that sends nothing in the middle of a command, or takes nothing of a reply, for so long is closed."""

TRANSFER_BYTES_PER_S_MIN: Final = 16 << 10
"""What a peer must send in the middle of a command, when its first `STALL_S` are over. A thousand connections that
share a link of 100 Mbit/s are not slower than this, with blocks of 1 MiB."""

WRITERS_PER_CONNECTION_MAX: Final = 10_000
TRANSIENT_SEGMENTS_PER_CONNECTION_MAX: Final = 1_000
MERGE_BATCH_SOURCES_MAX: Final = 1_000
"""Each source that is not in memory may have to be looked for."""
