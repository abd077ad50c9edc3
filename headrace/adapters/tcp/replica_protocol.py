"""What both ends of a link between replicas share: messages cut from bytes, the handshake, the measure of silence."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.codec.replica_messages import (
    MESSAGE_BYTES_MAX,
    MESSAGE_HEADER,
    PROOF_BYTES,
    Entries,
    Entry,
    Hello,
    HelloOk,
    Proof,
    decode_message,
    decode_message_header,
    encode_message,
)
from headrace.model.cluster import REPLICA_PROTOCOL, ProtocolVersions
from headrace.model.container_logs import REPLICA_ID_BYTES, ReplicaId
from headrace.model.errors import CorruptError, InvalidRequestError, UnauthorizedError

# Cuts the bytes of a link into messages, without copying large ones.
#
# Bytes are received into a chunk, one message after the other. A message that does not fit in the rest of the chunk and
# has 64 KiB or more gets a buffer of exactly its size; only what had arrived of it is copied. After such a message the
# next receive is short, so that little is copied of the next large one. Memory that an entry refers to is never used
# again: it is freed when the last view of it is gone.

CHUNK_BYTES: Final = 256 << 10
LARGE_BYTES: Final = 64 << 10
SHORT_RECEIVE_BYTES: Final = 8 << 10
_ROOM_BYTES_MIN: Final = 4 << 10
_HEADER_BYTES: Final = MESSAGE_HEADER.size
_WITH_PAYLOADS: Final = frozenset((Entry.TYPE, Entries.TYPE))


class MessageAssembler:
    """One end's received bytes. It holds at most a chunk and one message of the largest size that it accepts.

    Call `writable` and `received` for each receive, then `next_message` until it returns None, before the next one.
    """

    def __init__(self, chunk_bytes: int = CHUNK_BYTES, body_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._chunk_bytes = chunk_bytes
        self._body_bytes_max = body_bytes_max
        self._chunk = memoryview(bytearray(chunk_bytes))
        self._start = self._end = 0
        self._is_lent = False
        self._is_short = False
        self._large: memoryview | None = None
        self._large_end = 0
        self.copied_bytes = 0

    def accept_large(self, chunk_bytes: int = CHUNK_BYTES, body_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """Accept larger messages from now on: the other end has proved itself."""
        self._chunk_bytes, self._body_bytes_max = chunk_bytes, body_bytes_max
        self._replace_chunk()

    @property
    def held_bytes(self) -> int:
        """The size of the current buffers."""
        return len(self._chunk) + (0 if self._large is None else len(self._large))

    def writable(self) -> memoryview:
        """The buffer for the next receive, never empty."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._start == self._end and not self._is_lent:
            self._start = self._end = 0
        # A message whose header has arrived fits in the chunk: `next_message` has seen to that.
        begins_message = self._end - self._start < _HEADER_BYTES
        if begins_message and len(self._chunk) - self._end < min(_ROOM_BYTES_MIN, self._chunk_bytes // 4):
            self._replace_chunk()
        if self._is_short:
            return self._chunk[self._end : self._end + SHORT_RECEIVE_BYTES]
        return self._chunk[self._end :]

    def received(self, count: int) -> None:
        """Take note of `count` bytes in `writable()`."""
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count

    def next_message(self) -> memoryview | None:
        """The bytes of the next whole message with its header; None if more must arrive first.

        Those of ENTRY and ENTRIES never change. Those of other messages are valid until the next `writable`.

        Raises:
            CorruptError: the type is unknown, or the message is longer than this end accepts.
        """
        if self._large is not None:
            if self._large_end < len(self._large):
                return None
            message, self._large = self._large, None
            return message
        available = self._end - self._start
        if available < _HEADER_BYTES:
            return None
        kind, length = decode_message_header(self._chunk[self._start : self._end])
        if length > self._body_bytes_max:
            raise CorruptError(
                f"a message of type {kind} claims {length} bytes, at most {self._body_bytes_max} are allowed now"
            )
        whole = _HEADER_BYTES + length
        if available >= whole:
            message = self._chunk[self._start : self._start + whole]
            self._start += whole
            self._is_lent |= kind in _WITH_PAYLOADS
            self._is_short = False
            return message
        if self._start + whole > len(self._chunk):
            self._make_room(whole)
        return None

    def _make_room(self, whole: int) -> None:
        """A message does not fit in the rest of the chunk."""
        if whole < LARGE_BYTES and whole <= self._chunk_bytes:
            self._replace_chunk()
            return
        arrived = self._end - self._start
        self._large = memoryview(bytearray(whole))
        self._large[:arrived] = self._chunk[self._start : self._end]
        self._large_end = arrived
        self._end = self._start  # the chunk's rest is not referred to, so the next message may begin there
        self._is_short = True
        self.copied_bytes += arrived

    def _replace_chunk(self) -> None:
        arrived = self._end - self._start
        chunk = memoryview(bytearray(self._chunk_bytes))
        chunk[:arrived] = self._chunk[self._start : self._end]
        self._chunk = chunk
        self._start, self._end = 0, arrived
        self._is_lent = False
        self.copied_bytes += arrived


# How both ends of a link between replicas prove that they belong to one deployment.
#
#     owner                               replica
#     HELLO: versions, ids, nonce    →
#                                    ←    HELLO_OK: version, id, nonce, proof
#     PROOF                          →
#
# A proof is an HMAC-SHA256 over everything that both ends have said, under a secret of the deployment. The nonces are
# new for each link, so that no proof can be used again, and each end has its own label, so that no proof can be sent
# back. What follows is neither encrypted nor signed: the network must be private.

CLUSTER_ID_BYTES: Final = 16
SECRET_BYTES_MIN: Final = 32
NONCE_BYTES: Final = 32

Nonce = Callable[[int], bytes]
"""Returns this number of unpredictable bytes, as `secrets.token_bytes` does."""

HELLO_BYTES: Final = len(
    encode_message(Hello(1, 1, bytes(16), ReplicaId(bytes(16)), ReplicaId(bytes(16)), 0, bytes(NONCE_BYTES)))
)
HELLO_OK_BYTES: Final = len(
    encode_message(HelloOk(1, ReplicaId(bytes(16)), 0, 0, bytes(NONCE_BYTES), bytes(PROOF_BYTES)))
)
HANDSHAKE_MESSAGE_BYTES_MAX: Final = max(HELLO_BYTES, HELLO_OK_BYTES) - MESSAGE_HEADER.size
"""The longest body that an end accepts before the other has proved itself."""

_REPLICA_LABEL: Final = b"headrace replica link: replica"
_OWNER_LABEL: Final = b"headrace replica link: owner"


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """Who a process is for its links, and what it speaks. `incarnation` increases with each start of the process.

    Raises:
        InvalidRequestError: the cluster id or the replica id does not have 16 bytes, or the secret has less than 32.
    """

    cluster: bytes
    replica: ReplicaId
    incarnation: int
    secret: bytes = field(repr=False)
    versions: ProtocolVersions = REPLICA_PROTOCOL

    def __post_init__(self) -> None:
        if len(self.cluster) != CLUSTER_ID_BYTES or len(self.replica) != REPLICA_ID_BYTES:
            raise InvalidRequestError(
                f"the cluster id and the replica id must have {CLUSTER_ID_BYTES} bytes each, "
                f"not {len(self.cluster)} and {len(self.replica)}"
            )
        if len(self.secret) < SECRET_BYTES_MIN:
            raise InvalidRequestError(
                f"the secret of replica links has {len(self.secret)} bytes: make one of at least {SECRET_BYTES_MIN}"
            )


class OwnerHandshake:
    """The owner's end: sends `hello`, and answers HELLO_OK with the bytes that `proof` returns."""

    def __init__(self, identity: LinkIdentity, wanted: ReplicaId, nonce: Nonce) -> None:
        self._secret = identity.secret
        self._versions = identity.versions
        self.hello = encode_message(
            Hello(
                identity.versions.low,
                identity.versions.high,
                identity.cluster,
                identity.replica,
                wanted,
                identity.incarnation,
                nonce(NONCE_BYTES),
            )
        )

    def proof(self, raw: bytes) -> tuple[HelloOk, bytes]:
        """What the replica answered, and the PROOF to send. The replica may be another one than was wanted.

        Raises:
            CorruptError: these bytes are not a HELLO_OK.
            InvalidRequestError: the replica chose a version that was not offered.
            UnauthorizedError: the replica does not have the secret.
        """
        answer = decode_message(memoryview(raw))
        if not isinstance(answer, HelloOk):
            raise CorruptError(f"HELLO was answered with a message of type {answer.TYPE}")
        said = self.hello + raw[:-PROOF_BYTES]
        if not hmac.compare_digest(answer.proof, _proof(self._secret, _REPLICA_LABEL, said)):
            raise UnauthorizedError(
                "the replica has another secret of the deployment: check the setting of both stores"
            )
        if not self._versions.low <= answer.version <= self._versions.high:
            raise InvalidRequestError(
                f"the replica chose version {answer.version}, this store offered {self._versions} of the protocol"
            )
        return answer, encode_message(Proof(_proof(self._secret, _OWNER_LABEL, said)))


class ReplicaHandshake:
    """The replica's end: answers HELLO with the bytes that `answer` returns, and checks the PROOF."""

    def __init__(self, identity: LinkIdentity, window_bytes: int, nonce: Nonce) -> None:
        self._identity = identity
        self._window_bytes = window_bytes
        self._nonce = nonce
        self._expected = b""

    def answer(self, raw: bytes) -> tuple[Hello, bytes]:
        """The HELLO, and the HELLO_OK to send. The owner may want another replica.

        Raises:
            CorruptError: these bytes are not a HELLO.
            UnauthorizedError: the owner belongs to another cluster.
            InvalidRequestError: there is no version that both ends know.
        """
        hello = decode_message(memoryview(raw))
        own = self._identity
        if not isinstance(hello, Hello):
            raise CorruptError(f"a link began with a message of type {hello.TYPE} instead of HELLO")
        if not hmac.compare_digest(hello.cluster, own.cluster):
            raise UnauthorizedError("the owner belongs to another cluster")
        version = min(hello.version_high, own.versions.high)
        if version < max(hello.version_low, own.versions.low):
            raise InvalidRequestError(
                f"the owner speaks versions {hello.version_low} to {hello.version_high} of the protocol, "
                f"this store {own.versions}: update one of them"
            )
        unproved = HelloOk(
            version,
            own.replica,
            own.incarnation,
            self._window_bytes,
            self._nonce(NONCE_BYTES),
            bytes(PROOF_BYTES),
        )
        start = encode_message(unproved)[:-PROOF_BYTES]
        said = raw + start
        self._expected = _proof(own.secret, _OWNER_LABEL, said)
        return hello, start + _proof(own.secret, _REPLICA_LABEL, said)

    def check(self, raw: bytes) -> None:
        """Check the PROOF of the owner.

        Raises:
            CorruptError: these bytes are not a PROOF.
            UnauthorizedError: the owner does not have the secret.
        """
        message = decode_message(memoryview(raw))
        if not isinstance(message, Proof) or not self._expected:
            raise CorruptError(f"a message of type {message.TYPE} came before the owner had proved itself")
        if not hmac.compare_digest(message.proof, self._expected):
            raise UnauthorizedError("the owner has another secret of the deployment: check the setting of both stores")


def _proof(secret: bytes, label: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, label + said, "sha256")


# The times of links between replicas, and the timer that both ends measure silence with.


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """Each end sends a pulse every `pulse_s`. A link on which nothing was received for `silence_s` is down.

    After `stalled_s` in which an owner took none of its answers the link is closed, too. A process waits no longer for
    a replica without a link to which it sent no OPEN for `forgotten_s`. After a dial that failed the next one waits
    `redial_first_s`, and twice as long after each further failure, up to `redial_max_s`.
    """

    dial_s: float = 1.0
    handshake_s: float = 1.0
    pulse_s: float = 0.5
    silence_s: float = 1.5
    stalled_s: float = 10.0
    forgotten_s: float = 5.0
    redial_first_s: float = 0.05
    redial_max_s: float = 0.5


class PulseTimer:
    """Calls `tick(now_s, late_s)` every `pulse_s` between `start` and `stop`.

    `late_s` is for how long this process did not run its loop. Links must not take that for silence of the other end.
    """

    def __init__(self, pulse_s: float, tick: Callable[[float, float], None]) -> None:
        self._pulse_s = pulse_s
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def late_s(self, now_s: float) -> float:
        """For how long a tick is due, because this process did not run its loop."""
        return 0.0 if self._timer is None else max(0.0, now_s - self._due_s)

    def start(self) -> None:
        """Does nothing if it runs already."""
        if self._timer is None:
            self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + self._pulse_s
        self._timer = loop.call_at(self._due_s, self._run)

    def _run(self) -> None:
        now_s = asyncio.get_running_loop().time()
        late_s = self.late_s(now_s)
        self._schedule()
        self._tick(now_s, late_s)
