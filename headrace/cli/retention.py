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
    retained = session.client.admin.retention.describe(*stream)
    return Outcome(retention_document(retained), details=[("stream", str(stream)), *retention_details(retained)])


def retention_document(retained: RetentionDescription) -> dict[str, Any]:
    """The retention of a stream as JSON."""
    policy, cut = retained.policy, retained.next_cut
    return {
        "policy": {"type": policy.type.value, "value": policy.value, "maxValue": policy.max_value} if policy else None,
        "timeMs": retained.time_ms,
        "oldestEventAfterMs": retained.oldest_event_ms,
        "keptBytes": retained.kept_bytes,
        "retentionSet": retained.retention_set,
        "oldestCutMs": retained.oldest_cut_ms,
        "newestCutMs": retained.newest_cut_ms,
        "subscribers": retained.subscribers,
        "nextCutMs": retained.next_cut_time_ms,
        "next": {
            "case": retained.case,
            "why": retained.why,
            "bytes": retained.next_bytes,
            "cut": {str(segment): offset for segment, offset in cut.positions} if cut else None,
        },
    }


def retention_details(retained: RetentionDescription) -> list[tuple[str, Any]]:
    """The retention of a stream for people."""
    details: list[tuple[str, Any]] = [
        ("retention", retention_text(retained.policy)),
        ("kept", f"{size_text(retained.kept_bytes)}, written after {time_text(retained.oldest_event_ms)}"),
        ("retention set", f"{retained.retention_set} cuts"),
        ("subscribers", retained.subscribers),
    ]
    if retained.policy is None:
        return details  # no check ever deletes something
    return [
        *details,
        ("next check", "never" if retained.next_cut_time_ms is None else time_text(retained.next_cut_time_ms)),
        ("would delete", f"{size_text(retained.next_bytes)}: {retained.why}"),
    ]
