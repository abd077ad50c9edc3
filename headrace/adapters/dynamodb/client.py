"""The DynamoDB client of the metadata store: short time-outs, and retries that know what a failure means.

botocore cannot distinguish a conditional write that never arrived from one whose answer was lost. Its second attempt of
a write that had succeeded would look like a conflict. So its retries are off, and `Retries` distinguishes three kinds
of failure:

- The request was certainly not applied and may succeed later: throttling, two conflicting transactions, no connection.
- Its effect is unknown: there was no answer, or a 5xx status.
- DynamoDB rejected it, and a retry within the bounds is of no use.

The first two kinds are retried with full jitter, within bounds. The last is raised as `RefusedRequestError`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from botocore import xform_name
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
)
from botocore.exceptions import ConnectionError as AnyConnectionError
from pynamodb.connection.base import Connection, MetaTable
from pynamodb.connection.table import TableConnection
from pynamodb.constants import ALL_OLD
from pynamodb.exceptions import PynamoDBException

from headrace.adapters.aws_refusals import AnswerKind, answer_kind, code_of, status_of
from headrace.model.backoff import doubled_pause, full_jitter
from headrace.model.errors import UnavailableError
from headrace.ports.clock import require_time, time_left_s

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_dynamodb import DynamoDBClient


# pynamodb's connection to one table, through a botocore client of the caller.
#
# By default pynamodb creates its own clients, with its own time-outs and retries. With this connection it never does:
# the settings and credentials come from `dynamodb_client`, the retries from `Retries`.


class ClientConnection(Connection):
    """Sends pynamodb's requests through `client`; as safe for many threads as the client is."""

    def __init__(self, client: DynamoDBClient) -> None:
        super().__init__()
        self._given_client: Any = client

    @property
    def client(self) -> Any:
        return self._given_client

    def dispatch(self, operation_name: str, operation_kwargs: dict[str, Any]) -> Any:
        """Send a request; botocore's error propagates unchanged.

        pynamodb's own method requests the consumed capacity in each answer, writes whole items to the debug log, and
        raises errors without the HTTP status and the item that was found.
        """
        return getattr(self._given_client, xform_name(operation_name))(**operation_kwargs)

    def get_operation_kwargs(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """As pynamodb's method, but the error of a failed condition will contain the item that was found.

        pynamodb has a parameter for this only for some of the writes of a transaction.
        """
        if options.get("condition") is not None:
            options["return_values_on_condition_failure"] = ALL_OLD
        return super().get_operation_kwargs(*arguments, **options)


class ClientTableConnection(TableConnection):
    """A `ClientConnection` for one table."""

    def __init__(self, meta_table: MetaTable, client: DynamoDBClient) -> None:  # its parent would make a connection
        self.table_name = meta_table.table_name
        self.connection = ClientConnection(client)
        self.connection.add_meta_table(meta_table)


CONNECT_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 5.0
CONNECTIONS_MAX_DEFAULT = 32


def dynamodb_client(
    session: Session | None = None, *, connections_max: int = CONNECTIONS_MAX_DEFAULT
) -> DynamoDBClient:
    """A client for the region, credentials and endpoint of the standard AWS_* variables; safe for many threads.

    Clients of the same session share its loaded service models. botocore is imported here and not with the module, so
    that the import of wiring code stays cheap until a client is needed. boto3's resource layer is never imported.
    """
    import botocore.session
    from botocore.config import Config

    config = Config(
        region_name=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=connections_max,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
    )
    session = session or botocore.session.get_session()
    client: DynamoDBClient = session.create_client("dynamodb", config=config)  # type: ignore[assignment]
    return client


ATTEMPTS_MAX = 9
BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 1.0
RETRIES_END_AFTER_S = 12.0
"""No attempt starts later than this after the first one, and none after the deadline (`ports.deadlines`)."""

CONDITION_FAILED = "ConditionalCheckFailedException"
TRANSACTION_CANCELED = "TransactionCanceledException"
CONDITION_FAILED_REASON = "ConditionalCheckFailed"

_CLASHES = frozenset({"TransactionConflictException", "TransactionInProgressException"})
_NOT_APPLIED_REASONS = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})
_NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError)

T = TypeVar("T")


