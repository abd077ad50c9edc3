"""The server itself: what it refuses, what it says when something breaks, and the code that describes its messages."""

from __future__ import annotations

import base64
import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
from bridge_in_memory import Bridge
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stream_world import StreamWorld

from headrace.adapters.grpc_user_storage import GrpcUserFile
from headrace.api.listings import Listing
from headrace.bridge import controller_pb2 as pb
from headrace.bridge.config import LISTEN_PORT_DEFAULT, UsersConfig, read_config
from headrace.bridge.server import REQUEST_BYTES_MAX, SERVICE, BridgeServer, CallThreads
from headrace.bridge.status_codes import REPLY_BY_ERROR, code_of
from headrace.codec.delegation_tokens import TokenKey, TokenKeys, token_keys_text
from headrace.codec.grpc_users import PasswordHash, User, Users, users_text
from headrace.model import errors

ROOT = Path(__file__).resolve().parents[2]
RPCS = [method.name for method in SERVICE.methods]
ENVIRONMENT = {
    "HEADRACE_METADATA_TABLE": "table",
    "HEADRACE_REQUESTS_QUEUE_URL": "queue",
    "HEADRACE_TABLES_QUEUE_URL": "tables",
    "HEADRACE_COMMITS_QUEUE_URL": "commits",
    "HEADRACE_ABORTS_QUEUE_URL": "aborts",
}


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path):
    subprocess.run([sys.executable, "scripts/generate_controller_protocol", tmp_path], cwd=ROOT, check=True)
    for name in ("controller_pb2.py", "controller_pb2.pyi"):
        generated = (tmp_path / "headrace/bridge" / name).read_text()
        assert generated == (ROOT / "headrace/bridge" / name).read_text(), "run scripts/generate_controller_protocol"


def test_the_service_has_the_name_that_clients_call():
    assert SERVICE.full_name == "io.pravega.controller.stream.api.grpc.v1.ControllerService"


@pytest.mark.parametrize("rpc", ["getControllerToBucketMapping"])
def test_what_is_not_there_yet_is_unimplemented(bridge: Bridge, rpc):
    assert bridge.refused(rpc, b"") is grpc.StatusCode.UNIMPLEMENTED


def test_every_class_of_the_error_tree_has_a_status():
    for kind in errors.error_classes().values():
        assert code_of(kind("x")).name == kind.reported_as.grpc_status
    assert set(REPLY_BY_ERROR) <= set(RPCS)


@pytest.mark.parametrize("kind", [errors.ConflictError, errors.UnavailableError, errors.ThrottledError])
def test_what_may_be_repeated_gets_a_status_that_clients_repeat(kind):
    final = {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
    assert code_of(kind("busy")) not in final
    assert code_of(errors.IllegalStateError("no")) in final


def test_a_fault_inside_is_told_without_its_details(bridge: Bridge, monkeypatch: pytest.MonkeyPatch):
    def broken(limit: int, after: str | None = None) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(bridge.world.scopes, "list_scopes", broken)
    with pytest.raises(grpc.RpcError) as raised:
        bridge.call("listScopes", pb.ScopesRequest())
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (raised.value.details() or "")
    monkeypatch.undo()
    assert list(bridge.call("listScopes", pb.ScopesRequest()).scopes) == ["s"]


def test_too_large_request_is_refused_before_it_is_read(bridge: Bridge):
    large = pb.ScopeInfo(scope="x" * (REQUEST_BYTES_MAX + 1))
    assert bridge.refused("createScope", large) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert bridge.call("checkScopeExists", pb.ScopeInfo(scope="s")).exists


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rpc=st.sampled_from(RPCS), request_bytes=st.binary(max_size=60))
def test_arbitrary_bytes_get_an_answer_and_create_no_stream(bridge: Bridge, rpc, request_bytes):
    before = bridge.world.streams.list_streams("s", 10).items
    with contextlib.suppress(grpc.RpcError):
        bridge.raw(rpc, request_bytes)
    assert bridge.world.streams.list_streams("s", 10).items == before


