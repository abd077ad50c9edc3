"""Pure checks: of what was read, and of what functions logged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

EXAMPLES: Final = 5
LINE_CHARACTERS: Final = 300
_DENIED: Final = re.compile(r"AccessDenied|not authorized|UnauthorizedOperation|AuthorizationError")
_FAILED: Final = re.compile(
    r"Traceback \(most recent|\"level\": ?\"(ERROR|CRITICAL)\"|\[ERROR\]|Unable to import|ImportModule"
)
_EXPECTED: Final = re.compile(r"event=canary_failed")
"""Containers move while stores are replaced. The canary is called when they have."""
_VARYING: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{12,}\b|\d+")


def reading_problems(written: int, read: Sequence[int], keys: int) -> list[str]:
    """What is wrong with the numbers 0 to `written` - 1 as they were read.

    Number n was written with routing key n % `keys`, and events of one key are read in their order.
    """
    problems = []
    counts = Counter(read)
    if lost := sorted(set(range(written)) - counts.keys()):
        problems.append(f"{len(lost)} events are lost, first {lost[:EXAMPLES]}")
    if repeated := sorted(number for number, count in counts.items() if count > 1):
        problems.append(f"{len(repeated)} events are repeated, first {repeated[:EXAMPLES]}")
    if unknown := sorted(number for number in counts if not 0 <= number < written):
        problems.append(f"{len(unknown)} events were never written, first {unknown[:EXAMPLES]}")
    last: dict[int, int] = {}
    misplaced = []
    for number in read:
        key = number % keys
        if number < last.get(key, -1):
            misplaced.append(number)
        last[key] = number
    if misplaced:
        problems.append(f"{len(misplaced)} events are out of their key's order, first {misplaced[:EXAMPLES]}")
    return problems


def broken_image_problems(events: Iterable[str], service: str, tasks: int) -> list[str]:
    """What is wrong in ECS's log of events while a broken image was deployed.

    So many tasks of the first service start and end by themselves, and nothing happens to another task.
    """
    lines = [each.split(maxsplit=1)[1] for each in events]
    starts = [each for each in lines if each.startswith(f"{service}: ") and each.endswith(" started")]
    ends = [each for each in lines if each.startswith(f"{service}: ") and each.endswith(" BY ITSELF")]
    problems = [f"unexpected: {each}" for each in lines if each not in (*starts, *ends)]
    if not len(starts) == len(ends) == tasks:
        problems.append(f"{len(starts)} tasks of {service} started and {len(ends)} ended by themselves, not {tasks}")
    return problems


def denied_lines(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Lines about what IAM refused, each kind once, from pairs of log group and line."""
    return _counted((group, line) for group, line in lines if _DENIED.search(line))


def failed_lines(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Lines about errors of functions, each kind once, from pairs of log group and line."""
    others = (_DENIED, _EXPECTED)
    return _counted(
        (group, line) for group, line in lines if _FAILED.search(line) and not any(each.search(line) for each in others)
    )


def _counted(lines: Iterable[tuple[str, str]]) -> list[str]:
    examples: dict[tuple[str, str], str] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for group, line in lines:
        kind = group, _VARYING.sub("#", line)[:LINE_CHARACTERS]
        examples.setdefault(kind, line.strip()[:LINE_CHARACTERS])
        counts[kind] += 1
    return [f"{count} x {kind[0]}: {examples[kind]}" for kind, count in counts.most_common()]
