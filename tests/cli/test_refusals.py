"""Command lines that are refused: exit code, message, and that nothing changes."""

from __future__ import annotations

import pytest
from api_in_memory import ApiInMemory
from command_line import Run, Show

from headrace.cli.application import RESOURCES

UNKNOWN_TRANSACTION = "0" * 32
UNKNOWN_LETTER = f"{0:013d}-{'0' * 32}"

INVALID = [
    ("cluster", "stores", "extra"),
    ("scope", "create"),
    ("scope", "create", "a/b"),
    ("stream", "get", "t"),
    ("stream", "get", "s/t/u"),
    ("stream", "get", "/t"),
    ("scope", "delete", ".."),
    ("stream", "delete", "s/.."),
    ("stream", "delete", "../t"),
    ("stream", "create", "s/."),
    ("group", "delete", "s/.."),
    ("table", "delete", "s/.."),
    ("stream", "create", "s/t", "--segments", "0"),
    ("stream", "create", "s/t", "--segments", "two"),
    ("stream", "create", "s/t", "--acknowledged-by", "disk"),
    ("stream", "update", "s/t", "--acknowledged-by", "s3"),
    ("stream", "create", "s/t", "--segments", "-1"),
    ("stream", "create", "s/t", "--events-per-s", "1", "--kbytes-per-s", "1"),
    ("stream", "scale", "s/t", "--seal", "0"),
    ("stream", "scale", "s/t", "--seal", "0", "--range", "0.5"),
    ("stream", "scale", "s/t", "--seal", "0", "--range", "0.5:0.1"),
    ("stream", "scale", "s/t", "--seal", "0", "--range", "nan:1"),
    ("stream", "scale-status", "s/t", "٣"),
    ("stream", "cut", "s/t", "--at", "middle"),
    ("stream", "get", "s/t", "--retry-s", "-1"),
    ("stream", "get", "s/t", "--auth", "magic"),
    ("stream", "update", "s/t", "--fixed", "--events-per-s", "5"),
    ("stream", "update", "s/t", "--retain-days", "5", "--retain-everything"),
    ("stream", "truncate", "s/t"),
    ("stream", "truncate", "s/t", "0:-2"),
    ("stream", "truncate", "s/t", "zero:0"),
    ("stream", "check-cut", "s/t", "0:1,0:2"),
    ("stream", "distance", "s/t", "--from", "head"),
    ("stream", "scaling-events", "s/t", "--from-ms", "yesterday"),
    ("stream", "scaling-events", "s/t", "--from-ms", "1700000000"),
    ("stream", "scaling-events", "s/t", "--to-ms", "1700000000"),
    ("segment", "list", "s/t", "--at", "1700000000"),
    ("segment", "list", "s/t", "--at", "middle"),
    ("segment", "list", "s/t", "--at", "earliest", "--epoch", "0"),
    ("segment", "successors", "s/t"),
    ("segment", "successors", "s/t", "-1"),
    ("segment", "endpoint", "s/t", str(1 << 63)),
    ("segment", "between", "s/t", "--from", "0:0,0:1"),
    ("segment", "between", "s/t", "--from", "0:x"),
    ("segment", "between", "s/t", "--from", "no-cut"),
    ("segment", "chunks", "s/t", "0", "--limit", "0"),
    ("dead-letter", "get", "x"),
    ("dead-letter", "list", "--limit", "0"),
    ("dead-letter", "list", "--after", "x"),
    ("group", "create", "s/g"),
    ("group", "create", "s/g", "--stream", "t"),
    ("group", "create", "s/g", "--stream", "s/t", "--start", "0:0"),
    ("group", "create", "s/g", "--stream", "s/t", "--retention", "sometimes"),
    ("group", "update", "s/g", "--outstanding-checkpoints-max", "0"),
    ("retention", "get", "s"),
    ("subscriber", "get", "s/t", "a/b/c"),
    ("subscriber", "publish", "s/t", "g", "x"),
    ("subscriber", "register", "s/t", "g", "--generation", "-1"),
    ("table", "create", "s/b"),
    ("table", "create", "s/b", "--primary-key-length", "0"),
    ("table", "create", "s/b", "--primary-key-length", "8", "--partitions", "none"),
    ("table", "get", "kv"),
    ("table", "endpoint", "s/kv"),
    ("token-key", "rotate"),
    ("token-key", "list", "--file", "keys.json", "--secret", "keys"),
    ("token-key", "revoke", "--file", "keys.json"),
    ("transaction", "get", "s/t", "x"),
    ("transaction", "abort", "s/t"),
    ("transaction", "commit-all", "s/t", UNKNOWN_TRANSACTION, "--writer", "a b", "--epoch", "0"),
    ("transaction", "commit-all", "s/t", UNKNOWN_TRANSACTION, "--writer", "w", "--epoch", "-1"),
    ("transaction", "commit-all", "s/t", UNKNOWN_TRANSACTION, "--writer", "w"),
    ("transaction", "commit-all", "s/t", "--writer", "w", "--epoch", "0"),
    ("transaction", "committed-epoch", "s/t", "a b"),
    ("transaction", "abort-labelled", "s/t", "a b"),
    ("transaction", "list", "s/t", "--label-prefix", "a b"),
    ("watermark", "note", "s/t", "w", "--time", "x", "--position", "0:10"),
    ("watermark", "note", "s/t", "w", "--time", str(1 << 63), "--position", "0:10"),
    ("watermark", "note", "s/t", "w", "--time", "6", "--position", "0"),
    ("watermark", "note", "s/t", "_w", "--time", "6", "--position", "0:10"),
    ("watermark", "note", "s/t", "w", "--time", "6"),
    ("watermark", "remove-writer", "s/t"),
]

