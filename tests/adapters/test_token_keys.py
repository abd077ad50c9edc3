"""Where the keys of delegation tokens come from: settings, files, secrets, and the tokens of the deployment itself."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.stub import Stubber
from secrets_in_memory import SECRET, SecretsInMemory

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_key_editors import (
    EDIT_ATTEMPTS_MAX,
    TokenKeyEditor,
    TokenKeyFileEditor,
    TokenKeySecretEditor,
    revoke,
    rotate,
)
from headrace.adapters.token_keys import (
    REFRESH_S,
    RETRY_S,
    STALE_S,
    InternalToken,
    TokenKeyFile,
    TokenKeySecret,
    secrets_client,
    token_key_source,
    token_life_s,
)
from headrace.codec.delegation_tokens import (
    NO_KEYS_TEXT,
    TokenKey,
    TokenKeys,
    parse_token_keys,
    stored_keys,
    token_keys_text,
    verify_token,
)
from headrace.model.access import Access
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    HeadraceError,
    IllegalStateError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)

TOKEN_KEYS_SECRET = b"0123456789abcdef0123456789abcdef"
FIRST = TokenKeys((TokenKey("first", TOKEN_KEYS_SECRET),))
SECOND = TokenKeys((TokenKey("first", TOKEN_KEYS_SECRET), TokenKey("second", TOKEN_KEYS_SECRET[::-1])))


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
    source = token_key_source(
        {"HEADRACE_TOKENS": "required", "HEADRACE_TOKEN_KEYS_FILE": str(tmp_path / "keys")}, ManualClock()
    )
    assert source is not None
    assert source.keys() == FIRST
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
    assert TOKEN_KEYS_SECRET.hex() not in caplog.text
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
    write(path, f"{TOKEN_KEYS_SECRET.hex()} is not JSON")
    for _ in range(2):
        with pytest.raises(CorruptError) as caught:
            source.keys()
        assert TOKEN_KEYS_SECRET.hex() not in str(caught.value)
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


def test_a7_unreadable_secret_keeps_the_known_keys(caplog: pytest.LogCaptureFixture) -> None:
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
    assert TOKEN_KEYS_SECRET.hex() not in caplog.text


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


CLOCK = ManualClock()
LIFE_S = 600


@pytest.fixture(params=["file", "secret"])
def editor(request: pytest.FixtureRequest, tmp_path: Path) -> TokenKeyEditor:
    """Of keys that are not there yet."""
    if request.param == "file":
        return TokenKeyFileEditor(tmp_path / "keys.json")
    return TokenKeySecretEditor(SECRET, SecretsInMemory(NO_KEYS_TEXT))


def test_the_first_key_signs_at_once(editor: TokenKeyEditor):
    assert editor.read() is None
    keys = rotate(editor, CLOCK, LIFE_S)
    assert editor.read() == keys
    assert keys.signing_key(CLOCK.now_ms() / 1_000) == keys.keys[0]


def test_keys_and_their_secrets_differ(editor: TokenKeyEditor):
    for _ in range(3):
        keys = rotate(editor, CLOCK, LIFE_S)
    assert len({key.key_id for key in keys.keys}) == len({key.secret for key in keys.keys}) == 3
    assert {len(key.secret) for key in keys.keys} == {32}


def test_a_revoked_key_is_gone(editor: TokenKeyEditor):
    rotate(editor, CLOCK, LIFE_S)
    gone, kept = rotate(editor, CLOCK, LIFE_S).keys
    revoke(editor, gone.key_id, CLOCK)
    keys_read = editor.read()
    assert keys_read is not None
    assert [key.key_id for key in keys_read.keys] == [kept.key_id]
    with pytest.raises(NotFoundError):
        revoke(editor, gone.key_id, CLOCK)


def test_rotations_at_the_same_time_all_count(editor: TokenKeyEditor):
    rotate(editor, CLOCK, LIFE_S)
    threads = [threading.Thread(target=rotate, args=(editor, CLOCK, LIFE_S)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys_read = editor.read()
    assert keys_read is not None
    assert len(keys_read.keys) == 5


def test_a_file_is_for_its_owner_only_and_readable(tmp_path: Path):
    path = tmp_path / "keys.json"
    keys = rotate(TokenKeyFileEditor(path), CLOCK, LIFE_S)
    assert path.stat().st_mode & 0o777 == 0o600
    assert TokenKeyFile(path).keys() == keys
    assert sorted(each.name for each in tmp_path.iterdir()) == ["keys.json", "keys.json.lock"]


def test_a_change_that_was_interrupted_is_made_again(tmp_path: Path):
    path = tmp_path / "keys.json"
    (tmp_path / "keys.json.new").write_text("half of")
    assert len(rotate(TokenKeyFileEditor(path), CLOCK, LIFE_S).keys) == 1


@pytest.mark.parametrize(
    ("text", "mode", "error"), [("x", 0o600, CorruptError), (NO_KEYS_TEXT, 0o644, IllegalStateError)]
)
def test_a_wrong_file_is_not_replaced(tmp_path: Path, text: str, mode: int, error: type[HeadraceError]):
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(error):
        rotate(TokenKeyFileEditor(path), CLOCK, LIFE_S)
    assert path.read_text() == text


def test_a_missing_directory_is_named(tmp_path: Path):
    with pytest.raises(IllegalStateError, match=r"missing/keys\.json cannot be written: No such file"):
        rotate(TokenKeyFileEditor(tmp_path / "missing" / "keys.json"), CLOCK, LIFE_S)


def test_a_secret_that_was_changed_meanwhile_is_read_again():
    secrets = SecretsInMemory(NO_KEYS_TEXT)
    other = TokenKeySecretEditor(SECRET, secrets)
    rotate(other, CLOCK, LIFE_S)
    waiting = [rotate, rotate]

    def interfere(call: str) -> None:
        if call == "update_secret_version_stage" and waiting:
            waiting.pop()(other, CLOCK, LIFE_S)

    secrets.before = interfere
    rotate(TokenKeySecretEditor(SECRET, secrets), CLOCK, LIFE_S)
    assert len(parse_token_keys(secrets.current).keys) == 4


def test_endless_changes_by_others_are_a_conflict():
    secrets = SecretsInMemory(NO_KEYS_TEXT)

    def interfere(call: str) -> None:
        if call == "update_secret_version_stage":
            secrets.stages["AWSCURRENT"] = secrets.put_secret_value(
                SecretId=SECRET,
                ClientRequestToken=str(len(secrets.texts)),
                SecretString=NO_KEYS_TEXT,
                VersionStages=["X"],
            )["VersionId"]

    secrets.before = interfere
    with pytest.raises(ConflictError):
        rotate(TokenKeySecretEditor(SECRET, secrets), CLOCK, LIFE_S)
    assert secrets.calls.count("update_secret_version_stage") == EDIT_ATTEMPTS_MAX
    assert secrets.current == NO_KEYS_TEXT


def test_a_repeated_call_whose_answer_was_lost_succeeds():
    secrets = SecretsInMemory(NO_KEYS_TEXT)
    move = secrets.update_secret_version_stage

    def move_twice(**arguments: Any) -> dict[str, Any]:
        move(**arguments)
        return move(**arguments)

    secrets.update_secret_version_stage = move_twice  # type: ignore[method-assign]
    keys = rotate(TokenKeySecretEditor(SECRET, secrets), CLOCK, LIFE_S)
    assert stored_keys(secrets.current) == keys


def test_a_change_leaves_no_stage_behind_per_change():
    secrets = SecretsInMemory(NO_KEYS_TEXT)
    for _ in range(5):
        rotate(TokenKeySecretEditor(SECRET, secrets), CLOCK, LIFE_S)
    assert set(secrets.stages) == {"AWSCURRENT", "AWSPREVIOUS", "HEADRACE_NEXT"}


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetSecretValue"), UnauthorizedError),
        (ClientError({"Error": {"Code": "InternalServiceError"}}, "GetSecretValue"), UnavailableError),
        (EndpointConnectionError(endpoint_url="https://x"), UnavailableError),
    ],
)
def test_failures_of_secrets_manager_have_their_class(failure: Exception, error: type[HeadraceError]):
    secrets = SecretsInMemory(NO_KEYS_TEXT)

    def fail(_call: str) -> None:
        raise failure

    secrets.before = fail
    with pytest.raises(error, match=SECRET):
        rotate(TokenKeySecretEditor(SECRET, secrets), CLOCK, LIFE_S)


def test_a_missing_secret_is_named():
    with pytest.raises(NotFoundError, match="no secret elsewhere"):
        TokenKeySecretEditor("elsewhere", SecretsInMemory(NO_KEYS_TEXT)).read()


@pytest.mark.usefixtures("_endpoint_variable")
def test_secrets_manager_takes_the_calls():
    client: Any = secrets_client()
    client.create_secret(Name=SECRET, SecretString=NO_KEYS_TEXT)
    editor = TokenKeySecretEditor(SECRET, client)
    assert editor.read() is None
    rotate(editor, CLOCK, LIFE_S)
    gone, kept = rotate(editor, CLOCK, LIFE_S).keys
    keys = revoke(editor, gone.key_id, CLOCK)
    # The emulator's default is the first version; that of AWS is the current one.
    current = client.get_secret_value(SecretId=SECRET, VersionStage="AWSCURRENT")["SecretString"]
    assert parse_token_keys(current) == keys
    assert [key.key_id for key in keys.keys] == [kept.key_id]
