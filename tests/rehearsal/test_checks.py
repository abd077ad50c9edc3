"""The checks of what was read, of logs, and of what a deletion leaves."""

from __future__ import annotations

import pytest

from rehearsal import checks, leftovers


def test_events_in_order_have_no_problem():
    assert checks.reading_problems(6, [1, 0, 3, 2, 5, 4], keys=2) == []


def test_lost_events_are_named():
    assert checks.reading_problems(4, [0, 1, 3], keys=2) == ["1 events are lost, first [2]"]


def test_repeated_events_are_named():
    assert "1 events are repeated, first [1]" in checks.reading_problems(2, [0, 1, 1], keys=2)


def test_events_out_of_order_are_named():
    assert checks.reading_problems(4, [2, 0, 1, 3], keys=2) == ["1 events are out of their key's order, first [0]"]


def test_events_that_were_never_written_are_named():
    assert "1 events were never written, first [7]" in checks.reading_problems(1, [0, 7], keys=2)


STARTED, ENDED = "store-0: task 1a of revision 2 started", "store-0: task 1a ended, exit code 3 BY ITSELF"
LOG = [f"12:00:00 {line}" for _ in range(3) for line in (STARTED, ENDED)]


def test_a_broken_image_harms_its_own_tasks_only():
    assert checks.broken_image_problems(LOG, "store-0", 3) == []


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        (LOG[:4], "2 tasks of store-0 started and 2 ended by themselves, not 3"),
        ([*LOG, "12:00:01 store-1: task 2b gets SIGTERM"], "unexpected: store-1: task 2b gets SIGTERM"),
        ([*LOG, "12:00:01 store-0: task 1a healthy after 3 s"], "unexpected: store-0: task 1a healthy after 3 s"),
    ],
)
def test_what_else_a_broken_image_does_is_named(log: list[str], problem: str):
    assert checks.broken_image_problems(log, "store-0", 3) == [problem]


def test_lines_about_denials_are_found_once_each():
    lines = [
        ("/aws/lambda/a", "ERROR AccessDeniedException: request 1: not authorized to perform sqs:Send"),
        ("/aws/lambda/a", "ERROR AccessDeniedException: request 2: not authorized to perform sqs:Send"),
        ("/aws/lambda/b", "all is well"),
    ]
    (line,) = checks.denied_lines(lines)
    assert line.startswith("2 x /aws/lambda/a: ERROR AccessDenied")
    assert checks.failed_lines(lines) == []


def test_lines_about_errors_are_found():
    lines = [("/aws/lambda/a", '{"level":"ERROR","message":"no"}'), ("/aws/lambda/a", '{"level":"INFO"}')]
    assert len(checks.failed_lines(lines)) == 1
    moving = ("/aws/lambda/headrace-canary", '{"level":"ERROR","message":"event=canary_failed container=1 error=..."}')
    assert len(checks.failed_lines([*lines, moving])) == 1


def test_what_was_there_before_is_not_left_over():
    before, after = {"bucket": ["cdk"], "role": []}, {"bucket": ["cdk", "data"], "role": []}
    assert leftovers.leftovers(before, after) == {"bucket": ["data"]}


def test_what_is_kept_by_design_has_a_reason():
    found = {
        "key in deletion": ["authority 1"],
        "log group": ["/aws/lambda/headrace-x", "/aws/lambda/Custom"],
        "table": ["t"],
    }
    kept, wrong = leftovers.judge(found)
    assert [each.partition(":")[0] for each in kept] == ["key in deletion authority 1", "log group /aws/lambda/Custom"]
    assert wrong == ["log group /aws/lambda/headrace-x", "table t"]
