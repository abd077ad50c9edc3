"""The bridge with users, over a real gRPC connection."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator

import grpc
import pytest
from bridge_in_memory import Bridge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_world import StreamWorld

from headrace.bridge import controller_pb2 as pb
from headrace.bridge import required_rights, server
from headrace.bridge.server import SERVICE
from headrace.codec.delegation_tokens import TokenKey, TokenKeys, verify_token
from headrace.codec.grpc_users import Grant, PasswordHash, User, Users
from headrace.model.access import Access
from headrace.model.key_value_tables import TableConfiguration

RPCS = [method.name for method in SERVICE.methods]
PASSWORD = "correct horse"
HASH = PasswordHash.of(PASSWORD.encode(), b"0123456789abcdef")
S = pb.ScopeInfo(scope="s")
T = pb.StreamInfo(scope="s", stream="t")
OF_T, TABLE_T = "prn::/scope:s/stream:t", "prn::/scope:s/key-value-table:t"
GROUP_G, TABLE_G = "prn::/scope:s/reader-group:g", "prn::/scope:s/key-value-table:g"
READ, READ_UPDATE, MANAGE = Access.READ, Access.READ_UPDATE, Access.MANAGE
Info = pb.StreamInfo


class Keys:
    def keys(self) -> TokenKeys:
        return TokenKeys((TokenKey("k", b"0" * 32),))


class Guarded(Bridge):
    """A bridge whose only user is `ann`, with grants that a test chooses."""

    def __init__(self, world: StreamWorld) -> None:
        self.known = Users({})
        super().__init__(world, lambda: self.known, Keys())
        self.grant({})
        self.log_in("ann", PASSWORD)

    def grant(self, grants: dict[str, Access]) -> None:
        self.known = Users({"ann": User("ann", HASH, tuple(Grant(*granted) for granted in grants.items()))})

    def claims(self, token: str) -> dict[str, Access]:
        claims = verify_token(token, Keys().keys(), self.world.clock.now_ms() / 1000)
        assert claims.subject == "ann"
        return dict(claims.grants)

    def token(self, name: str, operation: Info.AccessOperation = Info.UNSPECIFIED) -> dict[str, Access]:
        request = pb.StreamInfo(scope="s", stream=name, accessOperation=operation)
        return self.claims(self.call("getDelegationToken", request).delegationToken)


@pytest.fixture
def guarded(world: StreamWorld) -> Iterator[Guarded]:
    world.create()
    made = Guarded(world)
    yield made
    made.close()


@pytest.mark.parametrize("rpc", RPCS)
def test_a10_every_rpc_needs_credentials(guarded: Guarded, rpc: str):
    guarded.metadata = ()
    assert guarded.refused(rpc, b"") is grpc.StatusCode.UNAUTHENTICATED
    assert guarded.refused(rpc, b"\xff\xff") is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("rpc", [rpc for rpc in RPCS if rpc != "getControllerServerList"])
def test_a10_every_rpc_needs_a_grant(guarded: Guarded, rpc: str):
    assert guarded.refused(rpc, b"") is grpc.StatusCode.PERMISSION_DENIED


def test_a10_wrong_password_is_refused(guarded: Guarded):
    guarded.log_in("ann", "another one")
    assert guarded.refused("listScopes", pb.ScopesRequest()) is grpc.StatusCode.UNAUTHENTICATED


def test_more_than_one_header_is_refused(guarded: Guarded):
    guarded.metadata *= 2
    assert guarded.refused("getControllerServerList", pb.ServerRequest()) is grpc.StatusCode.UNAUTHENTICATED


def test_a10_guesses_exhaust_an_address(guarded: Guarded):
    for number in range(10):
        guarded.log_in("ann", f"guess {number}")
        assert guarded.refused("listScopes", pb.ScopesRequest()) is grpc.StatusCode.UNAUTHENTICATED
    guarded.log_in("ann", PASSWORD)
    assert guarded.refused("listScopes", pb.ScopesRequest()) is grpc.StatusCode.RESOURCE_EXHAUSTED
    guarded.world.clock.advance(60_000)
    assert guarded.call("getControllerServerList", pb.ServerRequest()).nodeURI[0].endpoint == "bridge.test"


def test_missing_grant_names_user_level_and_resource(guarded: Guarded):
    guarded.grant({OF_T: READ})
    with pytest.raises(grpc.RpcError) as refused:
        guarded.call("sealStream", T)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert refused.value.details() == f"user ann has no READ_UPDATE on {OF_T}"


def test_a_changed_grant_counts_from_the_next_call(guarded: Guarded):
    guarded.grant({"prn::/*": READ_UPDATE})
    assert guarded.call("checkStreamExists", T).exists
    guarded.grant({})
    assert guarded.refused("checkStreamExists", T) is grpc.StatusCode.PERMISSION_DENIED


def test_a_user_with_all_rights_is_served_as_without_users(guarded: Guarded):
    guarded.grant({"prn::/*": READ_UPDATE})
    assert guarded.call("createScope", pb.ScopeInfo(scope="n")).status == pb.CreateScopeStatus.SUCCESS
    config = pb.StreamConfig(streamInfo=pb.StreamInfo(scope="n", stream="x"))
    config.scalingPolicy.minNumSegments = 1
    assert guarded.call("createStream", config).status == pb.CreateStreamStatus.SUCCESS
    assert guarded.call("sealStream", config.streamInfo).status == pb.UpdateStreamStatus.SUCCESS
    assert guarded.call("sealStream", pb.StreamInfo(scope="n", stream="y")).status == (
        pb.UpdateStreamStatus.STREAM_NOT_FOUND
    )
    assert guarded.refused("getStreamConfiguration", pb.StreamInfo(scope="n", stream="y")) is grpc.StatusCode.NOT_FOUND


def test_what_does_not_exist_is_not_told_without_a_grant(guarded: Guarded):
    guarded.grant({OF_T: READ})
    hidden = pb.StreamInfo(scope="s", stream="u")
    before = guarded.refused("getStreamConfiguration", hidden)
    guarded.world.create("u")
    assert guarded.refused("getStreamConfiguration", hidden) is before is grpc.StatusCode.PERMISSION_DENIED


def test_invalid_message_of_a_user_is_told(guarded: Guarded):
    guarded.grant({"prn::/*": READ_UPDATE})
    assert guarded.refused("createScope", b"\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT


def test_rpc_without_rights_in_the_table_is_refused(guarded: Guarded, monkeypatch: pytest.MonkeyPatch):
    guarded.grant({"prn::/*": READ_UPDATE})
    rights = {key: value for key, value in required_rights.REQUIRED_RIGHTS.items() if key != "listScopes"}
    monkeypatch.setattr("headrace.bridge.authentication.REQUIRED_RIGHTS", rights)
    assert guarded.refused("listScopes", pb.ScopesRequest()) is grpc.StatusCode.PERMISSION_DENIED


def test_a_defect_is_told_without_its_details(guarded: Guarded, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.bridge.authentication.check_rights", lambda *given: 1 / 0)
    with pytest.raises(grpc.RpcError) as raised:
        guarded.call("listScopes", pb.ScopesRequest())
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert "division" not in (raised.value.details() or "")


# Lists


def test_a10_scopes_are_those_that_the_user_may_read(guarded: Guarded):
    for scope in ("a", "b"):
        guarded.world.scopes.create_scope(scope)
    guarded.grant({"prn::/": READ, "prn::/scope:b": READ_UPDATE})
    assert list(guarded.call("listScopes", pb.ScopesRequest()).scopes) == ["b"]


def test_pages_without_anything_readable_are_skipped(guarded: Guarded, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.bridge.service.PAGE_ITEMS_MAX", 2)
    for stream in ("a", "b", "c", "d", "y", "z"):
        guarded.world.create(stream)
    guarded.grant({"prn::/scope:s": READ, OF_T: READ, "prn::/scope:s/stream:z": READ})
    asked, seen = pb.StreamsInScopeRequest(scope=S), []
    while page := guarded.call("listStreamsInScope", asked).streams:
        seen += [summary.stream for summary in page]
        asked.continuationToken.token = seen[-1]
    assert seen == ["t", "z"]
    guarded.grant({"prn::/scope:s": READ})
    assert not guarded.call("listStreamsInScope", pb.StreamsInScopeRequest(scope=S)).streams


def test_tables_are_those_that_the_user_may_read(guarded: Guarded):
    for table in ("g", "t"):
        guarded.world.tables.create_table("s", table, TableConfiguration(2, 4))
    guarded.grant({"prn::/scope:s": READ, TABLE_T: READ, "prn::/scope:s/stream:g": READ})
    page = guarded.call("listKeyValueTablesInScope", pb.KVTablesInScopeRequest(scope=S))
    assert [table.kvtName for table in page.kvtables] == ["t"]


def test_status_of_an_unknown_scope_is_told(guarded: Guarded):
    guarded.grant({"prn::/*": READ})
    asked = pb.StreamsInScopeRequest(scope=pb.ScopeInfo(scope="none"))
    assert guarded.call("listStreamsInScope", asked).status == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND


# Tokens


@pytest.mark.parametrize(
    ("granted", "name", "operation", "expected"),
    [
        ({OF_T: READ}, "t", Info.UNSPECIFIED, {OF_T: READ}),
        ({OF_T: READ_UPDATE}, "t", Info.UNSPECIFIED, {OF_T: MANAGE}),
        ({OF_T: READ_UPDATE}, "t", Info.READ, {OF_T: READ}),
        ({OF_T: READ_UPDATE}, "t", Info.NONE, {OF_T: READ}),
        ({OF_T: READ_UPDATE}, "t", Info.WRITE, {OF_T: MANAGE}),
        ({OF_T: READ_UPDATE}, "t", Info.READ_WRITE, {OF_T: MANAGE}),
        ({OF_T: READ_UPDATE, TABLE_T: READ_UPDATE}, "t", Info.WRITE, {OF_T: MANAGE, TABLE_T: MANAGE}),
        ({OF_T: READ_UPDATE, TABLE_T: READ}, "t", Info.UNSPECIFIED, {OF_T: MANAGE, TABLE_T: READ}),
        ({OF_T: READ}, "t", Info.ANY, {OF_T: READ}),
        ({OF_T: READ}, "t", Info.WRITE, None),
        ({OF_T: READ, TABLE_T: READ_UPDATE}, "t", Info.UNSPECIFIED, {OF_T: READ, TABLE_T: READ_UPDATE}),
        ({OF_T: READ, TABLE_T: READ_UPDATE}, "t", Info.READ_WRITE, {TABLE_T: READ_UPDATE}),
        ({"prn::/scope:s/*": READ}, "t", Info.UNSPECIFIED, {OF_T: READ, TABLE_T: READ}),
        ({"prn::/*": READ_UPDATE}, "_MARKt", Info.READ, {OF_T: READ}),
        ({OF_T: READ}, "_MARKt", Info.UNSPECIFIED, {OF_T: READ}),
        ({GROUP_G: READ}, "_RGg", Info.READ_WRITE, {GROUP_G: READ_UPDATE}),
        ({GROUP_G: READ}, "_RGg", Info.UNSPECIFIED, {GROUP_G: READ_UPDATE}),
        ({GROUP_G: READ_UPDATE}, "_RGg", Info.READ, {GROUP_G: READ}),
        ({GROUP_G: READ}, "g_kvtable", Info.UNSPECIFIED, {TABLE_G: READ_UPDATE}),
        ({GROUP_G: READ_UPDATE}, "g_kvtable", Info.READ, {TABLE_G: READ}),
        ({TABLE_G: READ}, "g_kvtable", Info.UNSPECIFIED, {TABLE_G: READ}),
        ({TABLE_G: READ}, "g_kvtable", Info.WRITE, None),
        ({"prn::/scope:s": READ_UPDATE}, "t", Info.READ, None),
        ({}, "t", Info.UNSPECIFIED, None),
    ],
)
def test_token_of_a_name(
    guarded: Guarded,
    granted: dict[str, Access],
    name: str,
    operation: Info.AccessOperation,
    expected: dict[str, Access] | None,
):
    guarded.grant(granted)
    if expected is None:
        request = pb.StreamInfo(scope="s", stream=name, accessOperation=operation)
        assert guarded.refused("getDelegationToken", request) is grpc.StatusCode.PERMISSION_DENIED
    else:
        assert guarded.token(name, operation) == expected


@pytest.mark.parametrize("access", [READ, READ_UPDATE])
def test_a_group_does_not_open_a_table_of_its_name(guarded: Guarded, access: Access):
    guarded.world.tables.create_table("s", "g", TableConfiguration(2, 4))
    guarded.grant({GROUP_G: access})
    assert guarded.token("_RGg") == {GROUP_G: READ_UPDATE}
    request = pb.StreamInfo(scope="s", stream="g_kvtable")
    assert guarded.refused("getDelegationToken", request) is grpc.StatusCode.PERMISSION_DENIED
    guarded.grant({GROUP_G: access, TABLE_G: READ})
    assert guarded.token("g_kvtable") == {TABLE_G: READ}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    grants=st.dictionaries(
        st.sampled_from(
            [OF_T, TABLE_T, GROUP_G, TABLE_G, "prn::/scope:s", "prn::/scope:s/*", "prn::/scope:s/stream:*"]
        ),
        st.sampled_from([READ, READ_UPDATE]),
    ),
    name=st.sampled_from(["t", "g", "_RGg", "g_kvtable", "_MARKt", "t_kvtable", "u"]),
    operation=st.sampled_from(Info.AccessOperation.values()),
)
def test_a_token_has_no_more_than_its_user(guarded: Guarded, grants, name, operation):
    guarded.grant(grants)
    (user,) = guarded.known.by_name.values()
    try:
        claims = guarded.token(name, operation)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED  # noqa: PT017
        return
    for resource, granted in claims.items():
        level = min(granted, READ_UPDATE)  # the highest that a user can have
        of_group = user.access(resource.replace("key-value-table:", "reader-group:"))
        assert level <= user.access(resource) or (name in ("_RGg", "g_kvtable", "t_kvtable") and of_group >= READ)


@pytest.mark.parametrize("info", [("", "t"), ("s", ""), ("s/stream:t", "u"), ("s", "t/x"), ("s", "*"), ("*", "t")])
def test_token_for_what_cannot_exist_is_refused(guarded: Guarded, info: tuple[str, str]):
    guarded.grant({"prn::/*": READ_UPDATE})
    request = pb.StreamInfo(scope=info[0], stream=info[1])
    assert guarded.refused("getDelegationToken", request) is grpc.StatusCode.INVALID_ARGUMENT


def test_replies_with_segments_have_the_token(guarded: Guarded):
    guarded.grant({OF_T: READ})
    requests = {
        "getCurrentSegments": T,
        "getSegments": pb.GetSegmentsRequest(streamInfo=T),
        "getEpochSegments": pb.GetEpochSegmentsRequest(streamInfo=T),
        "getSegmentsBetween": pb.StreamCutRange(streamInfo=T),
    }
    for rpc, request in requests.items():
        assert guarded.claims(guarded.call(rpc, request).delegationToken) == {OF_T: READ}
    without = pb.StreamInfo(scope="s", stream="t", accessOperation=Info.NONE)
    assert guarded.call("getCurrentSegments", without).delegationToken == ""
    guarded.grant({OF_T: READ_UPDATE})
    made = guarded.call("createTransaction", pb.CreateTxnRequest(streamInfo=T, lease=20_000))
    assert guarded.claims(made.delegationToken) == {OF_T: MANAGE}


def test_segments_of_a_table_come_with_a_token(guarded: Guarded):
    config = pb.KeyValueTableConfig(scope="s", kvtName="t", partitionCount=1, primaryKeyLength=4)
    guarded.grant({"prn::/scope:s": READ_UPDATE, TABLE_T: READ})
    assert guarded.call("createKeyValueTable", config).status == pb.CreateKeyValueTableStatus.SUCCESS
    reply = guarded.call("getCurrentSegmentsKeyValueTable", pb.KeyValueTableInfo(scope="s", kvtName="t"))
    assert guarded.claims(reply.delegationToken) == {TABLE_T: READ}


def test_clients_can_decode_the_body_of_a_token(guarded: Guarded):
    guarded.grant({OF_T: READ})
    body = guarded.call("getDelegationToken", T).delegationToken.split(".")[1]
    assert json.loads(base64.b64decode(body))["exp"] == guarded.world.clock.now_ms() // 1000 + 600


# Without users


def test_without_users_there_are_no_tokens(bridge: Bridge):
    bridge.world.create()
    assert bridge.call("getDelegationToken", T).delegationToken == ""
    assert bridge.call("getCurrentSegments", T).delegationToken == ""


def test_a10_log_lines_have_no_passwords_and_tokens(guarded: Guarded, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    guarded.grant({OF_T: READ})
    token = guarded.call("getDelegationToken", T).delegationToken
    guarded.refused("sealStream", T)
    guarded.log_in("ann", "another one")
    guarded.refused("sealStream", T)
    assert "credentials_refused" in caplog.text
    encoded = [base64.b64encode(f"ann:{password}".encode()).decode() for password in (PASSWORD, "another one")]
    assert not any(secret in caplog.text for secret in (PASSWORD, "another one", token, *encoded))


def test_limits_hold_for_unknown_callers(guarded: Guarded):
    guarded.metadata = ()
    large = b"x" * (server.REQUEST_BYTES_MAX + 1)
    assert guarded.refused("createScope", large) is grpc.StatusCode.RESOURCE_EXHAUSTED
