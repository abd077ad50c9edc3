"""One connection: it receives commands, sends replies, and enforces the limits of the connection.

The processors in the other modules of this folder answer the requests. A session collects replies and sends them
together, once per turn of the event loop. It closes a connection that violates the protocol without a reply, as the
protocol demands. Data that was accepted before is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from headrace import wire
from headrace.codec.delegation_tokens import TOKEN_BYTES_MAX
from headrace.model.errors import HeadraceError
from headrace.ports.clock import Clock
from headrace.segmentstore.cache.reservations import Block, Reservation
from headrace.segmentstore.connections.append_frames import AppendFrame
from headrace.segmentstore.connections.append_processor import AppendProcessor
from headrace.segmentstore.connections.connection_limits import (
    COMMANDS_PER_TURN_MAX,
    OUTSTANDING_APPEND_BYTES_MAX,
    REPLIES_PER_TURN_BYTES_MAX,
    RUNNING_REQUESTS_MAX,
    STALL_S,
    TRANSFER_BYTES_PER_S_MIN,
    TURN_S,
    UNTAKEN_REPLY_BYTES_MAX,
)
from headrace.segmentstore.connections.frame_assembler import Channel, FrameAssembler
from headrace.segmentstore.connections.read_processor import ReadProcessor
from headrace.segmentstore.connections.receive_memory import ReceiveMemory
from headrace.segmentstore.connections.received_bytes import ReceivedBytes
from headrace.segmentstore.connections.segment_processor import SegmentProcessor
from headrace.segmentstore.connections.table_processor import TableProcessor
from headrace.segmentstore.connections.token_checks import TokenGate
from headrace.segmentstore.store import SegmentStore

if TYPE_CHECKING:
    from headrace.wire import Buffer

# The share of one connection in a turn of the event loop. A peer can send thousands of commands in one packet.

_COMMANDS_PER_LOOK_AT_THE_CLOCK = 16


class TurnBudget:
    """Counts the commands of a connection in this turn, and the time that they take.

    `is_spent`: no other command may start before `renew`.
    """

    __slots__ = ("_clock", "_commands", "_earlier_s", "_started_s", "is_spent")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._commands = 0
        self._started_s = self._earlier_s = 0.0
        self.is_spent = False

    def start(self, now_s: float) -> None:
        """Note that commands are handled from now on. A turn may have several such steps."""
        self._started_s = now_s

    def stop(self) -> None:
        """Note the end of a step."""
        self._earlier_s += self._clock.monotonic_s() - self._started_s

    def count_append(self) -> None:
        self._commands += 1
        if self._commands % _COMMANDS_PER_LOOK_AT_THE_CLOCK == 0:
            self._check()

    def count_command(self) -> None:
        """As `count_append`, for a command that may take longer than an append."""
        self._commands += 1
        self._check()

    def renew(self) -> None:
        """Begin another turn."""
        self._commands = 0
        self._earlier_s = 0.0
        self.is_spent = False

    def _check(self) -> None:
        passed_s = self._earlier_s + self._clock.monotonic_s() - self._started_s
        self.is_spent = self._commands >= COMMANDS_PER_TURN_MAX or passed_s >= TURN_S


# The check that a peer sends the rest of a command fast enough.


class TransferPace:
    """The time that a peer has left for a command, in seconds of a monotonic clock.

    A peer starts each command with `STALL_S`. Its time decreases while bytes are missing. Bytes that arrive add to it,
    at the minimum rate, up to `STALL_S`. So a peer that sends single bytes fails the check as one that stops. Time
    during which the store receives nothing does not count.
    """

    __slots__ = ("_command", "_left_s", "_paused", "_since_s")

    def __init__(self) -> None:
        self._command: int | None = None
        self._left_s = STALL_S
        self._since_s = 0.0
        self._paused = False

    def received(self, now_s: float, command: int | None, count: int) -> None:
        """Note `count` bytes. `command` is the number of the incomplete command; None if there is none."""
        if command != self._command:
            self._command = command
            self._left_s = STALL_S
        elif command is not None:
            passed_s = 0.0 if self._paused else now_s - self._since_s
            self._left_s = min(self._left_s - passed_s + count / TRANSFER_BYTES_PER_S_MIN, STALL_S)
        self._since_s = now_s

    def pause(self, now_s: float) -> None:
        """Stop the clock, because the store receives nothing from now on."""
        if not self._paused:
            self._left_s -= now_s - self._since_s
            self._paused = True

    def resume(self, now_s: float) -> None:
        self._paused = False
        self._since_s = now_s

    def is_too_slow(self, now_s: float) -> bool:
        if self._command is None or self._paused:
            return False
        return now_s - self._since_s > self._left_s


_log = logging.getLogger(__name__)


class Session:
    """One connection. `random_uuid` returns unsigned 128-bit numbers, for the names of transient segments."""

    def __init__(
        self, store: SegmentStore, channel: Channel, memory: ReceiveMemory, peer: str, random_uuid: Callable[[], int]
    ) -> None:
        self.store = store
        self.peer = peer
        self.closed = False
        self._asked = False
        self._finishing = False
        self.sending_blocked = False
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[Buffer] = []
        self._outgoing_read_bytes = 0
        self._pins: list[Block] = []
        self._flush_scheduled = False
        self._receiving_paused = False
        self._memory_wanted = False
        self._throttled: asyncio.TimerHandle | None = None
        self._outstanding_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._untaken_bytes = 0
        self.received_s = self._blocked_since_s = store.clock.monotonic_s()
        self._pace = TransferPace()
        self._turn = TurnBudget(store.clock)
        self.tokens = TokenGate(store.tokens, self) if store.tokens is not None else None
        """None if the store needs no tokens."""
        token_bytes_max = TOKEN_BYTES_MAX if self.tokens is not None else None
        self.assembler = FrameAssembler(store.pool, memory, self, peer.rpartition(":")[0], token_bytes_max)
        self._appends = AppendProcessor(self)
        self._reads = ReadProcessor(self)
        self._segments = SegmentProcessor(self, random_uuid)
        self._tables = TableProcessor(self)
        self._handlers = self._appends.handlers() | self._reads.handlers() | self._segments.handlers()
        self._handlers |= self._tables.handlers()

    # From the channel

    def received(self, count: int) -> None:
        """Handle `count` bytes that were received into `assembler.writable()`."""
        now_s = self.received_s = self.store.clock.monotonic_s()
        assembler = self.assembler
        self._guarded(lambda: assembler.received(count), now_s)
        self._pace.received(now_s, assembler.owed_command, count if assembler.receives_owed else 0)
        if self._outstanding_bytes and (delay_s := self.store.throttle.delay_s(now_s, self._appends.containers)):
            self._throttle(delay_s)

    def writing_paused(self) -> None:
        self.sending_blocked = True
        self._tables.sending_possible(possible=False)
        self._blocked_since_s = self.store.clock.monotonic_s()

    def writing_resumed(self) -> None:
        self.sending_blocked = False
        self._untaken_bytes = 0
        self._unpin()
        self._reads.sending_possible()
        self._tables.sending_possible(possible=True)
        self._check_receiving()

    def disconnected(self) -> None:
        """End the session, because its connection is closed and no reply can be sent."""
        self._end()
        self._unpin()

    def check_stalled(self, now_s: float) -> None:
        """Close the connection if the peer is too slow: to begin, to send the rest of a command, or to take replies."""
        self.assembler.leave_cache_if_slow()
        closing = self.closed and now_s - self.received_s > STALL_S
        # A connection that only says Hello keeps others out, and so does one that has no valid token. Clients that have
        # nothing to ask yet send KeepAlive.
        asked = self._asked and (self.tokens is None or self.tokens.has_admitted)
        silent = not asked and now_s - self.received_s > STALL_S
        # Measured from the time when bytes began to wait: a peer that sends commands may still take no replies.
        blocked = self.sending_blocked and now_s - self._blocked_since_s > STALL_S
        if closing or silent or blocked or self._pace.is_too_slow(now_s):
            _log.warning("event=connection_stalled peer=%s", self.peer)
            self.abort()

    # For the processors

    @property
    def may_read(self) -> bool:
        """Whether a read may be answered now: the peer has taken all replies, and not much waits for the next flush."""
        return not self.sending_blocked and self._outgoing_read_bytes < REPLIES_PER_TURN_BYTES_MAX

    def send(self, command: wire.WireCommand) -> None:
        """Send a reply together with the others of this turn of the event loop."""
        if not self.closed:
            self._outgoing.append(wire.encode(command))
            self._schedule_flush()

    def send_parts(self, parts: Sequence[Buffer], blocks: list[Block]) -> None:
        """Send bytes that are in the cache, which keeps `blocks` unchanged until the peer has taken them."""
        if not self.closed:
            self._outgoing.extend(parts)
            self._outgoing_read_bytes += sum(map(len, parts))
            self.store.pool.pin(blocks)
            self._pins.extend(blocks)
            self._schedule_flush()

    def schedule_flush(self) -> None:
        """Collect the due acknowledgements and send them with the replies of this turn of the event loop."""
        if not self.closed:
            self._schedule_flush()

    def run(self, request: Coroutine[Any, Any, None]) -> None:
        """Answer a request in a task, because it has to wait."""
        task = self._loop.create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._request_done)
        self._check_receiving()

    def count_outstanding(self, change_bytes: int) -> None:
        """Count bytes of appends that are not durable: positive when they enter the log, negative at the end."""
        self._outstanding_bytes += change_bytes
        if change_bytes > 0 or self._receiving_paused:
            self._check_receiving()

    def commands_possible(self) -> None:
        """Check again whether commands can be accepted."""
        self._check_receiving()

    def refuse_protocol(self, error: wire.WireFormatError) -> None:
        """Close the connection, because the peer violated the protocol."""
        self.store.metrics.protocol_errors += 1
        _log.warning("event=protocol_error peer=%s error=%r", self.peer, error.message)
        self.close()

    async def finish(self) -> None:
        """Accept no more commands, and wait until no request runs. Appends are acknowledged when they are durable."""
        self._finishing = True
        self._check_receiving()
        while self._tasks and not self.closed:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Send the replies that are due, then close. No more commands are accepted."""
        if not self.closed:
            self._flush()
            self._channel.close()
            self.received_s = self.store.clock.monotonic_s()
            self._end()

    def abort(self) -> None:
        """Close at once, and drop the replies that wait."""
        self._channel.abort()
        self._end()

    @property
    def held_reads(self) -> int:
        """Reads that wait for data at a tail."""
        return self._reads.held

    # From the assembler (see CommandHandler)

    @property
    def accepts_commands(self) -> bool:
        return not (
            self.closed
            or self._turn.is_spent
            or self._finishing
            or self._outstanding_bytes > OUTSTANDING_APPEND_BYTES_MAX
            or self._untaken_bytes > UNTAKEN_REPLY_BYTES_MAX
            or len(self._tasks) >= RUNNING_REQUESTS_MAX
            or self._reads.full
            or self._tables.busy
        )

    def check_append(self, frame: AppendFrame, block: AppendFrame | None) -> None:
        self._appends.check(frame, block)

    def on_append(self, frame: AppendFrame) -> None:
        self._appends.accept(frame)
        self._turn.count_append()

    def on_pooled_command(self, type_code: int, received: Reservation) -> None:
        self._asked = True
        self._tables.accept(type_code, received)
        self._turn.count_command()

    def on_table_prefix(self, type_code: int, prefix: wire.TablePrefix) -> bool:
        self._asked = True
        return self._admitted(lambda tokens: tokens.admits_table_command(type_code, prefix))

    def on_slow(self) -> None:
        _log.warning("event=connection_in_the_way peer=%s held_bytes=%d", self.peer, self.assembler.held_bytes)
        self.abort()

    @property
    def waits_for_store(self) -> bool:
        return self._receiving_paused and not (self.sending_blocked or self._reads.full)

    def on_large_command(self, command: wire.WireCommand, received: ReceivedBytes) -> None:
        self._asked = True
        if not self._admitted(lambda tokens: tokens.admits(command)):
            received.release()
            return
        self._tables.answer_large(command, received)

    def on_command(self, command: wire.WireCommand) -> None:
        self._handle(command)
        self._turn.count_command()

    def _handle(self, command: wire.WireCommand) -> None:
        self._asked = self._asked or not isinstance(command, wire.Hello | wire.KeepAlive)
        if not self._admitted(lambda tokens: tokens.admits(command)):
            return
        handler = self._handlers.get(type(command))
        if handler is None:
            raise wire.WireFormatError(f"a {type(command).__name__} is not a request")
        handler(command)

    def on_memory_wanted(self) -> None:
        self._memory_wanted = True
        self._check_receiving()

    def on_memory_granted(self) -> None:
        self._loop.call_soon(self._resume_with_memory)

    # Inside

    def _admitted(self, check: Callable[[TokenGate], bool]) -> bool:
        """Check the token of a command, if the store needs one."""
        tokens = self.tokens
        if tokens is None:
            return True
        admitted = check(tokens)
        if tokens.has_admitted:
            self.assembler.admit_peer()
        return admitted

    def _throttle(self, delay_s: float) -> None:
        """Receive nothing for `delay_s`, because tier 2 does not keep up with the appends."""
        if self._throttled is None and not self.closed:
            self._throttled = self._loop.call_later(delay_s, self._throttle_ended)
            self.store.metrics.throttled_s += delay_s
            self._check_receiving()

    def _throttle_ended(self) -> None:
        self._throttled = None
        delay_s = self.store.throttle.delay_s(self.store.clock.monotonic_s(), self._appends.containers)
        if self.store.throttle.log_is_full(self._appends.containers):
            self._throttle(delay_s)
        else:
            self._check_receiving()

    def _end(self) -> None:
        """Free all memory, except the blocks that the channel may still be sending."""
        if self.closed:
            return
        self.closed = True
        if self._throttled is not None:
            self._throttled.cancel()
        self.assembler.close()
        self._appends.close()
        self._reads.close()
        self._tables.close()
        for task in self._tasks:
            task.cancel()
        self._segments.close()
        self._outgoing.clear()

    def _resume_with_memory(self) -> None:
        self._memory_wanted = False
        if self.closed:
            self.assembler.close()
        else:
            self._resume()

    def _guarded(self, step: Callable[[], None], now_s: float) -> None:
        """Run a step of the assembler. An error closes this connection only."""
        was_spent = self._turn.is_spent
        self._turn.start(now_s)
        try:
            step()
        except wire.WireFormatError as error:
            self.refuse_protocol(error)
        except HeadraceError as error:
            _log.warning("event=connection_closed peer=%s code=%s error=%r", self.peer, error.code, error.message)
            self.close()
        else:
            self._turn.stop()
            if self._turn.is_spent and not was_spent:
                self._loop.call_soon(self._begin_turn)
            self._check_receiving()

    def _check_receiving(self) -> None:
        if self.closed:
            return
        wanted = not self._memory_wanted and self._throttled is None and self.accepts_commands
        if not wanted and not self._receiving_paused:
            self._receiving_paused = True
            self._pace.pause(self.store.clock.monotonic_s())
            self._channel.pause_receiving()
        elif wanted and self._receiving_paused and self._outstanding_bytes <= OUTSTANDING_APPEND_BYTES_MAX // 2:
            self._receiving_paused = False
            self._pace.resume(self.store.clock.monotonic_s())
            self._channel.resume_receiving()
            self._loop.call_soon(self._resume_assembler)

    def _resume_assembler(self) -> None:
        if not self.closed and not self._receiving_paused:
            self._resume()

    def _resume(self) -> None:
        """Process bytes that were received before. The peer's time for the rest of a command starts now."""
        self._guarded(self.assembler.resume, self.store.clock.monotonic_s())
        self._pace.received(self.store.clock.monotonic_s(), self.assembler.owed_command, 0)

    def _begin_turn(self) -> None:
        self._turn.renew()
        self._check_receiving()

    def _request_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("event=request_failed peer=%s", self.peer, exc_info=error)
            self.close()
        if self._receiving_paused:
            self._check_receiving()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.closed:
            return
        if not self._turn.is_spent:
            self._turn.renew()
        parts: list[Buffer] = self._appends.collect_acknowledgements()
        parts.extend(self._outgoing)
        self._outgoing = []
        self._outgoing_read_bytes = 0
        if parts:
            self._channel.send(parts)
        if self.sending_blocked:
            self._untaken_bytes += sum(map(len, parts))
            self._check_receiving()
        else:
            self._unpin()
            if self._reads.is_waiting:
                self._loop.call_soon(self._continue_reads)

    def _continue_reads(self) -> None:
        self._reads.sending_possible()
        self._check_receiving()

    def _unpin(self) -> None:
        pins, self._pins = self._pins, []
        self.store.pool.unpin(pins)
