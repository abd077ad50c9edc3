"""Proofs of both ends of a link: who has no secret, or repeats what others said, is refused."""

from __future__ import annotations

import dataclasses
import secrets

import pytest
from recorded_links import OWNER, PEER

from headrace.adapters.tcp.replica_protocol import (
    HELLO_BYTES,
    HELLO_OK_BYTES,
    LinkIdentity,
    OwnerHandshake,
    ReplicaHandshake,
)
from headrace.codec.replica_messages import Ack, Hello, HelloOk, Proof, decode_message, encode_message
from headrace.model.cluster import ProtocolVersions
from headrace.model.container_logs import ReplicaId
from headrace.model.errors import CorruptError, InvalidRequestError, UnauthorizedError

SECRET, OTHER_SECRET = b"s" * 32, b"t" * 32
OWN = LinkIdentity(b"c" * 16, OWNER, 5, SECRET)
REPLICA = LinkIdentity(b"c" * 16, PEER, 6, SECRET)


def ends(
    owner: LinkIdentity = OWN, replica: LinkIdentity = REPLICA, wanted: ReplicaId = PEER
) -> tuple[OwnerHandshake, ReplicaHandshake]:
    return OwnerHandshake(owner, wanted, secrets.token_bytes), ReplicaHandshake(replica, 1 << 20, secrets.token_bytes)


def test_both_ends_prove_themselves():
    owner, replica = ends()
    hello, raw = replica.answer(owner.hello)
    answer, proof = owner.proof(raw)
    replica.check(proof)
    assert (hello.own_replica, hello.wanted_replica, hello.incarnation) == (OWNER, PEER, 5)
    assert (answer.replica, answer.incarnation, answer.window_bytes) == (PEER, 6, 1 << 20)
    assert (len(owner.hello), len(raw)) == (HELLO_BYTES, HELLO_OK_BYTES)


def test_an_owner_learns_that_another_replica_answers():
    owner, replica = ends(wanted=ReplicaId(b"x" * 16))
    _, raw = replica.answer(owner.hello)
    assert owner.proof(raw)[0].replica == PEER


def test_an_owner_refuses_a_replica_with_another_secret():
    owner, replica = ends(replica=dataclasses.replace(REPLICA, secret=OTHER_SECRET))
    _, raw = replica.answer(owner.hello)
    with pytest.raises(UnauthorizedError, match="secret"):
        owner.proof(raw)


def test_a_replica_refuses_an_owner_with_another_secret():
    thief, replica = ends(owner=dataclasses.replace(OWN, secret=OTHER_SECRET))
    _, raw = replica.answer(thief.hello)
    thief._secret = SECRET  # it skips the check of the replica's proof
    _, proof = thief.proof(raw)
    replica.check(proof)
    _, raw = replica.answer(thief.hello)
    thief._secret = OTHER_SECRET
    with pytest.raises(UnauthorizedError):
        thief.proof(raw)
    with pytest.raises(UnauthorizedError, match="secret"):
        replica.check(encode_message(Proof(b"0" * 32)))


def test_a_proof_of_another_link_is_refused():
    owner, replica = ends()
    _, raw = replica.answer(owner.hello)
    _, proof = owner.proof(raw)
    _, later = ends()
    later.answer(owner.hello)
    with pytest.raises(UnauthorizedError):
        later.check(proof)
    with pytest.raises(UnauthorizedError):
        ends()[0].proof(raw)


def test_the_proof_of_a_replica_is_none_of_an_owner():
    owner, replica = ends()
    _, raw = replica.answer(owner.hello)
    answer = decode_message(memoryview(raw))
    assert isinstance(answer, HelloOk)
    with pytest.raises(UnauthorizedError):
        replica.check(encode_message(Proof(answer.proof)))


def test_changed_fields_are_refused():
    owner, replica = ends()
    _, raw = replica.answer(owner.hello)
    for position in range(8, len(raw)):
        changed = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        with pytest.raises(UnauthorizedError):
            owner.proof(changed)
    for position in range(44, len(owner.hello)):  # behind versions and cluster
        changed = owner.hello[:position] + bytes([owner.hello[position] ^ 1]) + owner.hello[position + 1 :]
        _, answer = replica.answer(changed)
        with pytest.raises(UnauthorizedError):
            owner.proof(answer)


def test_another_cluster_is_refused():
    owner, replica = ends(owner=dataclasses.replace(OWN, cluster=b"d" * 16))
    with pytest.raises(UnauthorizedError, match="another cluster"):
        replica.answer(owner.hello)


@pytest.mark.parametrize("versions", [(2, 3), (0, 0), (3, 2)])
def test_versions_without_a_common_one_are_refused(versions: tuple[int, int]):
    hello = encode_message(Hello(*versions, b"c" * 16, OWNER, PEER, 5, bytes(32)))
    with pytest.raises(InvalidRequestError, match="update one of them"):
        ends()[1].answer(hello)


def test_a_newer_owner_may_speak_the_version_of_the_replica():
    hello = encode_message(Hello(1, 7, b"c" * 16, OWNER, PEER, 5, bytes(32)))
    assert decode_message(memoryview(ends()[1].answer(hello)[1])).version == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("of_owner", "of_replica", "common"),
    [((1, 2), (1, 1), 1), ((1, 1), (1, 2), 1), ((1, 3), (2, 4), 3), ((2, 2), (1, 2), 2)],
)
def test_a_link_has_the_highest_common_version(of_owner: tuple[int, int], of_replica: tuple[int, int], common: int):
    owner, replica = ends(
        dataclasses.replace(OWN, versions=ProtocolVersions(*of_owner)),
        dataclasses.replace(REPLICA, versions=ProtocolVersions(*of_replica)),
    )
    hello, raw = replica.answer(owner.hello)
    assert (hello.version_low, hello.version_high) == of_owner
    answer, _ = owner.proof(raw)
    assert answer.version == common


def test_a_version_that_was_not_offered_is_refused():
    owner, replica = ends(dataclasses.replace(OWN, versions=ProtocolVersions(2, 3)))
    replica._identity = dataclasses.replace(REPLICA, versions=ProtocolVersions(4, 4))
    offered = decode_message(memoryview(owner.hello))
    assert isinstance(offered, Hello)
    with pytest.raises(InvalidRequestError, match=r"versions 2 to 3 .*, this store version 4: update"):
        replica.answer(owner.hello)
    owner.hello = encode_message(dataclasses.replace(offered, version_high=4))
    _, raw = replica.answer(owner.hello)
    with pytest.raises(InvalidRequestError, match=r"chose version 4, .* versions 2 to 3"):
        owner.proof(raw)


def test_other_messages_are_no_handshake():
    owner, replica = ends()
    ack = encode_message(Ack(()))
    with pytest.raises(CorruptError):
        replica.answer(ack)
    with pytest.raises(CorruptError):
        replica.check(encode_message(Proof(bytes(32))))
    replica.answer(owner.hello)
    with pytest.raises(CorruptError):
        replica.check(ack)
    with pytest.raises(CorruptError):
        owner.proof(ack)
    with pytest.raises(CorruptError):
        owner.proof(owner.hello)


@pytest.mark.parametrize(
    "change",
    [{"cluster": b"c"}, {"replica": ReplicaId(b"r")}, {"secret": b"short"}],
    ids=["cluster", "replica", "secret"],
)
def test_identities_that_cannot_be_are_refused(change: dict[str, bytes]):
    with pytest.raises(InvalidRequestError):
        dataclasses.replace(OWN, **change)  # type: ignore[arg-type]


def test_an_identity_does_not_show_its_secret():
    assert "ssss" not in repr(OWN)
