"""Starts Lambda functions of this account without waiting for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from headrace.model.errors import UnavailableError

if TYPE_CHECKING:
    from botocore.session import Session


def start_function(session: Session, name: str, event: Mapping[str, Any]) -> None:
    """Start a call of the function `name`; Lambda queues the event.

    Raises:
        UnavailableError: Lambda did not take the event.
    """
    client: Any = session.create_client("lambda")
    try:
        client.invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(event).encode())
    except (BotoCoreError, ClientError) as error:
        raise UnavailableError(f"the function {name} was not started: {error}") from error
