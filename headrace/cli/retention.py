"""`headrace retention`: the retained data of a stream, and the next truncation with its reason."""

from __future__ import annotations

from typing import Any

from headrace.api.retention import RetentionDescription
from headrace.cli.actions import action, new_app
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.parameters import StreamName
from headrace.cli.quantities import retention_text, size_text
from headrace.cli.session import Session

app = new_app()


@action(app, "get", examples=["headrace retention get shop/orders"])
def get(session: Session, stream: StreamName) -> Outcome:
    """Show the retained data of a stream and the next truncation."""
    found = session.client.admin.retention.describe(*stream)
    return Outcome(retention_document(found), details=[("stream", str(stream)), *retention_details(found)])


def retention_document(found: RetentionDescription) -> dict[str, Any]:
    """The retention of a stream as JSON."""
    policy, cut = found.policy, found.next_cut
    return {
        "policy": {"type": policy.type.value, "value": policy.value, "maxValue": policy.max_value} if policy else None,
        "timeMs": found.time_ms,
        "oldestEventAfterMs": found.oldest_event_ms,
        "keptBytes": found.kept_bytes,
        "retentionSet": found.retention_set,
        "oldestCutMs": found.oldest_cut_ms,
        "newestCutMs": found.newest_cut_ms,
        "subscribers": found.subscribers,
        "nextCutMs": found.next_cut_time_ms,
        "next": {
            "case": found.case,
            "why": found.why,
            "bytes": found.next_bytes,
            "cut": {str(segment): offset for segment, offset in cut.positions} if cut else None,
        },
    }


def retention_details(found: RetentionDescription) -> list[tuple[str, Any]]:
    """The retention of a stream for people."""
    return [
        ("retention", retention_text(found.policy)),
        ("kept", f"{size_text(found.kept_bytes)}, written after {time_text(found.oldest_event_ms)}"),
        ("retention set", f"{found.retention_set} cuts"),
        ("subscribers", found.subscribers),
        ("next check", "never" if found.next_cut_time_ms is None else time_text(found.next_cut_time_ms)),
        ("would delete", f"{size_text(found.next_bytes)}: {found.why}"),
    ]
