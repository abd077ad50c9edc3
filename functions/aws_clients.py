"""Clients of the services of AWS that single functions call: KMS, Secrets Manager, EC2 and load balancing."""

from __future__ import annotations

from typing import Any, Final

from botocore.config import Config

from functions import wiring

CONNECT_TIMEOUT_S: Final = 2
READ_TIMEOUT_S: Final = 5
ATTEMPTS_MAX: Final = 3


def aws_client(service: str) -> Any:
    """A client of the Region of the function, which gives a request up after some seconds."""
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
    )
    session: Any = wiring.aws_session()
    return session.create_client(service, config=config)