SHARED_INVALID = [
    pytest.param((), id="no-action"),
    pytest.param(("unknown",), id="unknown-action"),
    pytest.param(("{action}", "--unknown-option"), id="unknown-option"),
    pytest.param(("{action}", "scope", "stream", "stream", "stream", "stream"), id="surplus-arguments"),
]
"""Refused for every resource. `{action}` is its first action."""

REFUSED = [
    (("scope", "create", "s"), 4, "--exist-ok"),
    (("scope", "create", "_s"), 1, "is not allowed"),
    (("scope", "delete", "s"), 1, "headrace stream list"),
    (("scope", "get", "none"), 3, "(hint: to list them: headrace scope list)"),
    (("stream", "get", "s/none"), 3, "(hint: to list them: headrace stream list s)"),
    (("stream", "list", "none"), 3, "there is no scope none (hint: to list them: headrace scope list)"),
    (("stream", "create", "s/t"), 4, "--exist-ok"),
    (("stream", "create", "s/u", "--segments", "5000"), 1, "minSegments"),
    (("stream", "delete", "s/t"), 1, "headrace stream seal"),
    (("stream", "scale", "s/t", "--seal", "9", "--range", "0:0.5"), 1, "headrace segment list"),
    (("stream", "scale", "s/t", "--seal", "0", "--range", "0:0.25"), 1, "headrace segment list"),
    (("stream", "scale", "s/t", "--segments", "1"), 1, "headrace stream update s/t --segments N"),
    (("stream", "update", "s/none", "--fixed"), 3, ""),
    (("stream", "update", "s/t", "--retain-max", "3"), 1, ""),
    (("stream", "truncate", "s/none", "0:0"), 3, ""),
    (("stream", "truncate", "s/t", "7:0"), 1, ""),
    (("stream", "truncate", "s/t", "0:9,1:0"), 1, ""),
    (("stream", "distance", "s/t", "--from", "7:0"), 1, ""),
    (("stream", "scaling-events", "s/none"), 3, ""),
    (("stream", "check-cut", "s/none", "0:0"), 3, ""),
    (("segment", "list", "s/none"), 3, ""),
    (("segment", "list", "s/t", "--epoch", "7"), 3, ""),
    (("segment", "successors", "s/t", "77"), 3, "headrace segment list s/t"),
    (("segment", "predecessors", "s/t", "77"), 3, ""),
    (("segment", "endpoint", "s/t", "0", "--retry-s", "0"), 5, ""),
    (("segment", "between", "s/t", "--from", "0:0"), 1, ""),
    (("segment", "chunks", "s/t", "0", "--from-offset", "5", "--to-offset", "4"), 1, ""),
    (("dead-letter", "get", UNKNOWN_LETTER), 3, "headrace dead-letter list"),
    (("group", "get", "s/none"), 3, "(hint: to list them: headrace group list s)"),
    (("group", "list", "none"), 3, ""),
    (("group", "reset", "s/none"), 3, ""),
    (("group", "delete", "s/none"), 3, ""),
    (("group", "create", "s/h", "--stream", "s/none"), 3, "headrace stream list s"),
    (("group", "create", "s/h", "--stream", "s/t", "--start", "s/u=0:0"), 1, "not a stream of the group"),
    (("group", "create", "s/h", "--stream", "s/t", "--id", "seven"), 1, ""),
    (("group", "update", "s/g", "--stream", "s/none"), 3, ""),
    (("retention", "get", "s/none"), 3, ""),
    (("subscriber", "list", "s/none"), 3, ""),
    (("subscriber", "publish", "s/t", "none", "0:0,1:0"), 3, "headrace subscriber list s/t"),
    (("subscriber", "register", "s/t", "g", "--start", "7:0"), 1, ""),
    (("table", "get", "s/none"), 3, "(hint: to list them: headrace table list s)"),
    (("table", "list", "none"), 3, ""),
    (("table", "segments", "s/none"), 3, ""),
    (("table", "delete", "s/none"), 3, ""),
    (("table", "create", "s/kv", "--primary-key-length", "8"), 4, "--exist-ok"),
    (("table", "create", "none/kv", "--primary-key-length", "8"), 3, ""),
    (("table", "create", "s/b", "--primary-key-length", "800000"), 1, ""),
    (("token-key", "rotate", "--file", "missing/keys.json"), 1, "No such file"),
    (("token-key", "revoke", "none", "--file", "/tmp/no-such-keys.json"), 3, "headrace token-key list"),
    (("transaction", "list", "s/none"), 3, ""),
    (("transaction", "get", "s/t", UNKNOWN_TRANSACTION), 3, "headrace transaction list s/t"),
    (("transaction", "commit", "s/t", UNKNOWN_TRANSACTION), 3, ""),
    (("transaction", "commit-all", "s/t", UNKNOWN_TRANSACTION, "--writer", "w", "--epoch", "0"), 3, ""),
    (("transaction", "committed-epoch", "s/none", "w"), 3, ""),
    (("transaction", "abort-labelled", "s/none", "q"), 3, ""),
    (("watermark", "get", "s/none"), 3, ""),
    (("watermark", "note", "s/t", "w", "--time", "4", "--position", "0:10"), 1, ""),
    (("watermark", "note", "s/t", "w", "--time", "6", "--position", "9:10"), 1, ""),
]


