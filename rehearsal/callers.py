"""Clients of the deployment with the credentials of IAM users."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from headrace.client import Headrace, connect
from rehearsal.paths import SCRATCH

RETRY_S: Final = 300.0
"""First calls take long on a busy machine: the emulator unpacks the bundle for each function."""
CALLERS: Final = SCRATCH / "callers.json"


def save(url: str, keys: Mapping[str, tuple[str, str]]) -> None:
    """Store the URL of the API, and key and secret of each user, for the programs of this rehearsal."""
    CALLERS.touch(mode=0o600)
    CALLERS.write_text(json.dumps({"url": url, "keys": keys}))


def api_url() -> str:
    """The URL of the deployed API."""
    return str(json.loads(CALLERS.read_text())["url"])


def variables_of(user: str) -> dict[str, str]:
    """The variables with the credentials of a user."""
    key, secret = json.loads(CALLERS.read_text())["keys"][user]
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}


@contextmanager
def caller(user: str, zone: str | None = None) -> Iterator[Headrace]:
    """A client with the credentials of a user, in a zone. They are read when the client is made."""
    os.environ.update(variables_of(user))
    with connect(api_url(), auth="aws-iam", retry_s=RETRY_S, zone=zone) as headrace:
        yield headrace
