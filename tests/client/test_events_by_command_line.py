"""`headrace event`: append, read and tail over the scripted cluster."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from scripted_cluster import Cluster

from headrace.cli import main, resource_command

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line with `given` as standard input: exit code, output, complaints."""
    monkeypatch.setattr(resource_command, "connect", lambda url, **options: cluster.client(**options))

    def run(*arguments: str, given: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(given)))
        try:
            code = main(["event", *arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_lines_are_appended_and_read(run: Run, cluster: Cluster):
    assert run("append", "s/t", given=b"one\ntwo\r\n\nthree") == (0, "4 events appended\n", "")
    assert sorted(cluster.all_events()) == [b"", b"one", b"three", b"two"]
    code, shown, _ = run("read", "s/t")
    assert (code, sorted(shown.splitlines())) == (0, ["", "one", "three", "two"])
    assert json.loads(run("append", "s/t", "--json")[1]) == {"appended": 0}


def test_events_of_one_key_keep_their_order(run: Run):
    run("append", "s/t", "--routing-key", "k", given=b"1\n2\n3\n")
    assert run("read", "s/t")[1] == "1\n2\n3\n"
    run("append", "s/t", "--key-separator", ":", given=b"k:4\nother:a:b\n")
    events = run("read", "s/t")[1].splitlines()
    assert [event for event in events if event.isdecimal()] == ["1", "2", "3", "4"]
    assert "a:b" in events


def test_machines_get_an_object_per_event(run: Run, cluster: Cluster):
    cluster.put(0, "Straße".encode(), b"\xff\x00")
    first, second = [json.loads(line) for line in run("read", "s/t", "--json")[1].splitlines()]
    assert first == {"segment": 0, "offset": 0, "event": "Straße"}
    assert (second["segment"], second["base64"]) == (0, "/wA=")


def test_people_get_no_controls(run: Run, cluster: Cluster):
    cluster.put(0, b"\x1b[31mred\n\xff")
    assert run("read", "s/t")[1] == "\\x1b[31mred\\x0a\\xff\n"


def test_reading_begins_and_ends_where_it_is_told(run: Run, cluster: Cluster):
    cluster.put(0, b"one", b"two", b"three")
    assert run("read", "s/t", "--count", "2")[1] == "one\ntwo\n"
    assert run("read", "s/t", "--start", "0:11,1:0")[1] == "two\nthree\n"
    assert run("read", "s/t", "--start", "tail") == (0, "", "")
    assert run("tail", "s/t", "--start", "head", "--count", "3")[1] == "one\ntwo\nthree\n"


def test_what_makes_no_sense(run: Run, cluster: Cluster):
    code, out, err = run("append", "s/t", "--key-separator", ":", given=b"no key\n")
    assert (code, out) == (1, "")
    assert err.startswith("headrace event append: line 1 has no ':'")
    assert cluster.all_events() == []
    for arguments in (("read",), ("read", "t"), ("read", "s/t", "--start", "middle"), ("tail", "s/t", "--count", "0")):
        assert run(*arguments)[0] == 2
    assert run("append", "s/t", "--routing-key", "k", "--key-separator", ":")[0] == 2


def test_a_sealed_stream_takes_no_events(run: Run, cluster: Cluster):
    cluster.seal_stream()
    code, out, err = run("append", "s/t", given=b"one\n")
    assert (code, out) == (1, "")
    assert "sealed" in err
