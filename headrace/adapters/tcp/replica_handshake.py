"""How both ends of a link between replicas prove that they belong to one deployment.

    owner                               replica
    HELLO: versions, ids, nonce    →
                                   ←    HELLO_OK: version, id, nonce, proof
    PROOF                          →

A proof is an HMAC-SHA256 over everything that both ends have said, under a secret of the deployment. The nonces are
new for each link, so that no proof can be used again, and each end has its own label, so that no proof can be sent
back. What follows is neither encrypted nor signed: the network must be private.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headrace.codec.replica_messages import (
    MESSAGE_HEADER,
    PROOF_BYTES,
    Hello,
    HelloOk,
    Proof,
    decode_message,
    encode_message,
)
from headrace.model.cluster import REPLICA_PROTOCOL, ProtocolVersions
from headrace.model.container_logs import REPLICA_ID_BYTES, ReplicaId
from headrace.model.errors import CorruptError, InvalidRequestError, UnauthorizedError

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