@pytest.fixture
def resources(stream: str, ok: Show) -> None:
    """The stream s/t of two segments, the reader group s/g, the table s/kv, and a note of the writer w of s/t."""
    ok("group", "create", "s/g", "--stream", stream)
    ok("table", "create", "s/kv", "--partitions", "2", "--primary-key-length", "8")
    ok("watermark", "note", stream, "w", "--time", "5", "--position", "0:10")


def _check_invalid(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert f"Usage: headrace {arguments[0]}" in ran.err


@pytest.mark.parametrize("arguments", INVALID, ids=" ".join)
def test_invalid_command_line_changes_nothing(run: Run, api: ApiInMemory, arguments: tuple[str, ...]):
    before = api.contents()
    _check_invalid(run, arguments)
    assert api.contents() == before


@pytest.mark.parametrize("resource", sorted(RESOURCES))
@pytest.mark.parametrize("arguments", SHARED_INVALID)
def test_every_resource_refuses_the_same(run: Run, resource: str, arguments: tuple[str, ...]):
    listed = run(resource, "--help").out.split("Commands:")[-1].splitlines()
    action = next(line.split()[0] for line in listed if line.startswith("  "))
    _check_invalid(run, (resource, *(argument.format(action=action) for argument in arguments)))


@pytest.mark.usefixtures("resources")
@pytest.mark.parametrize(
    ("arguments", "code", "hint"), REFUSED, ids=[" ".join(arguments) for arguments, _, _ in REFUSED]
)
def test_refused_action_prints_one_line(run: Run, api: ApiInMemory, arguments: tuple[str, ...], code: int, hint: str):
    before = api.contents()
    ran = run(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"headrace {arguments[0]} {arguments[1]}: ")
    assert ran.err.count("\n") == 1
    assert hint in ran.err
    assert api.contents() == before
