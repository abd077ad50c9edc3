"""Delegation tokens of a whole store process: its settings, its start, and keys that change while it runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_process import PROCESS_WAIT_S as WAIT_S
from store_world import WireClient
from token_clients import KEY, KEYS, SECRET, SEGMENT, refused

from headrace import wire
from headrace.adapters.system_clock import SystemClock
from headrace.adapters.token_keys import TokenKeyFile
from headrace.codec.delegation_tokens import TokenClaims, TokenKey, TokenKeys, encode_token, token_keys_text
from headrace.model.access import Access
from headrace.model.errors import CorruptError, HeadraceError, IllegalStateError, InvalidRequestError
from segmentstore_fargate import __main__ as main_module
from segmentstore_fargate import token_upkeep
from segmentstore_fargate.config import StoreConfig, read_config
from segmentstore_fargate.wiring import SegmentStoreProcess

pytestmark = pytest.mark.anyio

OTHERS = TokenKeys((TokenKey("other", SECRET[::-1]),))
REQUIRED = {"HEADRACE_TOKENS": "required"}


def write(path: Path, text: str) -> Path:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, path)
    return path


def token(key: TokenKey, life_s: int = 600) -> str:
    now_s = SystemClock().now_ms() // 1_000
    return encode_token(TokenClaims("test", now_s, now_s + life_s, {"*": Access.ADMIN}), key)


@asynccontextmanager
async def running(config: StoreConfig, path: Path) -> AsyncIterator[WireClient]:
    """A client of a process whose keys are in a file."""
    process = SegmentStoreProcess(replace(config, token_keys=TokenKeyFile(path)), {})
    ready = await asyncio.wait_for(process.start(), WAIT_S)
    port = int(ready.split("port=")[1].split()[0])
    client = WireClient(*await asyncio.open_connection("127.0.0.1", port))
    try:
        assert await client.call(wire.Hello(17, 5)) == wire.OWN_HELLO
        yield client
    finally:
        client.close()
        process.request_stop()
        await process.stop()


async def until_answered(client: WireClient, command: Any, reply: type[wire.WireCommand]) -> wire.WireCommand:
    async def ask() -> wire.WireCommand:
        while not isinstance(found := await client.call(command), reply):
            await asyncio.sleep(0.001)
        return found

    return await asyncio.wait_for(ask(), WAIT_S)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_upkeep, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(token_upkeep, "END_EVERY_S", 0.001)


def test_store_reads_its_token_settings(tmp_path: Path) -> None:
    environment = {
        "HEADRACE_STORE_ID": "store-0",
        "HEADRACE_DATA_DIR": str(tmp_path),
        "HEADRACE_METADATA_TABLE": "table",
        "HEADRACE_CHUNK_BUCKET": "bucket",
    }
    assert read_config(environment).token_keys is None
    path = write(tmp_path / "keys", token_keys_text(KEYS))
    keys = read_config(environment | REQUIRED | {"HEADRACE_TOKEN_KEYS_FILE": str(path)}).token_keys
    assert keys is not None
    assert keys.keys() == KEYS
    with pytest.raises(InvalidRequestError, match="HEADRACE_TOKEN_KEYS_FILE"):
        read_config(environment | REQUIRED)


@pytest.mark.usefixtures("aws")
async def test_process_without_tokens_serves_as_before(config: StoreConfig) -> None:
    process = SegmentStoreProcess(config, {})
    assert process._store.tokens is None
    assert process._tokens is None


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [(None, IllegalStateError, "cannot be read"), ('{"keys":[{"secret":"aabb"}]}', CorruptError, "token keys")],
)
async def test_process_does_not_start_without_keys(
    config: StoreConfig, tmp_path: Path, text: str | None, kind: type[HeadraceError], named: str
) -> None:
    path = tmp_path / "keys"
    if text is not None:
        write(path, text)
    process = SegmentStoreProcess(replace(config, token_keys=TokenKeyFile(path)), {})
    with pytest.raises(kind, match=named):
        await process.start()


@pytest.mark.usefixtures("aws")
async def test_missing_keys_are_named_on_stderr(
    config: StoreConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no-such-file"
    code = await main_module._serve(replace(config, token_keys=TokenKeyFile(path)))
    assert code == 2
    assert f"the token keys in {path} cannot be read" in capsys.readouterr().err


@pytest.mark.usefixtures("aws", "fast")
async def test_a7_process_follows_its_keys(
    config: StoreConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "keys", token_keys_text(KEYS))
    with caplog.at_level("INFO"):
        async with running(config, path) as client:
            assert await client.call(wire.CreateSegment(1, SEGMENT, 0, 0)) == refused(1)
            created = await client.call(wire.CreateSegment(2, SEGMENT, 0, 0, token(KEY)))
            assert created == wire.SegmentCreated(2, SEGMENT)
            write(path, token_keys_text(OTHERS))
            ask = wire.GetStreamSegmentInfo(3, SEGMENT, token(KEY))
            assert await until_answered(client, ask, wire.AuthTokenCheckFailed) == refused(3, wire.TOKEN_EXPIRED)
            ask = wire.GetStreamSegmentInfo(4, SEGMENT, token(OTHERS.keys[0]))
            assert isinstance(await client.call(ask), wire.StreamSegmentInfo)
    assert "event=token_keys_loaded keys=first" in caplog.text
    assert SECRET.hex() not in caplog.text


@pytest.mark.usefixtures("aws", "fast")
async def test_process_ends_writers_with_their_tokens(config: StoreConfig, tmp_path: Path) -> None:
    path = write(tmp_path / "keys", token_keys_text(KEYS))
    async with running(config, path) as client:
        await client.call(wire.CreateSegment(1, SEGMENT, 0, 0, token(KEY)))
        # Its end is a second away: the minute of grace is over almost.
        assert isinstance(await client.call(wire.SetupAppend(5, 7, SEGMENT, token(KEY, -58))), wire.AppendSetup)
        await client.append(7, 1, b"event")
        assert await client.receive() == refused(5, wire.TOKEN_EXPIRED)
        reply = await client.call(wire.SetupAppend(6, 7, SEGMENT, token(KEY)))
        assert isinstance(reply, wire.AppendSetup)
        assert reply.last_event_number == 1
