"""`headrace cost`: what a deployment costs in a month, by line, next to other services. Needs no controller."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.actions import action
from headrace.cli.outcome import Outcome, Section
from headrace.cli.session import Session


def add_to(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    action(
        app,
        "cost",
        examples=[
            "headrace cost --mb-per-s 10 --readers 3 --retention-days 7",
            "headrace cost --mb-per-s 10 --readers 3 --retention-days 7 --from-s3 0.5",
            "headrace cost --mb-per-s 0 --readers 0 --retention-days 0",
        ],
    )(cost)


def cost(
    session: Session,
    mb_per_s: Annotated[float, typer.Option(metavar="MB", help="written all the time, in 10^6 bytes a second")],
    readers: Annotated[int, typer.Option(metavar="N", help="readers, of which each reads everything once")],
    retention_days: Annotated[float, typer.Option(metavar="DAYS", help="how long events are kept")],
    copies: Annotated[int, typer.Option(metavar="N", help="copies of the log")] = 3,
    from_s3: Annotated[
        float,
        typer.Option(metavar="PART", help="part of what is read that is history; other zones get it from S3"),
    ] = 0.0,
    external: Annotated[bool, typer.Option("--external", help="writers and readers are outside the VPC")] = False,
) -> Outcome:
    """Print what a deployment costs in a month, by line, and what the same bytes cost elsewhere."""
    from headrace.cli.bill import PRICES_OF, Load, bill, other_services, total

    load = Load(mb_per_s, readers, retention_days, copies, external, from_s3)
    lines, others = bill(load), other_services(load)
    document = {
        "prices": PRICES_OF,
        "lines": [{"text": line.text, "dollars": round(line.dollars, 2)} for line in lines],
        "dollars": round(total(lines), 2),
        "others": [{"text": line.text, "dollars": round(line.dollars, 2)} for line in others],
    }
    return Outcome(
        document,
        ("LINE", "$ A MONTH"),
        [(line.text, f"{line.dollars:,.0f}") for line in lines] + [("together", f"{total(lines):,.0f}")],
        sections=[
            Section(
                f"The same bytes elsewhere (list prices of {PRICES_OF}; each Kinesis reader with enhanced fan-out)",
                ("SERVICE", "$ A MONTH"),
                [(line.text, f"{line.dollars:,.0f}") for line in others],
            )
        ],
    )
