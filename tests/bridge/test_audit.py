"""Each call that changes something, gives a token or is refused for its caller has exactly one audit line."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from bridge_in_memory import Bridge
from google.protobuf.message_factory import GetMessageClass
from stream_world import StreamWorld

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.audit import ACTIONS, ANYONE
from headrace.bridge.required_rights import REQUIRED_RIGHTS
from headrace.bridge.server import SERVICE
from headrace.codec.audit_lines import AuditLine, audit_text
from headrace.codec.delegation_tokens import TokenKey, TokenKeys
from headrace.codec.grpc_users import Grant, PasswordHash, User, Users
from headrace.model.access import Access
from headrace.model.errors import NotFoundError, UnavailableError
from headrace.topology import ROUTES

PASSWORD = "correct horse"
HASH = PasswordHash.of(PASSWORD.encode(), b"0123456789abcdef")
T = pb.StreamInfo(scope="s", stream="t")
CHANGES_BY_READ = {"createReaderGroup", "updateReaderGroup", "deleteReaderGroup"}
ASKS_BY_UPDATE = {"listSubscribers"}
"""What Pravega demands for these is not what they do."""


class Keys:
    def keys(self) -> TokenKeys:
        return TokenKeys((TokenKey("k", b"0" * 32),))


class Guarded(Bridge):
    """A bridge with the user `ann`, who has the rights of `access` on everything."""

    def __init__(self, world: StreamWorld) -> None:
        self.access: Access | None = Access.READ_UPDATE
        super().__init__(world, self._known, Keys())
        self.log_in("ann", PASSWORD)

    def _known(self) -> Users:
        grants = () if self.access is None else (Grant("prn::/*", self.access),)
        return Users({"ann": User("ann", HASH, grants)})


@pytest.fixture
def guarded(world: StreamWorld) -> Iterator[Guarded]:
    world.create()
    made = Guarded(world)
    yield made
    made.close()


def _request(rpc: str) -> Any:
    return GetMessageClass(SERVICE.methods_by_name[rpc].input_type)()


def test_every_call_that_changes_something_has_an_action():
    changing = {
        rpc
        for rpc, rights in REQUIRED_RIGHTS.items()
        if any(right.access > Access.READ for right in rights(_request(rpc))) or rpc in CHANGES_BY_READ
    }
    assert set(ACTIONS) == changing - ASKS_BY_UPDATE
    assert {action for action, _ in ACTIONS.values()} <= {route.action for route in ROUTES}


@pytest.mark.parametrize("rpc", [method.name for method in SERVICE.methods])
@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (NotFoundError("no", code="other"), None, "refused"),
        (UnavailableError("no"), "UNAVAILABLE", "failed"),
        (RuntimeError("password=hunter2"), "INTERNAL", "failed"),
    ],
    ids=["missing", "away", "defect"],
)
def test_a18_a_failed_change_has_one_line(
    world: StreamWorld, monkeypatch: pytest.MonkeyPatch, rpc: str, error: Exception, status: str | None, outcome: str
):
    """In the status of the call, or in that of the reply."""

    def fail(_: Any) -> Any:
        raise error

    bridge = Bridge(world, replaced={rpc: fail})
    try:
        try:
            bridge.call(rpc, _request(rpc))
            found = "OK"
        except grpc.RpcError as refused:
            found = refused.code().name
        lines = list(bridge.audit)
    finally:
        bridge.close()
    assert [(line.action, line.call) for line in lines] == ([(ACTIONS[rpc][0], rpc)] if rpc in ACTIONS else [])
    for line in lines:
        assert (line.status, line.outcome, line.principal) == (found, outcome, ANYONE)
        assert status is None or found == status
        assert "hunter2" not in audit_text(line)


def test_changes_are_told_with_their_names(world: StreamWorld):
    bridge = Bridge(world)
    try:
        bridge.call("createScope", pb.ScopeInfo(scope="n"))
        scaling = pb.ScalingPolicy(scaleType=pb.ScalingPolicy.FIXED_NUM_SEGMENTS, minNumSegments=1)
        stream = pb.StreamInfo(scope="n", stream="t")
        bridge.call("createStream", pb.StreamConfig(streamInfo=stream, scalingPolicy=scaling))
        begun = bridge.call("createTransaction", pb.CreateTxnRequest(streamInfo=stream, lease=10_000)).txnId
        bridge.call("abortTransaction", pb.TxnRequest(streamInfo=stream, txnId=begun))
        bridge.call("checkStreamExists", stream)
        assert bridge.call("createScope", pb.ScopeInfo(scope="n")).status == pb.CreateScopeStatus.SCOPE_EXISTS
        lines = list(bridge.audit)
    finally:
        bridge.close()
    transaction = f"{begun.highBits & (1 << 64) - 1:016x}{begun.lowBits & (1 << 64) - 1:016x}"
    assert [(line.action, line.resource, line.outcome, line.status, line.code) for line in lines] == [
        ("scope.create", "n", "done", "OK", ""),
        ("stream.create", "n/t", "done", "OK", ""),
        ("transaction.create", "n/t", "done", "OK", ""),
        ("transaction.set-state", f"n/t/{transaction}", "done", "OK", ""),
        ("scope.create", "n", "refused", "OK", "already_exists"),
    ]
    assert {line.source for line in lines} == {"127.0.0.1"}
    assert len({line.request_id for line in lines}) == len(lines)


def test_a_user_is_the_principal(guarded: Guarded):
    guarded.call("sealStream", T)
    (line,) = guarded.audit
    assert (line.principal, line.action, line.resource) == ("grpc:ann", "stream.set-state", "s/t")


def test_a_token_in_an_answer_is_told_with_its_grants(guarded: Guarded):
    guarded.call("checkStreamExists", T)
    token = guarded.call("getDelegationToken", T).delegationToken
    (line,) = guarded.audit
    assert (line.action, line.principal, line.outcome) == ("token.give", "grpc:ann", "done")
    assert line.details["grants"]["prn::/scope:s/stream:t"] == "MANAGE"
    assert token
    assert token not in audit_text(line)


@pytest.mark.parametrize("rpc", sorted(set(REQUIRED_RIGHTS) - {"getControllerServerList"}))
def test_a_call_without_a_right_has_one_line(guarded: Guarded, rpc: str):
    guarded.access = None
    assert guarded.refused(rpc, _request(rpc)) is grpc.StatusCode.PERMISSION_DENIED
    (line,) = guarded.audit
    action = ACTIONS[rpc][0] if rpc in ACTIONS else "read"
    assert (line.action, line.principal, line.outcome) == (action, "grpc:ann", "refused")
    assert (line.status, line.code) == ("PERMISSION_DENIED", "unauthorized")


@pytest.mark.parametrize("request_bytes", [b"", b"\xff\xff"])
@pytest.mark.parametrize("rpc", sorted(REQUIRED_RIGHTS))
def test_a_caller_who_is_no_user_is_not_named(guarded: Guarded, rpc: str, request_bytes: bytes):
    """Neither the name, which may be anyone's, nor what was asked for, which is not read."""
    guarded.log_in("bob", "hunter2")
    assert guarded.refused(rpc, request_bytes) is grpc.StatusCode.UNAUTHENTICATED
    (line,) = guarded.audit
    assert (line.principal, line.resource, line.status) == ("", "", "UNAUTHENTICATED")
    assert not {"bob", "hunter2"} & set(json.dumps(audit_text(line)).split('"'))


