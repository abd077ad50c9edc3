"""`headrace token-key`: keys are added and revoked, and their secrets are never printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import NoRegionError
from command_line import ReadJson, Run, Show
from secrets_in_memory import SECRET, SecretsInMemory

from headrace.adapters import token_keys
from headrace.codec.delegation_tokens import NO_KEYS_TEXT, parse_token_keys


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> SecretsInMemory:
    """The secret of a new deployment."""
    made = SecretsInMemory(NO_KEYS_TEXT)
    monkeypatch.setattr(token_keys, "secrets_client", lambda: made)
    return made


@pytest.fixture(params=["file", "secret"])
def place(request: pytest.FixtureRequest, tmp_path: Path, secrets: SecretsInMemory) -> tuple[str, str]:
    """The option that names where the keys are."""
    return ("--file", str(tmp_path / "keys.json")) if request.param == "file" else ("--secret", SECRET)


def test_keys_are_rotated_listed_and_revoked(as_json: ReadJson, ok: Show, place: tuple[str, str]):
    first = as_json("token-key", "rotate", *place)
    assert first["newKey"] == first["keys"][0]["kid"]
    assert [key["state"] for key in first["keys"]] == ["signs"]
    second = as_json("token-key", "rotate", *place)
    assert [(key["kid"], key["state"]) for key in second["keys"]] == [
        (first["newKey"], "signs"),
        (second["newKey"], "waits"),
    ]
    header, signing, waiting = ok("token-key", "list", *place).splitlines()
    assert header.split("  ")[0] == "KEY"
    assert signing.split()[:2] == [first["newKey"], "signs"]
    assert waiting.split()[:2] == [second["newKey"], "waits"]
    revoked = as_json("token-key", "revoke", first["newKey"], *place)
    assert [(key["kid"], key["state"]) for key in revoked["keys"]] == [(second["newKey"], "signs")]


def test_no_secret_is_ever_printed(run: Run, tmp_path: Path):
    path = tmp_path / "keys.json"
    place, shown, secrets = ("--file", str(path)), "", set()
    for arguments in (("rotate",), ("rotate", "--json"), ("list",), ("list", "--json"), ("revoke", "none")):
        ran = run("token-key", *arguments, *place)
        shown += ran.out + ran.err
        secrets |= {key.secret for key in parse_token_keys(path.read_text()).keys}
    path.write_text(path.read_text().replace("signFrom", "signsFrom"))
    broken = run("token-key", "list", *place)
    assert broken.code == 1
    shown += broken.out + broken.err
    for secret in secrets:
        assert secret.hex() not in shown
        assert repr(secret)[2:12] not in shown


def test_a_missing_secret_is_not_found(run: Run, secrets: SecretsInMemory):
    ran = run("token-key", "list", "--secret", "elsewhere")
    assert (ran.code, ran.out) == (3, "")
    assert "there is no secret elsewhere" in ran.err


def test_a_missing_region_is_named(run: Run, monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise NoRegionError

    monkeypatch.setattr(token_keys, "secrets_client", fail)
    ran = run("token-key", "rotate", "--secret", SECRET)
    assert (ran.code, ran.out) == (1, "")
    assert "set AWS_REGION" in ran.err
