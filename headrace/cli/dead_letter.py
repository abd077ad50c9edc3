"""`headrace dead-letter`: list, get, replay, drop."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.api.dead_letters import DeadLetterView
from headrace.cli.arguments import checked, positive
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace
from headrace.model.dead_letters import check_letter_id
from headrace.model.limits import PAGE_ITEMS_DEFAULT

_letter_id = checked(check_letter_id)


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
        "parameters": dict(letter.parameters),
        "message": letter.message,
    }


def _list(client: Headrace, options: argparse.Namespace) -> Outcome:
    page = client.admin.dead_letters.page(limit=options.limit, after=options.after)
    rows = [
        (one.letter, one.status, time_text(one.last_try_ms), one.kind, one.subject, one.cause_code)
        for one in page.letters
    ]
    document = {"letters": [_document(one) for one in page.letters], "nextAfter": page.next_after}
    return Outcome(document, ("LETTER", "STATUS", "LAST TRY", "KIND", "RESOURCE", "CAUSE"), rows)


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    return Outcome(_document(client.admin.dead_letters.get(options.letter)))


def _replay(client: Headrace, options: argparse.Namespace) -> Outcome:
    letter = client.admin.dead_letters.replay(options.letter)
    return Outcome(_document(letter), text=f"{letter.kind or 'message'} of {letter.subject}: {letter.status}")


def _drop(client: Headrace, options: argparse.Namespace) -> Outcome:
    client.admin.dead_letters.drop(options.letter)
    return Outcome({"letter": options.letter, "dropped": True}, text=f"dead letter {options.letter} is deleted")


def _add_letter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("letter", type=_letter_id, metavar="LETTER", help="its id, from `headrace dead-letter list`")


def _command() -> ResourceCommand:
    command = ResourceCommand(
        "dead-letter", "Dead letters: requests whose last attempt failed, with the error of that attempt."
    )

    parser = command.action("list", _list, "List dead letters, oldest first.")
    parser.add_argument(
        "--limit",
        type=positive,
        default=PAGE_ITEMS_DEFAULT,
        metavar="N",
        help=f"length of the page (default {PAGE_ITEMS_DEFAULT})",
    )
    parser.add_argument(
        "--after", type=_letter_id, metavar="LETTER", help="start after this letter: nextAfter of the previous page"
    )

    _add_letter(command.action("get", _get, "Show a dead letter with its error and its message."))
    _add_letter(command.action("replay", _replay, "Send the request of a dead letter again; a repeat is harmless."))
    _add_letter(command.action("drop", _drop, "Delete a dead letter."))
    return command


main = _command()
