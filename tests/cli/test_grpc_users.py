"""`headrace grpc-user` on a file, as an operator uses it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from command_line import Ran, Run

from headrace.adapters.grpc_user_storage import GrpcUserFile
from headrace.codec.grpc_users import parse_users

PASSWORD = "correct horse"


class Desk:
    def __init__(self, run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.path, self.monkeypatch = run, path, monkeypatch

    def __call__(self, *arguments: str, standard_input: str = "") -> Ran:
        self.monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(standard_input.encode())))
        return self.run("grpc-user", *arguments, "--file", str(self.path))

    def add(self, name: str = "ann", password: str = PASSWORD, *more: str) -> Ran:
        return self("add", name, *more, standard_input=f"{password}\n")


@pytest.fixture
def desk(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(run, tmp_path / "users.json", monkeypatch)


def test_a_user_is_added_granted_revoked_and_removed(desk: Desk):
    assert desk.add().out == "user ann is added\n"
    assert desk("grant", "ann", "prn::/scope:shop", "read").out == "user ann has READ on prn::/scope:shop\n"
    assert desk("grant", "ann", "prn::/scope:shop/*", "READ_UPDATE").code == 0
    desk.add("bob")
    assert desk("list", "--json").document == {
        "users": [
            {
                "user": "ann",
                "grants": [
                    {"resource": "prn::/scope:shop", "permission": "READ"},
                    {"resource": "prn::/scope:shop/*", "permission": "READ_UPDATE"},
                ],
            },
            {"user": "bob", "grants": []},
        ]
    }
    assert [line.split() for line in desk("list").out.splitlines()] == [
        ["USER", "RESOURCE", "PERMISSION"],
        ["ann", "prn::/scope:shop", "READ"],
        ["ann", "prn::/scope:shop/*", "READ_UPDATE"],
        ["bob", "-", "-"],
    ]
    assert desk("revoke", "ann", "prn::/scope:shop").code == 0
    assert desk("remove", "bob").code == 0
    assert [len(user["grants"]) for user in desk("list", "--json").document["users"]] == [1]


def test_only_a_hash_of_the_password_is_kept(desk: Desk):
    ran = desk.add()
    text = desk.path.read_text()
    assert PASSWORD not in text + ran.out + ran.err
    assert json.loads(text)["users"]["ann"]["hash"].startswith("scrypt$16384$8$1$")
    assert parse_users(GrpcUserFile(desk.path).read()).named("ann").password.is_of(PASSWORD.encode())


def test_another_password_keeps_the_grants(desk: Desk):
    desk.add()
    desk("grant", "ann", "prn::/*", "READ")
    assert desk.add("ann", "another one", "--change-password").out == "user ann has another password\n"
    user = parse_users(desk.path.read_text()).named("ann")
    assert user.password.is_of(b"another one")
    assert len(user.grants) == 1


@pytest.mark.parametrize("ending", ["\r\n", "\n", ""])
def test_the_end_of_the_line_is_not_of_the_password(desk: Desk, ending: str):
    assert desk("add", "ann", standard_input=f"{PASSWORD}{ending}").code == 0
    assert parse_users(desk.path.read_text()).named("ann").password.is_of(PASSWORD.encode())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("add", "ann"), 4, "--change-password"),
        (("add", "bob", "--change-password"), 3, "headrace grpc-user list"),
        (("add", "b:b"), 2, "a user name has"),
        (("add", "bob"), 1, "one line of 8 to 1024 bytes"),
        (("grant", "bob", "prn::/", "READ"), 3, "headrace grpc-user list"),
        (("grant", "ann", "shop", "READ"), 2, "is not a resource"),
        (("grant", "ann", "prn::/", "ADMIN"), 2, "READ, READ_UPDATE"),
        (("revoke", "ann", "prn::/"), 3, "no grant"),
        (("remove", "bob"), 3, "no user"),
        (("list", "--secret", "id"), 2, "exclude each other"),
    ],
)
def test_what_is_refused_changes_nothing(desk: Desk, arguments: tuple[str, ...], code: int, message: str):
    desk.add()
    before = desk.path.read_text()
    ran = desk(*arguments, standard_input="short\n")
    assert ran.code == code
    assert message in " ".join(ran.err.split())
    assert desk.path.read_text() == before


def test_too_long_password_is_not_cut(desk: Desk):
    assert desk.add("ann", "x" * 1024).code == 0
    assert desk.add("bob", "x" * 1025).code == 1
    assert desk.add("bob", "x" * 5000).code == 1


def test_file_is_named_by_the_environment_too(desk: Desk, run: Run, monkeypatch: pytest.MonkeyPatch):
    desk.add()
    assert run("grpc-user", "list").code == 2
    monkeypatch.setenv("HEADRACE_GRPC_USERS_FILE", str(desk.path))
    assert "ann" in run("grpc-user", "list").out


def test_missing_or_damaged_file_is_told(desk: Desk):
    ran = desk("list")
    assert (ran.code, "no file" in ran.err) == (3, True)
    desk.path.write_text("{}")
    ran = desk("list")
    assert (ran.code, "not the JSON text" in ran.err) == (1, True)
