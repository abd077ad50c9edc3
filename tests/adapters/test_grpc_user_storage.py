"""Users of the bridge in a file and in a secret."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.stub import ANY, Stubber
from secrets_in_memory import SECRET, SecretsInMemory

from headrace.adapters.grpc_user_storage import NOT_STORED, GrpcUserFile, GrpcUserSecret
from headrace.model.errors import ConflictError, HeadraceError, IllegalStateError, NotFoundError, UnavailableError
from headrace.ports.grpc_user_storage import NOT_ALLOWED, GrpcUserStorage

ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:users-AbCdEf"


def test_a_file_is_replaced_as_a_whole_and_private(tmp_path: Path):
    storage = GrpcUserFile(tmp_path / "users.json")
    with pytest.raises(NotFoundError) as missing:
        storage.read()
    assert missing.value.specific_code == NOT_STORED
    storage.write("first")
    with (tmp_path / "users.json").open() as reader:
        storage.write("sécond")
        assert reader.read() == "first"
    assert storage.read() == "sécond"
    assert stat.S_IMODE((tmp_path / "users.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["users.json"]


def test_what_is_wrong_with_a_file_is_told(tmp_path: Path):
    with pytest.raises(IllegalStateError, match="cannot be read: Is a directory"):
        GrpcUserFile(tmp_path).read()
    with pytest.raises(IllegalStateError, match="cannot be written: No such file"):
        GrpcUserFile(tmp_path / "none" / "users.json").write("text")
    (tmp_path / "binary").write_bytes(b"\xff secret")
    with pytest.raises(IllegalStateError, match="not UTF-8") as refused:
        GrpcUserFile(tmp_path / "binary").read()
    assert refused.value.__cause__ is None


def _two_writers(first: GrpcUserStorage, second: GrpcUserStorage) -> None:
    """Two commands at the same time, of which one revokes a grant: the other must not bring it back."""
    for storage in (first, second):
        with contextlib.suppress(NotFoundError):
            storage.read()
    first.write("of the first")
    first.write("revoked")
    with pytest.raises(ConflictError, match="try again"):
        second.write("of the second")
    assert first.read() == second.read() == "revoked"
    second.write("both")
    assert first.read() == "both"


@pytest.mark.parametrize("before", [None, "before"])
def test_of_two_writers_of_a_file_the_later_one_is_told(tmp_path: Path, before: str | None):
    path = tmp_path / "users.json"
    if before is not None:
        path.write_text(before)
    _two_writers(GrpcUserFile(path), GrpcUserFile(path))


@pytest.mark.parametrize("before", [None, "before"])
def test_of_two_writers_of_a_secret_the_later_one_is_told(before: str | None):
    secrets = SecretsInMemory(before)
    _two_writers(GrpcUserSecret(SECRET, secrets), GrpcUserSecret(SECRET, secrets))


def _stubbed() -> tuple[Any, Stubber]:
    client = botocore.session.get_session().create_client("secretsmanager", region_name="eu-west-1")
    return client, Stubber(client)


def test_a_secret_is_read_and_written():
    client, stub = _stubbed()
    stub.add_response("get_secret_value", {"ARN": ARN, "SecretString": "first", "VersionId": "0" * 32})
    stub.add_response("put_secret_value", {"ARN": ARN})
    stub.add_response("update_secret_version_stage", {"ARN": ARN})
    with stub:
        storage = GrpcUserSecret("users", client)
        assert storage.read() == "first"
        storage.write("second")
    stub.assert_no_pending_responses()


def test_the_first_users_create_the_secret():
    client, stub = _stubbed()
    stub.add_client_error("put_secret_value", "ResourceNotFoundException", http_status_code=400)
    stub.add_response(
        "create_secret", {"ARN": ARN}, {"Name": "users", "ClientRequestToken": ANY, "SecretString": "first"}
    )
    with stub:
        GrpcUserSecret("users", client).write("first")
    stub.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ResourceNotFoundException", 400, NotFoundError),
        ("AccessDeniedException", 400, IllegalStateError),
        ("InternalServiceError", 500, UnavailableError),
    ],
)
def test_errors_of_secrets_manager_are_classified(code: str, status: int, kind: type[HeadraceError]):
    client, stub = _stubbed()
    stub.add_client_error("get_secret_value", code, http_status_code=status)
    with stub, pytest.raises(kind, match="users") as raised:
        GrpcUserSecret("users", client).read()
    assert (raised.value.specific_code == NOT_ALLOWED) == (code == "AccessDeniedException")


def test_a_secret_of_bytes_is_refused():
    client, stub = _stubbed()
    stub.add_response("get_secret_value", {"ARN": ARN, "SecretBinary": b"x"}, {"SecretId": "users"})
    with stub, pytest.raises(IllegalStateError, match="no text"):
        GrpcUserSecret("users", client).read()
