"""Keys are changed where they are stored: no change is lost, and only the owner can read them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from secrets_in_memory import SECRET, SecretsInMemory

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_key_editors import (
    ATTEMPTS_MAX,
    TokenKeyEditor,
    TokenKeyFileEditor,
    TokenKeySecretEditor,
    revoke,
    rotate,
)
from headrace.adapters.token_key_secret import secrets_client
from headrace.adapters.token_keys import TokenKeyFile
from headrace.codec.delegation_tokens import NO_KEYS_TEXT, parse_token_keys, stored_keys
from headrace.model.errors import (
    ConflictError,
    CorruptError,
    HeadraceError,
    IllegalStateError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
)

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
    found = editor.read()
    assert found is not None
    assert [key.key_id for key in found.keys] == [kept.key_id]
    with pytest.raises(NotFoundError):
        revoke(editor, gone.key_id, CLOCK)


def test_rotations_at_the_same_time_all_count(editor: TokenKeyEditor):
    rotate(editor, CLOCK, LIFE_S)
    threads = [threading.Thread(target=rotate, args=(editor, CLOCK, LIFE_S)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = editor.read()
    assert found is not None
    assert len(found.keys) == 5


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
    assert secrets.calls.count("update_secret_version_stage") == ATTEMPTS_MAX
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
