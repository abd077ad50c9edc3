"""The one error tree: it says what a caller can do next. Shells map it to HTTP and wire replies in one table each.

HeadraceError
├── InvalidRequestError        the request itself is wrong: fix it
├── UnauthorizedError          who you are is unknown or may not do this
├── NotFoundError              what you named does not exist
├── AlreadyExistsError         what you want to create is there
├── IllegalStateError          the thing exists, its state forbids this
│   ├── SealedError            no more writes here; ask for successors
│   └── TruncatedError         these bytes are gone; read from the head
├── ConflictError              somebody else was faster: read again and retry at once
├── FencedError                another owner has taken over: stop, ask who it is
├── ThrottledError             too much at once: retry later
├── UnavailableError           this part does not answer: retry, perhaps elsewhere
│   └── OutOfTimeError         the time for this call is over: repeat it
└── CorruptError               stored or received bytes do not check out: a human must look
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

Retry = Literal["never", "now", "later", "elsewhere"]


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose.

    `code` is stable and meant for programs, the message is for people and says what was wrong and what to do,
    `details` holds plain values (names, offsets, limits), `retry` says whether repeating can help.
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
    """The request can never succeed as it is."""

    code = "invalid_request"


class UnauthorizedError(HeadraceError):
    """The caller is not known or may not do this."""

    code = "unauthorized"


class NotFoundError(HeadraceError):
    """The scope, stream, segment, epoch or chunk does not exist."""

    code = "not_found"


class AlreadyExistsError(HeadraceError):
    """What was to be created exists already."""

    code = "already_exists"


class IllegalStateError(HeadraceError):
    """The thing exists but its state does not allow the operation."""

    code = "illegal_state"


class SealedError(IllegalStateError):
    """The segment or stream is sealed: it takes no more writes."""

    code = "sealed"


class TruncatedError(IllegalStateError):
    """The bytes asked for lie before the truncation point."""

    code = "truncated"


class ConflictError(HeadraceError):
    """A conditional write lost against another one."""

    code = "conflict"
    retry = "now"


class FencedError(HeadraceError):
    """This owner of a container was replaced by a newer one."""

    code = "fenced"
    retry = "elsewhere"


class ThrottledError(HeadraceError):
    """A limit on rate or memory was reached."""

    code = "throttled"
    retry = "later"


class UnavailableError(HeadraceError):
    """A part does not answer; the outcome of the request may be unknown."""

    code = "unavailable"
    retry = "later"


class OutOfTimeError(UnavailableError):
    """The deadline has come before the work was done; what was done stays, and repeating goes on from there."""

    code = "out_of_time"


class CorruptError(HeadraceError):
    """Bytes that were stored or received do not check out."""

    code = "corrupt"


def error_classes() -> dict[str, type[HeadraceError]]:
    """Every class of the tree by its stable `code`.

    A class without a code of its own (ports may have them, with more to say to their callers) is known by its base.
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


def source_incomplete(source: str) -> IllegalStateError:
    """A segment is not merged: the log was lost with its volume, and bytes that were acknowledged may be missing."""
    return IllegalStateError(
        f"segment {source} may lack bytes that were acknowledged: their log was lost with its volume; abort the "
        "transaction and write its events again",
        details={"segment": source},
        code=SOURCE_INCOMPLETE,
    )