def test_more_calls_at_once_than_allowed_are_refused(world: StreamWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.bridge.server.RPCS_MAX", 1)
    busy = Bridge(world)
    entered, go_on = threading.Event(), threading.Event()

    def wait(limit: int, after: str | None = None) -> Listing[str]:
        entered.set()
        go_on.wait()
        return Listing((), None)

    monkeypatch.setattr(world.scopes, "list_scopes", wait)
    first = threading.Thread(target=busy.call, args=("listScopes", pb.ScopesRequest()))
    first.start()
    entered.wait()
    try:
        assert busy.refused("listScopes", pb.ScopesRequest()) is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        go_on.set()
        first.join()
    assert not busy.call("listScopes", pb.ScopesRequest()).scopes
    busy.close()


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_told(bridge: Bridge):
    server = BridgeServer({name: lambda request: request for name in RPCS}, CallThreads())
    try:
        with pytest.raises(errors.InvalidRequestError, match=f"cannot listen on 127.0.0.1:{bridge.port}"):
            server.listen("127.0.0.1", bridge.port)
    finally:
        await server.stop(0)


def test_the_configuration_has_defaults_and_names_what_is_wrong():
    config = read_config(ENVIRONMENT)
    assert (config.listen_host, config.listen_port) == ("127.0.0.1", LISTEN_PORT_DEFAULT)
    assert config.advertised_host == "127.0.0.1"
    assert config.audit_file is None
    assert read_config(ENVIRONMENT | {"HEADRACE_AUDIT_FILE": "/a.log"}).audit_file == Path("/a.log")
    for name in ENVIRONMENT:
        with pytest.raises(errors.InvalidRequestError, match=name):
            read_config({key: value for key, value in ENVIRONMENT.items() if key != name})
    for name, value in (
        ("HEADRACE_GRPC_LISTEN_PORT", "70000"),
        ("HEADRACE_CONTAINER_COUNT", "0"),
        ("HEADRACE_STREAM_DEADLINE_S", "x"),
        ("HEADRACE_LOG_LEVEL", "LOUD"),
    ):
        with pytest.raises(errors.InvalidRequestError, match=name):
            read_config(ENVIRONMENT | {name: value})


def test_the_process_serves_until_it_is_told_to_stop(aws_environment: dict[str, str]):
    environment = ENVIRONMENT | aws_environment | {"HEADRACE_GRPC_LISTEN_PORT": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "headrace.bridge"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[:2] == ["ready", "grpc"]
        port = int(ready[-1].removeprefix("port="))
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/{SERVICE.full_name}/getControllerServerList"
            )
            answer = ask(b"")
        assert pb.ServerResponse.FromString(answer).nodeURI[0].port == port
        second = environment | {"HEADRACE_GRPC_LISTEN_PORT": str(port)}
        refused = subprocess.run(command, cwd=ROOT, env=second, capture_output=True, text=True)
        assert refused.returncode == 2
        assert f"grpc bridge: cannot listen on 127.0.0.1:{port}" in refused.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_the_process_says_what_it_is_missing_and_ends():
    ended = subprocess.run([sys.executable, "-m", "headrace.bridge"], cwd=ROOT, env={}, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "grpc bridge: the environment variable HEADRACE_METADATA_TABLE is missing\n"


REQUIRED = {"HEADRACE_TOKENS": "required", "HEADRACE_GRPC_USERS_FILE": "/users", "HEADRACE_TOKEN_KEYS_FILE": "/keys"}


def test_users_are_configured_with_tokens_only():
    assert read_config(ENVIRONMENT | {"HEADRACE_GRPC_USERS_FILE": "/users"}).users is None
    config = read_config(ENVIRONMENT | REQUIRED)
    assert config.users == UsersConfig("/users", "")
    assert config.token_environment == {key: REQUIRED[key] for key in ("HEADRACE_TOKENS", "HEADRACE_TOKEN_KEYS_FILE")}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"HEADRACE_GRPC_USERS_FILE": ""}, "none is set"),
        ({"HEADRACE_GRPC_USERS_SECRET": "id"}, "both are set"),
        ({"HEADRACE_GRPC_PLAINTEXT": "yes"}, "expected allowed"),
        ({"HEADRACE_GRPC_LISTEN_HOST": "0.0.0.0"}, "the bridge has no TLS"),
        ({"HEADRACE_GRPC_LISTEN_HOST": "[::]"}, "the bridge has no TLS"),
        ({"HEADRACE_GRPC_LISTEN_HOST": "bridge.example"}, "the bridge has no TLS"),
    ],
)
def test_unsafe_or_incomplete_settings_are_refused(changed: dict[str, str], message: str):
    with pytest.raises(errors.InvalidRequestError, match=message):
        read_config(ENVIRONMENT | REQUIRED | changed)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "0.0.0.0"])
def test_plaintext_is_for_loopback_or_on_demand(host: str):
    changed = {"HEADRACE_GRPC_LISTEN_HOST": host}
    if host == "0.0.0.0":
        changed["HEADRACE_GRPC_PLAINTEXT"] = "allowed"
    assert read_config(ENVIRONMENT | REQUIRED | changed).listen_host == host


def test_the_process_demands_users_as_configured(aws_environment: dict[str, str], tmp_path: Path):
    keys, users = tmp_path / "keys.json", tmp_path / "users.json"
    environment = ENVIRONMENT | aws_environment | {"HEADRACE_GRPC_LISTEN_PORT": "0", "PYTHONPATH": str(ROOT)}
    environment |= REQUIRED | {"HEADRACE_GRPC_USERS_FILE": str(users), "HEADRACE_TOKEN_KEYS_FILE": str(keys)}
    command = [sys.executable, "-m", "headrace.bridge"]
    refused = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (refused.returncode, str(keys) in refused.stderr) == (2, True)

    GrpcUserFile(keys).write(token_keys_text(TokenKeys((TokenKey("k", b"0" * 32),))))
    users.write_text("{}")
    refused = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (refused.returncode, "the users are not the JSON text" in refused.stderr) == (2, True)

    ann = User("ann", PasswordHash.of(b"correct horse", b"0123456789abcdef"))
    users.write_text(users_text(Users({"ann": ann})))
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1].removeprefix("port="))
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
                f"/{SERVICE.full_name}/getControllerServerList"
            )
            with pytest.raises(grpc.RpcError) as raised:
                ask(b"")
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            header = f"Basic {base64.b64encode(b'ann:correct horse').decode()}"
            assert pb.ServerResponse.FromString(ask(b"", metadata=(("authorization", header),))).nodeURI[0].port == port
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
