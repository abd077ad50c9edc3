"""The keys of a local stack: made once, for its owner only, and named to every part of the stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.adapters.memory.manual_clock import ManualClock
from headrace.adapters.token_keys import token_key_source, token_life_s
from headrace.bridge.config import UsersConfig, read_config
from headrace.local.failures import EXIT_USAGE, LocalStackError
from headrace.local.tokens import LocalTokens, local_tokens

CLOCK = ManualClock()
OF_A_SHELL = {
    "HEADRACE_TOKENS": "required",
    "HEADRACE_TOKEN_KEYS_SECRET": "of-the-shell",
    "HEADRACE_GRPC_USERS_SECRET": "of-the-shell",
}
OF_A_BRIDGE = {"HEADRACE_METADATA_TABLE": "t"} | {
    f"HEADRACE_{queue}_QUEUE_URL": "http://127.0.0.1/q" for queue in ("REQUESTS", "TABLES", "COMMITS", "ABORTS")
}


def test_the_first_start_makes_a_key_that_stays(tmp_path: Path):
    first = local_tokens(tmp_path, CLOCK, wanted=True)
    source = token_key_source(OF_A_SHELL | first.environment, CLOCK)
    assert source is not None
    keys = source.keys()
    assert keys.signing_key(CLOCK.now_ms() / 1_000) == keys.keys[0]
    assert (tmp_path / "token-keys.json").stat().st_mode & 0o777 == 0o600
    off = local_tokens(tmp_path, CLOCK, wanted=False).environment
    assert (off["HEADRACE_TOKENS"], off.keys()) == ("off", first.environment.keys()), "a change leaves none behind"
    again = token_key_source(local_tokens(tmp_path, CLOCK, wanted=True).environment, CLOCK)
    assert again is not None
    assert again.keys() == keys
    assert token_life_s(first.environment) == 600


def test_the_bridge_takes_the_users_of_the_stack(tmp_path: Path):
    tokens = local_tokens(tmp_path, CLOCK, wanted=True)
    config = read_config(OF_A_BRIDGE | OF_A_SHELL | tokens.environment)
    assert config.users == UsersConfig(str(tmp_path / "grpc-users.json"), "")


def test_a_stack_without_tokens_makes_no_keys(tmp_path: Path):
    tokens = local_tokens(tmp_path, CLOCK, wanted=False)
    assert token_key_source(OF_A_SHELL | tokens.environment, CLOCK) is None
    assert (tokens.line, tokens.note) == ("off", "")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_directory_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    tokens = local_tokens(Path(), CLOCK, wanted=True)
    assert tokens.environment["HEADRACE_TOKEN_KEYS_FILE"] == str(tmp_path / "token-keys.json")
    assert tokens.environment["HEADRACE_GRPC_USERS_FILE"] == str(tmp_path / "grpc-users.json")


def test_the_output_tells_what_is_so(tmp_path: Path):
    tokens = local_tokens(tmp_path, CLOCK, wanted=True)
    assert tokens.line == f"required (keys {tmp_path}/token-keys.json)"
    assert f"no users in {tmp_path}/grpc-users.json" in tokens.note
    (tmp_path / "grpc-users.json").touch()
    assert tokens.note == ""
    assert LocalTokens(None).line == "off"


@pytest.mark.parametrize(("text", "mode", "words"), [("x", 0o600, "not the JSON"), ("x", 0o644, "set its mode to 600")])
def test_keys_that_cannot_be_used_are_not_replaced(tmp_path: Path, text: str, mode: int, words: str):
    path = tmp_path / "token-keys.json"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(LocalStackError, match=words) as raised:
        local_tokens(tmp_path, CLOCK, wanted=True)
    assert raised.value.exit_code == EXIT_USAGE
    assert path.read_text() == text
