"""The users of a bridge process: where they come from, and what happens when they cannot be read."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from headrace.adapters.grpc_user_storage import GrpcUserFile
from headrace.bridge.users import UserSource
from headrace.codec.grpc_users import PasswordHash, User, Users, users_text
from headrace.model.errors import CorruptError, UnavailableError

pytestmark = pytest.mark.anyio

ANN = Users({"ann": User("ann", PasswordHash(b"0" * 16, b"1" * 32))})


async def until(condition: object, source: UserSource) -> None:
    async with asyncio.timeout(20):
        while source.users() != condition:
            await asyncio.sleep(0.005)


async def test_changed_users_are_noticed(tmp_path: Path):
    storage = GrpcUserFile(tmp_path / "users.json")
    storage.write(users_text(Users({})))
    source = UserSource(storage, refresh_s=0.01)
    await source.start()
    assert source.users() == Users({})
    storage.write(users_text(ANN))
    await until(ANN, source)
    source.stop()


async def test_without_a_file_there_are_no_users_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    storage = GrpcUserFile(tmp_path / "users.json")
    source = UserSource(storage, refresh_s=0.01)
    await source.start()
    assert source.users() == Users({})
    assert "event=users_not_read" in caplog.text
    storage.write(users_text(ANN))
    await until(ANN, source)
    source.stop()


async def test_damaged_users_end_the_start(tmp_path: Path):
    (tmp_path / "users.json").write_text("{}")
    with pytest.raises(CorruptError):
        await UserSource(GrpcUserFile(tmp_path / "users.json")).start()


@pytest.mark.parametrize("failure", [UnavailableError("away"), CorruptError("damaged"), RuntimeError("a defect")])
async def test_users_are_kept_while_they_cannot_be_read(failure: Exception, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.ERROR)
    read = 0

    class Storage:
        def read(self) -> str:
            nonlocal read
            read += 1
            if read in (2, 3):
                raise failure
            return users_text(ANN if read == 1 else Users({}))

        def write(self, text: str) -> None:
            raise AssertionError

    source = UserSource(Storage(), refresh_s=0.01)
    await source.start()
    while read < 3:
        assert source.users() == ANN
        await asyncio.sleep(0.001)
    await until(Users({}), source)
    assert caplog.text.count("event=users_not_read") == 2
    source.stop()
