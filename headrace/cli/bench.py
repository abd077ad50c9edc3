"""`headrace bench`: measures a deployment with events of its own, and verifies that they come once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.actions import action
from headrace.cli.bench_run import BenchPlan
from headrace.cli.outcome import ExitCode, Outcome
from headrace.cli.own_stream import own_stream
from headrace.cli.parameters import ScopedName, checked, positive, scoped_name
from headrace.cli.quantities import parse_size, rate_text
from headrace.cli.session import Session

if TYPE_CHECKING:
    from headrace.cli.bench_run import LatencyHistogram, Measured

SCOPE = "bench"
PERCENTS = (50.0, 90.0, 99.0, 99.9)

Rate = Annotated[
    float | None,
    typer.Option(metavar="N", help="events a second of all writers together (default: as fast as possible)"),
]
EventBytes = Annotated[int, typer.Option(parser=checked(parse_size), metavar="SIZE", help="size of an event")]
Segments = Annotated[int, typer.Option(parser=positive, metavar="N", help="segments of its own stream")]
Stream = Annotated[
    ScopedName | None,
    typer.Option(
        "--stream",
        parser=scoped_name,
        metavar="SCOPE/STREAM",
        help="write to this stream, where the events stay (default: a stream of its own, which is deleted)",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    examples = ["headrace bench", "headrace bench --rate 1000 --event-bytes 1kB --seconds 60 --writers 4"]
    action(app, "bench", examples=examples)(bench)


def bench(
    session: Session,
    rate: Rate = None,
    event_bytes: EventBytes = 1000,
    seconds: Annotated[int, typer.Option(parser=positive, metavar="N", help="how long to write")] = 10,
    writers: Annotated[int, typer.Option(parser=positive, metavar="N", help="writers, each in its thread")] = 1,
    segments: Segments = 4,
    stream: Stream = None,
) -> Outcome:
    """Measure the deployment: write events, read them at once, and verify that each came once and in order.

    It prints how many events a second were written, and how long they took: until they were acknowledged, and until
    they were read. With --rate an event counts from when it was due, so that a delay is not hidden by a writer that
    waits. As fast as possible it counts from when its batch was made, and waits in the writer's buffer.
    """
    from headrace.cli.bench_run import BenchRun

    plan = BenchPlan(event_bytes, seconds, writers, rate, segments)
    try:
        if stream is not None:
            return _outcome(stream, plan, BenchRun(session.client, *stream, plan).run(), is_removed=False)
        with own_stream(session, SCOPE, "run", segments) as own:
            measured = BenchRun(session.client, *own, plan).run()
    except KeyboardInterrupt:
        session.complain("interrupted: nothing was measured")
        raise
    return _outcome(own, plan, measured, is_removed=True)


def _outcome(stream: ScopedName, plan: BenchPlan, measured: Measured, *, is_removed: bool) -> Outcome:
    checks = measured.verification
    total = measured.written + measured.warm_up
    per_s = measured.written / measured.write_s
    document = {
        "scope": stream.scope,
        "stream": stream.name,
        "removed": is_removed,
        "writers": plan.writers,
        "eventBytes": plan.event_bytes,
        "seconds": round(measured.write_s, 3),
        "events": measured.written,
        "eventsPerS": round(per_s, 1),
        "bytesPerS": round(per_s * plan.event_bytes, 1),
        "acknowledgedMs": _milliseconds(measured.acknowledged),
        "endToEndMs": _milliseconds(measured.end_to_end),
        "verified": measured.is_right,
        "missing": checks.missing(total),
        "repeated": checks.repeated,
        "skipped": checks.skipped,
        "damaged": checks.damaged,
    }
    details = [
        ("stream", f"{stream}{' (deleted)' if is_removed else ''}"),
        ("written", f"{measured.written} events of {plan.event_bytes} bytes in {measured.write_s:.1f} s"),
        ("rate", f"{per_s:,.0f} events/s, {rate_text(per_s * plan.event_bytes)}"),
        ("verified", _verdict(measured, total)),
    ]
    rows = [
        (name, *(_text(value) for value in _milliseconds(times).values()))
        for name, times in (("acknowledged", measured.acknowledged), ("read", measured.end_to_end))
    ]
    columns = ("AFTER MS", *(f"P{percent:g}" for percent in PERCENTS), "MAX")
    code = ExitCode.DONE if measured.is_right else ExitCode.REFUSED
    return Outcome(document, columns, rows, details=details, code=code)


def _verdict(measured: Measured, total: int) -> str:
    if measured.is_right:
        return "each event came once, in the order of its key"
    checks = measured.verification
    counts = {
        "missing": checks.missing(total),
        "repeated or late": checks.repeated,
        "skipped": checks.skipped,
        "damaged": checks.damaged,
    }
    return "NO: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _milliseconds(times: LatencyHistogram) -> dict[str, float | None]:
    microseconds: dict[str, Any] = {f"p{percent:g}": times.percentile_us(percent) for percent in PERCENTS}
    microseconds["max"] = times.max_us if times.count else None
    return {name: None if value is None else value / 1000 for name, value in microseconds.items()}


def _text(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds:.1f}"
