"""Command lines of the release before: they mean the same, and say the current name."""

from __future__ import annotations

import pytest
from command_line import ReadJson, Run

from headrace.cli.old_names import with_current_names


@pytest.mark.parametrize(
    ("old", "current"),
    [
        ("event append s/t --routing-key k", "event write s/t --routing-key k"),
        ("--json event --url u append s/t", "--json event --url u write s/t"),
        ("event tail s/t --count 3", "event read --follow s/t --count 3"),
        ("event tail s/t --start head", "event read --follow s/t --from head"),
        ("event read s/t --start 0:11", "event read s/t --from 0@0:11"),
        ("event read s/t --start=4294967298:5,1:6", "event read s/t --from=2@1:5,1@0:6"),
        ("event read s/t --start 1:2:3", "event read s/t --from 1:2:3"),
        ("reader-group list s", "group list s"),
        ("--url u reader-group list s", "--url u group list s"),
        ("stream scale s/t --seal 0 1 --range 0:1 --no-wait", "stream scale s/t --seal 0,1 --range 0:1 --no-wait"),
        ("stream scale s/t --range 0:0.2 0.2:0.5 --seal 0", "stream scale s/t --range 0:0.2,0.2:0.5 --seal 0"),
    ],
)
def test_old_words_become_current_ones(old: str, current: str):
    changed, notices = with_current_names(old.split())
    assert changed == current.split()
    assert notices


@pytest.mark.parametrize(
    "arguments",
    [
        "event read s/t --from 0@0:11",
        "scope create reader-group",
        "group create s/reader-group --stream s/t --start s/t=0:0",
        "--url reader-group scope list",
        "stream scale s/t --seal 0 --range 0:0.5,0.5:1",
        "stream scale --seal 0 --range 0:0.5,0.5:1 s/t",
        "",
    ],
)
def test_current_words_stay(arguments: str):
    assert with_current_names(arguments.split()) == (arguments.split(), [])


def test_an_old_command_works_with_a_notice(stream: str, run: Run, as_json: ReadJson):
    ran = run("reader-group", "create", "s/g", "--stream", stream)
    assert ran.code == 0
    assert ran.err == "headrace: `reader-group` is `group` now; the old name works until release 0.3\n"
    assert as_json("group", "get", "s/g")["readerGroup"] == "g"
    ran = run("stream", "scale", stream, "--seal", "0", "--range", "0:0.25", "0.25:0.5")
    assert (ran.code, ran.err.count("\n")) == (0, 1)
    assert as_json("stream", "get", stream)["segments"] == 3
