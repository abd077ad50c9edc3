"""The custom resource behind the secret with the keys for delegation tokens: it is done when a key signs.

All stacks that send tokens or demand them are deployed later. So a rotation that does not work ends the deployment
before functions and segment stores change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from functions import wiring
from functions.deployment.custom_resources import ResourceRequest, wait_and_report
from functions.observability import logger
from headrace.adapters.token_keys import token_key_source
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

POLL_S: Final = 5.0
PATIENCE_MS: Final = 4 * 60_000
"""The first rotation takes some seconds. Secrets Manager repeats one that failed within minutes."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: LambdaContext) -> dict[str, str]:
    """Handle one request of CloudFormation; return what became of it.

    Raises:
        InvalidRequestError: this is not such a request, so a retry cannot succeed.
        OSError: the report did not reach CloudFormation; Lambda retries the event.
    """
    request = ResourceRequest.from_event(event)
    return wait_and_report(
        request,
        find_problems if request.kind != "Delete" else list,
        context,
        done="a key signs",
        patience_ms=PATIENCE_MS,
        poll_s=POLL_S,
    )


def find_problems() -> list[str]:
    """Say why no token can be signed now; nothing if one can."""
    try:
        source = token_key_source(os.environ, wiring.clock())
        if source is None:
            return ["this deployment has no delegation tokens"]
        source.keys().signing_key(wiring.clock().now_ms() / 1_000)
    except HeadraceError as error:
        return [f"no key signs delegation tokens: {error.message}; see the log group /aws/lambda/headrace-token-keys"]
    return []
