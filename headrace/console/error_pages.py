"""What a page says when something fails: what is wrong in the words of the error, and what to do."""

from __future__ import annotations

from typing import NamedTuple

from headrace.model.errors import (
    HeadraceError,
    InvalidRequestError,
    NotFoundError,
    ThrottledError,
    TruncatedError,
    UnauthorizedError,
    UnavailableError,
)


class Problem(NamedTuple):
    """A failure as a page shows it."""

    status: int
    title: str
    message: str
    advice: str


_ADVICE: tuple[tuple[type[HeadraceError], str, str], ...] = (
    (
        UnavailableError,
        "No answer",
        "The page tries again by itself. Check that the deployment runs: `headrace up`, or `headrace cluster stores`.",
    ),
    (
        UnauthorizedError,
        "Not allowed",
        "Start the console with credentials that may read: `headrace console --auth aws-iam`. "
        "`headrace access policy` prints the policy.",
    ),
    (TruncatedError, "Truncated", "These events are no longer kept. Choose a later start, such as the head."),
    (NotFoundError, "Not found", "It was deleted, or the name is another one. Start from the list of streams."),
    (ThrottledError, "Too much at once", "Wait a little, and load the page again."),
    (InvalidRequestError, "Not understood", "Correct what was entered, and try again."),
)


def problem_of(error: HeadraceError) -> Problem:
    """The page of an error; the first class of the table that fits decides what to do."""
    for kind, title, advice in _ADVICE:
        if isinstance(error, kind):
            return Problem(error.reported_as.http_status, title, error.message, advice)
    return Problem(
        error.reported_as.http_status,
        "Refused",
        error.message,
        "`headrace dead-letter list` shows requests that failed.",
    )


def unexpected() -> Problem:
    """The page of a defect of the console. What happened is on its standard error only."""
    return Problem(500, "The console failed", "This is a defect.", "The output of the console has the details.")
