"""`headrace retention`: the retained data of a stream, and the next truncation with its reason."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.api.retention import RetentionDescription
from headrace.cli.arguments import add_stream, stream_of
from headrace.cli.outcome import Outcome, time_text
from headrace.cli.resource_command import ResourceCommand
from headrace.client import Headrace


def _document(found: RetentionDescription) -> dict[str, Any]:
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


def _get(client: Headrace, options: argparse.Namespace) -> Outcome:
    found = client.admin.retention.describe(*stream_of(options))
    policy = found.policy
    at_most = f", at most {policy.max_value}" if policy and policy.max_value is not None else ""
    rows = [
        ("policy", f"{policy.type.value}: at least {policy.value}{at_most}" if policy else "none"),
        ("kept", f"{found.kept_bytes} bytes, written after {time_text(found.oldest_event_ms)}"),
        ("retention set", f"{found.retention_set} cuts"),
        ("subscribers", found.subscribers),
        ("next cut", "never" if found.next_cut_time_ms is None else time_text(found.next_cut_time_ms)),
        ("deletes now", f"{found.next_bytes} bytes"),
        ("because", found.why),
    ]
    return Outcome(_document(found), ("RETENTION", str(options.stream)), rows)


def _command() -> ResourceCommand:
    command = ResourceCommand("retention", "Retention: which data of a stream is kept.")
    add_stream(command.action("get", _get, "Show the retained data of a stream and the next truncation."))
    return command


main = _command()
