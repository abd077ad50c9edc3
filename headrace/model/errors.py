"""The error tree of Headrace. The class of an error tells the caller what to do next.

The HTTP API and the wire protocol each map the classes to replies in one table.

HeadraceError
├── InvalidRequestError        the request is invalid: correct it
├── UnauthorizedError          the caller is unknown or has no permission
├── NotFoundError              the named thing does not exist
├── AlreadyExistsError         the thing to create exists already
├── IllegalStateError          the thing exists, its state does not allow this
│   ├── SealedError            it accepts no writes: ask for successors
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
from typing import Any, ClassVar, Final, Literal

Retry = Literal["never", "now", "later", "elsewhere"]


class HeadraceError(Exception):
    """The base class of every error that Headrace raises on purpose.

    `code` is stable and for programs. The message is for people: it says what is wrong and what to do. `details` has
    plain values (names, offsets, limits). `retry` says whether and when a repetition can succeed.
    """

    code: ClassVar[str] = "internal"
    retry: ClassVar[Retry] = "never"

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


class UnauthorizedError(HeadraceError):
    """The caller is not known or does not have the permission."""

    code = "unauthorized"


class NotFoundError(HeadraceError):
    """The scope, stream, segment, epoch or chunk does not exist."""

    code = "not_found"


class AlreadyExistsError(HeadraceError):
    """The scope, stream, segment or other thing to be created exists already."""

    code = "already_exists"


class IllegalStateError(HeadraceError):
    """The thing exists but its state does not allow the operation."""

    code = "illegal_state"


class SealedError(IllegalStateError):
    """The segment or stream is sealed: it accepts no more writes."""

    code = "sealed"


class TruncatedError(IllegalStateError):
    """The requested bytes are before the truncation point."""

    code = "truncated"


class ConflictError(HeadraceError):
    """A conditional write failed, since another client has changed the record."""

    code = "conflict"
    retry = "now"


class FencedError(HeadraceError):
    """A newer owner has replaced this owner of a container."""

    code = "fenced"
    retry = "elsewhere"


class ThrottledError(HeadraceError):
    """A limit on rate or memory was reached."""

    code = "throttled"
    retry = "later"


class UnavailableError(HeadraceError):
    """A service does not answer. The outcome of the request may be unknown."""

    code = "unavailable"
    retry = "later"


class OutOfTimeError(UnavailableError):
    """The deadline passed before the work was done. Completed steps are kept, and a repetition continues after them."""

    code = "out_of_time"


class CorruptError(HeadraceError):
    """Stored or received bytes are invalid."""

    code = "corrupt"


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
