"""A stack with delegation tokens: a client of the wire port is served with a token of the HTTP API, and not without."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from headrace import wire
from headrace.api.delegation_tokens import IssuedToken
from headrace.cli import main
from headrace.client import ScalingPolicy, connect
from headrace.local.running import running_stack
from headrace.model.names import segment_name
from headrace.wire.connections.blocking import BlockingConnection

SEGMENT = segment_name("shop", "orders", 0)
OTHER = segment_name("shop", "returns", 0)
WRITER = 7
EVENT = b"\x00\x00\x00\x00\x00\x00\x00\x01x"
HANG_S = 60


class RawClient:
    """Speaks the wire protocol to the one store of a stack, and HTTP to its controller."""

    def __init__(self, running: dict[str, Any]) -> None:
        (store,) = running["segmentStores"]
        self._url = running["endpoints"]["http"]
        self._connection = BlockingConnection(store["host"], store["port"])

    def token(self, method: str, resource: str) -> str:
        answer = httpx.request(method, f"{self._url}/v1/scopes/shop/{resource}/delegation-token", timeout=HANG_S)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        return IssuedToken.from_json(answer.json()).token

    def ask(self, command: Any) -> wire.WireCommand:
        """The reply to a command, which gets a request id."""
        (reply,) = self._connection.call([lambda number: _numbered(command, number)], time.monotonic() + HANG_S)
        return reply

    def is_refused(self, command: Any) -> bool:
        return isinstance(self.ask(command), wire.AuthTokenCheckFailed)

    def close(self) -> None:
        self._connection.close()


def _numbered(command: Any, number: int) -> Any:
    return replace(command, request_id=number)


def _info(token: str, segment: str = SEGMENT) -> wire.GetStreamSegmentInfo:
    return wire.GetStreamSegmentInfo(0, segment, token)


def _read(token: str) -> wire.ReadSegment:
    return wire.ReadSegment(SEGMENT, 0, 100, token, 0)


def _set_up(token: str) -> wire.SetupAppend:
    return wire.SetupAppend(0, WRITER, SEGMENT, token)


def _create_streams(running: dict[str, Any]) -> None:
    """The functions create the segments, with a token of their own."""
    with connect(running["endpoints"]["http"]) as headrace:
        headrace.admin.create_scope("shop")
        for stream in ("orders", "returns"):
            headrace.admin.create_stream("shop", stream, scaling=ScalingPolicy.fixed(1))
        cut = headrace.admin.stream_cut("shop", "orders", at="latest")
        assert set(cut.offsets.values()) == {0}


def _only_the_granted_is_served(client: RawClient) -> None:
    reading, writing = client.token("GET", "streams/orders"), client.token("POST", "streams/orders")
    group = client.token("POST", "reader-groups/orders")
    for wrong in ("", "x", reading[:-2], group):
        assert all(client.is_refused(command(wrong)) for command in (_info, _read, _set_up))
    assert isinstance(client.ask(_info(reading)), wire.StreamSegmentInfo)
    assert client.is_refused(_info(writing, OTHER))
    assert client.is_refused(_set_up(reading))
    assert isinstance(client.ask(_set_up(writing)), wire.AppendSetup)
    appended = client.ask(wire.ConditionalBlockEnd(WRITER, 1, 0, EVENT, 0))
    assert isinstance(appended, wire.DataAppended)
    read = client.ask(_read(reading))
    assert isinstance(read, wire.SegmentRead)
    assert bytes(read.data) == EVENT
    assert client.is_refused(wire.DeleteSegment(0, SEGMENT, writing))


def _without_tokens_all_is_served(client: RawClient) -> None:
    assert client.token("POST", "streams/orders") == ""
    assert isinstance(client.ask(_info("")), wire.StreamSegmentInfo)


def _a_revoked_key_opens_nothing(client: RawClient, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = client.token("GET", "streams/orders")
    assert not client.is_refused(_info(token))
    capsys.readouterr()
    assert main(["token-key", "list", "--file", str(keys)]) == 0
    key_id = capsys.readouterr().out.splitlines()[1].split()[0]
    assert main(["token-key", "revoke", key_id, "--file", str(keys)]) == 0
    deadline_s = time.monotonic() + HANG_S
    while not client.is_refused(_info(token)):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert not client.is_refused(_info(client.token("GET", "streams/orders")))


def _each_token_has_a_line_without_it(said: list[str]) -> None:
    (file,) = [line.split()[1] for line in said if line.startswith("audit ")]
    text = Path(file).read_text()
    actions = {json.loads(line)["action"] for line in text.splitlines()}
    assert {"stream.read-token", "stream.write-token", "reader-group.write-token"} <= actions
    # A token is a JSON Web Token: its head begins with `{"` in base64.
    assert "eyJ" not in text


def test_a_stack_with_and_without_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    keys, said = tmp_path / "data" / "token-keys.json", list[str]()
    with running_stack(tmp_path, segment_stores=1, tokens=True, say=said.append) as running:
        _create_streams(running)
        client = RawClient(running)
        _only_the_granted_is_served(client)
        client.close()
    _each_token_has_a_line_without_it(said)
    assert f"tokens    required (keys {keys})" in said
    assert keys.stat().st_mode & 0o777 == 0o600
    text = keys.read_text()
    with running_stack(tmp_path, segment_stores=1, say=said.append) as running:
        client = RawClient(running)
        _without_tokens_all_is_served(client)
        client.close()
    assert "tokens    off" in said
    assert keys.read_text() == text
    with running_stack(tmp_path, segment_stores=1, tokens=True) as running:
        client = RawClient(running)
        assert client.is_refused(_info(""))
        _a_revoked_key_opens_nothing(client, keys, capsys)
        client.close()
