"""The error tree of Headrace. The class of an error tells the caller what to do next.

Each class says itself how the interfaces report it (`reported_as`). The replies of the wire protocol have fields of
their own, so they are in the table of `headrace/wire/error_table.py`. An error without a row has that of its parent.

HeadraceError
├── InvalidRequestError        the request is invalid: correct it
├── UnauthorizedError          the caller is unknown or has no permission
├── NotFoundError              the named thing does not exist
├── AlreadyExistsError         the thing to create exists already
├── IllegalStateError          the thing exists, its state does not allow this
│   ├── SealedError            it accepts no writes: ask for successors
│   ├── FrozenError            it accepts no writes until it is unfrozen: unfreeze it
│   └── TruncatedError         the bytes were truncated: read from the head
├── ConflictError              another client was faster: read again, retry at once
├── FencedError                a newer owner has taken over: look it up
├── ThrottledError             a limit was reached: retry later
├── UnavailableError           a service does not answer: retry later
│   └── OutOfTimeError         the deadline of the call has passed: repeat it
└── CorruptError               stored or received bytes are invalid: an operator must act
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

__all__ = [
    "AlreadyExistsError",
    "ConflictError",
    "CorruptError",
    "FencedError",
    "FrozenError",
    "HeadraceError",
    "IllegalStateError",
    "InvalidRequestError",
    "NotFoundError",
    "OutOfTimeError",
    "SealedError",
    "ThrottledError",
    "TruncatedError",
    "UnauthorizedError",
    "UnavailableError",
]
"""The classes of the tree. `headrace.client` exports them to users."""

Retry = Literal["never", "now", "later", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Reported:
    """How the interfaces report the errors of a class; a subclass without one is reported as its parent.

    Users' programs act on all of them, so they never change.
    """

    http_status: int
    """Of the HTTP API. With 500 the message and the details stay in the service's log."""
    grpc_status: str
    """Of a call to the bridge, by its name in grpc.StatusCode. Clients repeat calls after FAILED_PRECONDITION, so only
    errors that a repetition can solve have it."""
    exit_code: int
    """Of a command; `ExitCode` in headrace/cli/outcome.py names them."""


class HeadraceError(Exception):
    """The base class of every error that Headrace raises on purpose.

    `code` is stable and for programs. The message is for people: it says what is wrong and what to do. `details` has
    plain values (names, offsets, limits). `retry` says whether and when a repetition can succeed.
    `reported_as` is for the interfaces.
    """

    code: ClassVar[str] = "internal"
    retry: ClassVar[Retry] = "never"
    reported_as: ClassVar[Reported] = Reported(500, "INTERNAL", exit_code=1)

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        self.specific_code = code or self.code

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details, self.specific_code))


def _rebuild(kind: type[HeadraceError], message: str, details: dict[str, Any], code: str) -> HeadraceError:
    return kind(message, details=details, code=code)


class InvalidRequestError(HeadraceError):
    """The request cannot succeed without a change."""

    code = "invalid_request"
    reported_as = Reported(400, "INVALID_ARGUMENT", exit_code=1)


class UnauthorizedError(HeadraceError):
    """The caller is not known or does not have the permission."""

    code = "unauthorized"
    reported_as = Reported(403, "PERMISSION_DENIED", exit_code=1)


class NotFoundError(HeadraceError):
    """The scope, stream, segment, epoch or chunk does not exist."""

    code = "not_found"
    reported_as = Reported(404, "NOT_FOUND", exit_code=3)


class AlreadyExistsError(HeadraceError):
    """The scope, stream, segment or other thing to be created exists already."""

    code = "already_exists"
    reported_as = Reported(409, "ALREADY_EXISTS", exit_code=4)


class IllegalStateError(HeadraceError):
    """The thing exists but its state does not allow the operation."""

    code = "illegal_state"
    reported_as = Reported(412, "OUT_OF_RANGE", exit_code=1)


class SealedError(IllegalStateError):
    """The segment or stream is sealed: it accepts no more writes."""

    code = "sealed"
    reported_as = Reported(412, "OUT_OF_RANGE", exit_code=1)


class FrozenError(IllegalStateError):
    """The stream is frozen: it accepts writes again after an operator has unfrozen it."""

    code = "frozen"
    reported_as = Reported(412, "UNAVAILABLE", exit_code=1)  # Pravega's clients wait, and have no call to unfreeze it


class TruncatedError(IllegalStateError):
    """The requested bytes are before the truncation point."""

    code = "truncated"
    reported_as = Reported(410, "OUT_OF_RANGE", exit_code=1)


class ConflictError(HeadraceError):
    """A conditional write failed, since another client has changed the record."""

    code = "conflict"
    retry = "now"
    reported_as = Reported(409, "FAILED_PRECONDITION", exit_code=4)


class FencedError(HeadraceError):
    """A newer owner has replaced this owner of a container."""

    code = "fenced"
    retry = "elsewhere"
    reported_as = Reported(421, "UNAVAILABLE", exit_code=5)


class ThrottledError(HeadraceError):
    """A limit on rate or memory was reached."""

    code = "throttled"
    retry = "later"
    reported_as = Reported(429, "RESOURCE_EXHAUSTED", exit_code=5)


class UnavailableError(HeadraceError):
    """A service does not answer. The outcome of the request may be unknown."""

    code = "unavailable"
    retry = "later"
    reported_as = Reported(503, "UNAVAILABLE", exit_code=5)


class OutOfTimeError(UnavailableError):
    """The deadline passed before the work was done. Completed steps are kept, and a repetition continues after them."""

    code = "out_of_time"
    reported_as = Reported(503, "UNAVAILABLE", exit_code=6)


class CorruptError(HeadraceError):
    """Stored or received bytes are invalid."""

    code = "corrupt"
    reported_as = Reported(500, "INTERNAL", exit_code=1)


def error_classes() -> dict[str, type[HeadraceError]]:
    """Every class of the tree by its stable `code`.

    A subclass without its own code is not listed; the code of its base class represents it. Ports define such
    subclasses to give their callers more information.
    """
    classes: dict[str, type[HeadraceError]] = {}
    waiting: list[type[HeadraceError]] = [HeadraceError]
    while waiting:
        kind = waiting.pop()
        if "code" in vars(kind):
            classes[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return classes


def class_of_status(status: int) -> type[HeadraceError]:
    """The class that an HTTP status tells without a code: the most general one that is reported with it.

    HeadraceError if no class or several unrelated ones are.
    """
    reported = [kind for kind in error_classes().values() if kind.reported_as.http_status == status]
    general = [kind for kind in reported if not any(issubclass(kind, other) for other in reported if other is not kind)]
    return general[0] if len(general) == 1 else HeadraceError


SOURCE_INCOMPLETE: Final = "source_incomplete"
SEGMENT_QUARANTINED: Final = "segment_quarantined"


def source_incomplete(source: str) -> IllegalStateError:
    """The error for a merge of a segment whose log was lost with its volume: acknowledged bytes may be missing."""
    return IllegalStateError(
        f"segment {source} may lack bytes that were acknowledged: their log was lost with its volume; abort the "
        "transaction and write its events again",
        details={"segment": source},
        code=SOURCE_INCOMPLETE,
    )


def segment_quarantined(segment: str) -> IllegalStateError:
    """The error for bytes of a segment that tier 2 refuses for good: it accepts no more of them."""
    return IllegalStateError(
        f"segment {segment} is in quarantine, since its data cannot be stored in tier 2: it can be read and deleted, "
        "but accepts no more bytes",
        details={"segment": segment},
        code=SEGMENT_QUARANTINED,
    )
