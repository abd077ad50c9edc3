"""Limits of one connection. They hold for any bytes that a peer sends."""

from __future__ import annotations

from typing import Final

CONTROL_FRAME_BYTES_MAX: Final = 256 << 10
"""Size of a frame without data, with its header. Only a list of segments to merge comes close to it."""

COMMANDS_PER_TURN_MAX: Final = 256
TURN_S: Final = 0.002
"""Commands of a connection, and the time for them, in one turn of the event loop. Then others get their turn."""

REFUSED_TOKENS_MAX: Final = 16
"""Requests in a row whose delegation tokens were refused. The store closes the connection after one more: clients that
repeat a request with another token are admitted at once, or fetch one after they have lost their connection."""

STRANGER_FRAME_BYTES_MAX: Final = 16 << 10
"""Size of a frame of a peer that has not shown a valid token: two names, a token and a hundred attribute updates. The
first fields of table commands are read before the rest, and merges may name many sources before their token."""

OUTSTANDING_APPEND_BYTES_MAX: Final = 32 << 20
"""Appended bytes of a connection that are not durable. Beyond this the store receives nothing from the connection
until at most half of the limit is left."""

READ_BYTES_MAX: Final = 2 << 20
READ_BYTES_MIN: Final = 8

HELD_READS_MAX: Final = 1024
"""Reads of a connection that wait for data at a tail, or until the peer has taken earlier replies."""

RUNNING_REQUESTS_MAX: Final = 256
"""Requests of a connection that wait for the log or for tier 2."""

STORAGE_READS_MAX: Final = 8
"""Reads of a connection that run in tier 2 at the same time. Their replies stay in memory until the peer takes them."""

READ_AHEADS_MAX: Final = 16
"""Segments of a connection that are read ahead from tier 2. Beyond this the longest unused read-ahead is closed."""

REPLIES_PER_TURN_BYTES_MAX: Final = 2 << 20
"""Bytes of replies to reads that a connection collects before it sends them. Further reads wait for the next turn of
the event loop: a reply of many small appends is a copy, and a thousand reads may arrive at once."""

UNTAKEN_REPLY_BYTES_MAX: Final = 1 << 20
"""Bytes of replies that wait because the peer takes nothing. Beyond this the store receives nothing from it until the
peer has taken them."""

TAIL_HOLD_S: Final = 15.0
"""The time after which a read at the tail gets an empty reply. It is less than the 30 s time-out of clients."""

STALL_S: Final = 60.0
"""The store closes a connection that stops for so long before its first request or in the middle of a command, or does
not take a reply. Hello and KeepAlive are no requests."""

TRANSFER_BYTES_PER_S_MIN: Final = 16 << 10
"""The least rate at which a peer must send the rest of a command after its first `STALL_S`. A thousand connections
that share a link of 100 Mbit/s and send blocks of 1 MiB are not slower than this."""

WRITERS_PER_CONNECTION_MAX: Final = 10_000

EMPTY_EVENTS_MAX: Final = 1_000
"""Events without bytes in one append. Writers of byte streams may write them. Pravega's Java event writers write one to
each segment when another is sealed."""

WAITING_SET_UPS_MAX: Final = 128
"""Set-ups of a connection that wait for a container which moves. Others get WrongHost at once. It is half of
`RUNNING_REQUESTS_MAX`, so that the connection can be used for other containers meanwhile."""

TRANSIENT_SEGMENTS_PER_CONNECTION_MAX: Final = 1_000
