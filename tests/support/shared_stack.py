"""The local stack that many tests share: plain, or secure if HEADRACE_TEST_STACK is `secure`.

The secure one demands TLS and tokens, as `headrace up --secure` does. Clients of Headrace need no setting for it.
Pravega's own clients need the authority's certificate and a user: `foreign_environment` has them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headrace.adapters.grpc_user_storage import GrpcUserFile
from headrace.client import connect
from headrace.codec.grpc_users import Grant, PasswordHash, User, Users, users_text
from headrace.local.running import running_stack
from headrace.model.access import Access

VARIABLE: Final = "HEADRACE_TEST_STACK"
IS_SECURE: Final = os.environ.get(VARIABLE, "") == "secure"
CA_FILE: Final = "ca.pem"
_USER, _PASSWORD = "tests", "correct horse"


@contextmanager
def shared_stack(
    directory: Path, *, segment_stores: int, grpc: bool = False, **options: Any
) -> Iterator[dict[str, Any]]:
    """As `running_stack`, whose other options it has; the secure stack has a user for Pravega's clients."""
    if not IS_SECURE:
        with running_stack(directory, segment_stores=segment_stores, grpc=grpc, **options) as state:
            yield state
        return
    users = directory / "data" / "grpc-users.json"
    users.parent.mkdir(parents=True, exist_ok=True)
    password = PasswordHash.of(_PASSWORD.encode(), b"0123456789abcdef")
    user = User(_USER, password, (Grant("prn::/*", Access.READ_UPDATE),))
    GrpcUserFile(users).write(users_text(Users({_USER: user})))
    with running_stack(directory, segment_stores=segment_stores, grpc=grpc, secure=True, **options) as state:
        with connect(state["endpoints"]["http"]) as headrace:
            (directory / CA_FILE).write_text(headrace.admin.trust.authorities().pem)
        yield state


def foreign_environment(directory: Path) -> dict[str, str]:
    """The variables of Pravega's Java and Rust clients for the stack in `directory`; none for a plain one."""
    if not IS_SECURE:
        return {}
    authority = str(directory / CA_FILE)
    return {
        "pravega_client_auth_method": "Basic",
        "pravega_client_auth_username": _USER,
        "pravega_client_auth_password": _PASSWORD,
        "pravega_client_auth_token": base64.b64encode(f"{_USER}:{_PASSWORD}".encode()).decode("ascii"),
        "pravega_client_tls_cert_path": authority,
        "HEADRACE_TRUST_STORE": authority,
    }
