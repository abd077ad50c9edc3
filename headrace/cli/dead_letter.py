"""`headrace dead-letter`: list, get, replay, drop."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.api.dead_letters import DeadLetterView
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.parameters import checked, positive
from headrace.cli.session import Session
from headrace.model.dead_letters import check_letter_id
from headrace.model.limits import PAGE_ITEMS_DEFAULT

app = new_app()

_EXAMPLE_ID = "1700000000000-0123456789abcdef0123456789abcdef"
_letter_id = checked(check_letter_id)

LetterId = Annotated[
    str,
    typer.Argument(
        parser=_letter_id, metavar="LETTER", help="its id, from `headrace dead-letter list`", show_default=False
    ),
]


@action(app, "list", examples=["headrace dead-letter list --limit 20"])
def list_(
    session: Session,
    limit: Annotated[int, typer.Option(parser=positive, metavar="N", help="length of the page")] = PAGE_ITEMS_DEFAULT,
    after: Annotated[
        str | None,
        typer.Option(
            parser=_letter_id, metavar="LETTER", help="start after this letter: nextAfter of the previous page"
        ),
    ] = None,
) -> Outcome:
    """List dead letters, oldest first."""
    page = session.client.admin.dead_letters.page(limit=limit, after=after)
    rows = [
        (letter.letter, letter.status, time_text(letter.last_try_ms), letter.kind, letter.subject, letter.cause_code)
        for letter in page.letters
    ]
    document = {"letters": [_document(letter) for letter in page.letters], "nextAfter": page.next_after}
    return Outcome(document, ("LETTER", "STATUS", "LAST TRY", "KIND", "RESOURCE", "CAUSE"), rows)


@action(app, "get", examples=[f"headrace dead-letter get {_EXAMPLE_ID}"])
def get(session: Session, letter: LetterId) -> Outcome:
    """Show a dead letter with its error and its message."""
    return Outcome(_document(session.client.admin.dead_letters.get(letter)))


@action(app, "replay", examples=[f"headrace dead-letter replay {_EXAMPLE_ID}"])
def replay(session: Session, letter: LetterId) -> Outcome:
    """Send the request of a dead letter again; a repeat is harmless."""
    replayed = session.client.admin.dead_letters.replay(letter)
    text = f"{replayed.kind or 'message'} of {replayed.subject}: {replayed.status}"
    return Outcome(_document(replayed), text=text)


@action(app, "drop", examples=[f"headrace dead-letter drop {_EXAMPLE_ID}"])
def drop(session: Session, letter: LetterId) -> Outcome:
    """Delete a dead letter."""
    session.client.admin.dead_letters.drop(letter)
    return Outcome({"letter": letter, "dropped": True}, text=f"dead letter {letter} is deleted")


def _document(letter: DeadLetterView) -> dict[str, Any]:
    return {
        "letter": letter.letter,
        "status": letter.status,
        "kind": letter.kind,
        "subject": letter.subject,
        "cause": {"code": letter.cause_code, "message": letter.cause_message},
        "queue": letter.queue,
        "tries": letter.tries,
        "replays": letter.replays,
        "firstTryTimeMs": letter.first_try_ms,
        "lastTryTimeMs": letter.last_try_ms,
        "requestedBy": letter.requested_by,
        "correlationId": letter.correlation_id,
        "parameters": dict(letter.parameters),
        "message": letter.message,
    }