class RefusedRequestError(Exception):
    """DynamoDB rejected a request; `is_of_item` says whether it would reject it for ever.

    `maybe_applied` is true if an earlier attempt of the same request got no answer and may have taken effect.
    """

    def __init__(self, response: Mapping[str, Any], *, maybe_applied: bool) -> None:
        error = response.get("Error", {})
        super().__init__(f"{error.get('Code')}: {error.get('Message')}")
        self.code = str(error.get("Code", "")).rpartition("#")[2]
        self.response = response
        self.maybe_applied = maybe_applied

    @property
    def is_of_item(self) -> bool:
        """Whether an item of the request is invalid or too large, so that a repetition cannot succeed."""
        codes = [self.code, *(str(reason.get("Code", "")) for reason in self.reasons)]
        return any(answer_kind(code) is AnswerKind.ITEM for code in codes)

    @property
    def reasons(self) -> list[Mapping[str, Any]]:
        """One entry per write of a cancelled transaction, in order; empty for every other error."""
        return list(self.response.get("CancellationReasons", ()))


@dataclass(frozen=True, slots=True)
class Retries:
    """The bounds of retries. Tests replace `sleep`, `monotonic_s` and `jitter` (uniform in [0, 1))."""

    attempts_max: int = ATTEMPTS_MAX
    backoff_first_s: float = BACKOFF_FIRST_S
    backoff_max_s: float = BACKOFF_MAX_S
    end_after_s: float = RETRIES_END_AFTER_S
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random

    def pause(self, failures: int) -> None:
        """Wait after the `failures`-th failure: a uniform random time up to a bound that grows exponentially."""
        pause_s = doubled_pause(failures, self.backoff_first_s, self.backoff_max_s)
        self.sleep(time_left_s(full_jitter(pause_s, self.jitter())))

    def run(self, what: str, request: Callable[[], T], *, is_read: bool = False) -> T:
        """Call `request` until it succeeds, within the bounds; return its answer. `what` names it in error messages.

        `is_read`: it changes nothing.

        Raises:
            RefusedRequestError: DynamoDB rejected the request.
            UnavailableError: all attempts failed; the message tells whether the request may have taken effect.
            OutOfTimeError: the deadline had passed before the first attempt.
        """
        require_time(what)
        started_s = self.monotonic_s()
        maybe_applied = False
        failures = 0
        while True:
            try:
                return _sent(request)
            except ClientError as error:
                unknown = answer_kind(code_of(error), status_of(error)) is AnswerKind.UNAVAILABLE
                if not unknown and not _certainly_not_applied(error):
                    raise RefusedRequestError(error.response, maybe_applied=maybe_applied) from error
                last: Exception = error
            except _NEVER_SENT as error:
                unknown, last = False, error
            except (HTTPClientError, AnyConnectionError) as error:
                unknown, last = True, error
            except BotoCoreError as error:
                raise UnavailableError(f"{what}: cannot send a request to DynamoDB: {error}") from error
            maybe_applied = maybe_applied or (unknown and not is_read)
            failures += 1
            is_late = self.monotonic_s() - started_s >= self.end_after_s or time_left_s() <= 0
            if failures >= self.attempts_max or is_late:
                raise self._unavailable(what, failures, maybe_applied, last) from last
            self.pause(failures)
            if time_left_s() <= 0:
                raise self._unavailable(what, failures, maybe_applied, last) from last

    @staticmethod
    def _unavailable(what: str, failures: int, maybe_applied: bool, last: Exception) -> UnavailableError:
        effect = "it may have taken effect" if maybe_applied else "nothing was changed"
        return UnavailableError(
            f"{what}: DynamoDB did not serve this after {failures} attempts ({last}); {effect}, try again",
            details={"attempts": failures, "maybe_applied": maybe_applied},
        )


def _sent(request: Callable[[], T]) -> T:
    """The answer of `request`. An error of pynamodb that wraps one of botocore is unwrapped."""
    try:
        return request()
    except PynamoDBException as error:
        if error.cause is None:
            raise
        raise error.cause from None


def _certainly_not_applied(error: ClientError) -> bool:
    """Whether the request certainly had no effect and may succeed if it is sent again."""
    code = code_of(error)
    if code != TRANSACTION_CANCELED:
        return code in _CLASHES or answer_kind(code) is AnswerKind.THROTTLED
    reasons = {reason.get("Code") for reason in error.response.get("CancellationReasons", ())}
    return CONDITION_FAILED_REASON not in reasons and bool(reasons & _NOT_APPLIED_REASONS)