@pytest.mark.parametrize(("given", "is_kept"), [(["deploy-7"], True), (["two words"], False), (["a", "b"], False)])
def test_a_client_may_choose_the_correlation_id(guarded: Guarded, given: list[str], is_kept: bool):
    guarded.metadata += tuple(("x-headrace-correlation-id", value) for value in given)
    guarded.call("sealStream", T)
    (line,) = guarded.audit
    assert line.correlation_id == (given[0] if is_kept else line.request_id)


def test_a_line_that_is_not_written_is_told_in_the_log(
    world: StreamWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    class Full(list[AuditLine]):
        def append(self, line: AuditLine) -> None:
            raise OSError("the disk is full")

    bridge = Bridge(world, audit=Full())
    try:
        assert bridge.call("createScope", pb.ScopeInfo(scope="n")).status == pb.CreateScopeStatus.SUCCESS
    finally:
        bridge.close()
    assert "event=audit_line_lost action=scope.create principal='grpc' error=OSError" in caplog.text


class Hanging(list[AuditLine]):
    """A disk that answers nothing before `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.free = threading.Event(), threading.Event()

    def append(self, line: AuditLine) -> None:
        self.asked.set()
        self.free.wait()
        super().append(line)


def test_a_hanging_disk_holds_up_only_calls_with_a_line(world: StreamWorld):
    disk = Hanging()
    bridge = Bridge(world, audit=disk)
    try:
        with ThreadPoolExecutor(1) as pool:
            creation = pool.submit(bridge.call, "createScope", pb.ScopeInfo(scope="n"))
            assert disk.asked.wait(60)
            assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="n")).exists
            assert not creation.done()  # The change is done, and is not answered without its line.
            disk.free.set()
            assert creation.result().status == pb.CreateScopeStatus.SUCCESS
    finally:
        disk.free.set()
        bridge.close()
    assert [line.action for line in disk] == ["scope.create"]


def test_a_client_that_goes_takes_no_line_with_it(world: StreamWorld):
    """It goes while its line waits behind that of another call."""
    disk = Hanging()
    bridge = Bridge(world, audit=disk)
    try:
        first = bridge.begin("createScope", pb.ScopeInfo(scope="n"))
        assert disk.asked.wait(60)
        second = bridge.begin("createScope", pb.ScopeInfo(scope="m"))
        while not bridge.call("checkScopeExists", pb.ScopeInfo(scope="m")).exists:
            time.sleep(0.001)
        bridge.call("checkScopeExists", pb.ScopeInfo(scope="m"))  # Meanwhile its line is waiting.
        second.cancel()
        disk.free.set()
        assert first.result().status == pb.CreateScopeStatus.SUCCESS
        while len(disk) < 2:
            time.sleep(0.001)
    finally:
        disk.free.set()
        bridge.close()
    assert [line.resource for line in disk] == ["n", "m"]


def test_a_call_that_the_end_of_the_bridge_cancels_has_one_line(world: StreamWorld):
    """It may have had its effect."""
    begun = threading.Event()

    async def endless(_: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    bridge = Bridge(world, replaced={"createScope": endless})
    try:
        call = bridge.begin("createScope", pb.ScopeInfo(scope="n"))
        assert begun.wait(60)
        bridge.stop()
        assert call.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        bridge.close()
    assert [(line.action, line.resource, line.code) for line in bridge.audit] == [("scope.create", "n", "cancelled")]


def test_a_hanging_disk_does_not_hold_up_the_end(
    world: StreamWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.bridge.audit.LINES_S", 0.1)
    disk = Hanging()
    bridge = Bridge(world, audit=disk)
    try:
        call = bridge.begin("createScope", pb.ScopeInfo(scope="n"))
        assert disk.asked.wait(60)
        bridge.stop()
        assert call.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        disk.free.set()
        bridge.close()
    assert "event=audit_lines_lost count=1" in caplog.text


def test_an_accepted_change_is_not_told_as_refused(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    """The stream is gone when the call looks whether its workflow has ended."""
    world.create()

    def gone(*_: Any) -> Any:
        raise NotFoundError("no such stream")

    monkeypatch.setattr(world.streams, "get_stream", gone)
    bridge = Bridge(world)
    try:
        bridge.call("sealStream", T)
        (line,) = bridge.audit
    finally:
        bridge.close()
    assert (line.action, line.outcome, line.code) == ("stream.set-state", "failed", "not_found")
