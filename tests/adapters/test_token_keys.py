"""Where the keys of delegation tokens come from: settings, files, secrets, and the tokens of the deployment itself."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber

from headrace.adapters.internal_token import InternalToken
from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_key_secret import REFRESH_S, RETRY_S, STALE_S, TokenKeySecret
from headrace.adapters.token_keys import TokenKeyFile, token_key_source, token_life_s
from headrace.codec.delegation_tokens import TokenKey, TokenKeys, token_keys_text, verify_token
from headrace.model.access import Access
from headrace.model.errors import CorruptError, IllegalStateError, InvalidRequestError, UnavailableError

SECRET = b"0123456789abcdef0123456789abcdef"
FIRST = TokenKeys((TokenKey("first", SECRET),))
SECOND = TokenKeys((TokenKey("first", SECRET), TokenKey("second", SECRET[::-1])))


class KeysAtHand:
    def __init__(self, keys: TokenKeys) -> None:
        self.current = keys

    def keys(self) -> TokenKeys:
        return self.current


def write(path: Path, text: str, mode: int = 0o600) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    os.replace(fresh, path)


def test_tokens_are_off_by_default() -> None:
    assert token_key_source({}, ManualClock()) is None
    assert token_key_source({"HEADRACE_TOKENS": ""}, ManualClock()) is None
    assert token_key_source({"HEADRACE_TOKENS": "off", "HEADRACE_TOKEN_KEYS_FILE": "/none"}, ManualClock()) is None


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"HEADRACE_TOKENS": "permissive"}, "HEADRACE_TOKENS is 'permissive'"),
        ({"HEADRACE_TOKENS": "required"}, "none is set"),
        (
            {"HEADRACE_TOKENS": "required", "HEADRACE_TOKEN_KEYS_FILE": "/f", "HEADRACE_TOKEN_KEYS_SECRET": "s"},
            "both are set",
        ),
    ],
)
def test_wrong_settings_are_refused(environment: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        token_key_source(environment, ManualClock())


def test_settings_choose_the_source(tmp_path: Path) -> None:
    write(tmp_path / "keys", token_keys_text(FIRST))
    found = token_key_source(
        {"HEADRACE_TOKENS": "required", "HEADRACE_TOKEN_KEYS_FILE": str(tmp_path / "keys")}, ManualClock()
    )
    assert found is not None
    assert found.keys() == FIRST
    secret = token_key_source({"HEADRACE_TOKENS": "required", "HEADRACE_TOKEN_KEYS_SECRET": "keys"}, ManualClock())
    assert isinstance(secret, TokenKeySecret)


def test_life_of_tokens_has_bounds() -> None:
    assert token_life_s({}) == 600
    assert token_life_s({"HEADRACE_TOKEN_LIFE_S": "60"}) == 60
    for wrong in ("59", "3601", "-1", "6e2", "1" * 5_000, "٦٠٠"):
        with pytest.raises(InvalidRequestError, match="HEADRACE_TOKEN_LIFE_S"):
            token_life_s({"HEADRACE_TOKEN_LIFE_S": wrong})


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write(path, token_keys_text(FIRST))
    source = TokenKeyFile(path)
    assert source.keys() == FIRST
    assert source.keys() is source.keys()
    write(path, token_keys_text(SECOND))
    assert source.keys() == SECOND


def test_damaged_file_keeps_the_known_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    write(path, token_keys_text(FIRST))
    source = TokenKeyFile(path)
    source.keys()
    write(path, token_keys_text(SECOND)[:-2])
    assert [source.keys() for _ in range(3)] == [FIRST] * 3
    assert caplog.text.count("event=token_keys_not_read") == 1
    assert SECRET.hex() not in caplog.text
    path.unlink()
    assert source.keys() == FIRST
    write(path, token_keys_text(SECOND))
    assert source.keys() == SECOND


def test_unusable_file_is_an_error_at_first(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    source = TokenKeyFile(path)
    with pytest.raises(IllegalStateError, match="cannot be read"):
        source.keys()
    write(path, token_keys_text(FIRST), mode=0o640)
    with pytest.raises(IllegalStateError, match="mode to 600"):
        source.keys()
    write(path, f"{SECRET.hex()} is not JSON")
    for _ in range(2):
        with pytest.raises(CorruptError) as caught:
            source.keys()
        assert SECRET.hex() not in str(caught.value)
    path.write_bytes(b"\xff")
    with pytest.raises(CorruptError, match="ASCII"):
        source.keys()
    write(path, token_keys_text(FIRST))
    assert source.keys() == FIRST


class Secrets:
    """A botocore client whose answers are scripted."""

    def __init__(self) -> None:
        client: Any = botocore.session.get_session().create_client(
            "secretsmanager", region_name="eu-west-1", aws_access_key_id="none", aws_secret_access_key="none"
        )
        self.client = client
        self.stub = Stubber(client)
        self.stub.activate()

    def answer(self, text: str) -> None:
        self.stub.add_response("get_secret_value", {"SecretString": text}, {"SecretId": "keys"})

    def fail(self, code: str) -> None:
        self.stub.add_client_error("get_secret_value", code)


def test_secret_is_read_every_five_minutes() -> None:
    secrets, clock = Secrets(), ManualClock()
    source = TokenKeySecret("keys", clock, secrets.client)
    secrets.answer(token_keys_text(FIRST))
    assert source.keys() == FIRST
    clock.advance(REFRESH_S * 1_000 - 1)
    assert source.keys() == FIRST  # a request would fail, since none is scripted
    secrets.answer(token_keys_text(SECOND))
    clock.advance(1)
    assert source.keys() == SECOND


def test_unreadable_secret_keeps_the_known_keys(caplog: pytest.LogCaptureFixture) -> None:
    secrets, clock = Secrets(), ManualClock()
    source = TokenKeySecret("keys", clock, secrets.client)
    secrets.answer(token_keys_text(FIRST))
    source.keys()
    clock.advance(REFRESH_S * 1_000)
    secrets.fail("InternalServiceError")
    assert source.keys() == FIRST
    assert source.keys() == FIRST  # without another request
    clock.advance(RETRY_S * 1_000)
    secrets.answer(token_keys_text(SECOND)[1:])
    assert source.keys() == FIRST
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    clock.advance(STALE_S * 1_000)
    secrets.fail("InternalServiceError")
    assert source.keys() == FIRST
    assert caplog.records[-1].levelno == logging.ERROR
    assert SECRET.hex() not in caplog.text


@pytest.mark.parametrize(
    ("code", "kind"),
    [("ResourceNotFoundException", UnavailableError), ("InternalServiceError", UnavailableError)],
)
def test_unreadable_secret_is_an_error_at_first(code: str, kind: type[Exception]) -> None:
    secrets = Secrets()
    source = TokenKeySecret("keys", ManualClock(), secrets.client)
    secrets.fail(code)
    with pytest.raises(kind, match=code):
        source.keys()
    secrets.answer(token_keys_text(FIRST))
    assert source.keys() == FIRST


def test_internal_token_is_renewed_at_four_fifths() -> None:
    clock, keys = ManualClock(), KeysAtHand(FIRST)
    internal = InternalToken(keys, clock, 600, "segment-store a")
    token = internal.token()
    claims = verify_token(token, FIRST, clock.now_ms() / 1_000)
    assert (claims.subject, claims.grants) == ("segment-store a", {"*": Access.ADMIN})
    assert claims.expires_at_s - claims.issued_at_s == 600
    clock.advance(479_999)
    assert internal.token() == token
    clock.advance(1)
    assert internal.token() != token
    assert token not in repr(vars(internal))


def test_internal_token_of_a_revoked_key_is_replaced() -> None:
    clock, keys = ManualClock(), KeysAtHand(SECOND)
    internal = InternalToken(keys, clock, 600, "bridge")
    internal.token()
    for kid in ("first", "second"):
        keys.current = TokenKeys(tuple(key for key in SECOND.keys if key.key_id == kid))
        verify_token(internal.token(), keys.current, clock.now_ms() / 1_000)
