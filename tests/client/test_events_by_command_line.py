"""`headrace event`: write and read over the scripted cluster."""

from __future__ import annotations

import base64
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_cluster import Cluster

from headrace.cli import event, main, session
from headrace.client import EventRead
from headrace.client.synchronous.synchronous_bases import EventWriter
from headrace.client.writing.awaited_changes import Ack
from headrace.client.writing.event_writer import RoutingKeys

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command line with `given` as standard input: exit code, output, complaints."""
    monkeypatch.setattr(session, "open_client", lambda url, auth, retry_s, network: cluster.client(retry_s=retry_s))

    def run(*arguments: str, given: bytes | io.BytesIO = b"") -> tuple[int, str, str]:
        source = io.BytesIO(given) if isinstance(given, bytes) else given
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=source))
        code = main(["event", *arguments])
        shown = capsysbinary.readouterr()
        return code, shown.out.decode("utf-8", "surrogateescape"), shown.err.decode()

    return run


def test_lines_are_appended_and_read(run: Run, cluster: Cluster):
    assert run("write", "s/t", given=b"one\ntwo\r\n\nthree") == (0, "4 events written\n", "")
    assert sorted(cluster.all_events()) == [b"", b"one", b"three", b"two"]
    code, shown, _ = run("read", "s/t")
    assert (code, sorted(shown.splitlines())) == (0, ["", "one", "three", "two"])
    assert json.loads(run("write", "s/t", "--json")[1]) == {"appended": 0, "refused": 0}


def test_events_of_one_key_keep_their_order(run: Run):
    run("write", "s/t", "--routing-key", "k", given=b"1\n2\n3\n")
    assert run("read", "s/t")[1] == "1\n2\n3\n"
    run("write", "s/t", "--key-separator", ":", given=b"k:4\nother:a:b\n")
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
    assert run("read", "s/t", "--from", "0@0:11,1@0:0")[1] == "two\nthree\n"
    assert run("read", "s/t", "--from", "latest") == (0, "", "")
    assert run("read", "s/t", "--follow", "--from", "earliest", "--count", "3")[1] == "one\ntwo\nthree\n"


def test_following_says_that_a_stream_is_sealed(run: Run, cluster: Cluster):
    cluster.put(0, b"one")
    cluster.seal_stream()
    end = "headrace event read: the stream is sealed, and read to its end\n"
    assert run("read", "s/t", "--follow", "--from", "earliest") == (0, "one\n", end)
    assert run("read", "s/t") == (0, "one\n", "")


def test_what_makes_no_sense(run: Run, cluster: Cluster):
    code, out, err = run("write", "s/t", "--key-separator", ":", given=b"no key\n")
    assert (code, out) == (1, "")
    assert err.startswith("headrace event write: line 1 has no ':'")
    assert cluster.all_events() == []
    for arguments in (("read",), ("read", "t"), ("read", "s/t", "--from", "middle"), ("read", "s/t", "--count", "0")):
        assert run(*arguments)[0] == 2
    assert run("write", "s/t", "--routing-key", "k", "--key-separator", ":")[0] == 2


def test_old_names_of_event_commands_work(run: Run):
    code, out, err = run("append", "s/t", given=b"one\n")
    assert (code, out) == (0, "1 event written\n")
    assert "`event append` is `event write` now" in err
    code, out, err = run("tail", "s/t", "--start", "earliest", "--count", "1")
    assert (code, out, err.count("\n")) == (0, "one\n", 2)


@pytest.mark.parametrize("form", ["raw", "base64", "json"])
def test_any_bytes_survive_writing_and_reading(run: Run, cluster: Cluster, form: str):
    events = [b"", b"\r\n", b"\x00\xff\n", b"x" * 70_000]
    given = b"".join(len(event).to_bytes(4, "big") + event for event in events)
    assert run("write", "s/t", "--format", "raw", "--routing-key", "k", given=given)[:2] == (0, "4 events written\n")
    code, shown, _ = run("read", "s/t", "--format", form)
    assert code == 0
    if form == "raw":
        assert shown.encode("utf-8", "surrogateescape") == given
    elif form == "base64":
        assert [base64.b64decode(line) for line in shown.splitlines()] == events
    elif form == "json":
        documents = [json.loads(line) for line in shown.splitlines()]
        assert [
            document["event"].encode() if "event" in document else base64.b64decode(document["base64"])
            for document in documents
        ] == events


def test_a_field_of_json_lines_is_the_routing_key(run: Run, cluster: Cluster):
    given = b'{"customer": "a", "n": 1}\n\n{"customer": 7, "n": 2}\r\n{"n": 3, "customer": {"b": 1}}'
    assert run("write", "s/t", "--format", "jsonl", "--key-field", "customer", given=given)[0] == 0
    assert sorted(cluster.all_events()) == sorted(line for line in given.splitlines() if line)


@pytest.mark.parametrize(
    ("options", "given", "reason"),
    [
        (("--format", "jsonl"), b"1\n{", "line 2 is not JSON"),
        (("--format", "jsonl"), b"1\n" + b"[" * 100_000, "line 2 is not JSON"),
        (
            ("--format", "jsonl"),
            b'1\n{"a": NaN}',
            "line 2 is not JSON as all readers understand it: it is not JSON: NaN",
        ),
        (("--format", "jsonl"), b"1\n-Infinity", "-Infinity is not a number"),
        (
            ("--format", "jsonl"),
            b'1\n"\xed\xa0\x80"',
            "line 2 is not JSON as all readers understand it: it is not UTF-8",
        ),
        (("--format", "jsonl"), b'1\n"\\ud800"', "half of a surrogate pair"),
        (("--format", "jsonl"), b"1\n" + '{"a":1}'.encode("utf-16"), "it is not UTF-8"),
        (("--format", "jsonl"), b"1\n" + '{"a":1}'.encode("utf-16-le"), "line 2 is not JSON"),
        (("--format", "jsonl"), b'1\n\xef\xbb\xbf{"a":1}', "line 2 is not JSON"),
        (("--format", "jsonl"), b'1\n{"a":1,"a":2}', "occurs twice"),
        (("--format", "jsonl", "--key-field", "k"), b'{"k": 1}\n{"K": 1}', "line 2 has no field 'k'"),
        (("--format", "jsonl", "--key-field", "k"), b'{"k": 1}\n[1]', "line 2 has no field 'k'"),
        (("--format", "raw"), b"\0\0\0\1a\0\0", "inside the length of event 2"),
        (("--format", "raw"), b"\0\0\0\1a\0\0\0\5abc", "inside event 2: 3 of 5 bytes"),
        (("--format", "raw"), b"\0\0\0\1aGET / HTTP", "event 2 has 1195725856 bytes"),
        (("--key-separator", ","), b"k,1\n\xff,2", "the routing key of line 2 is not UTF-8"),
    ],
)
def test_bad_input_says_which_event_and_what_is_written(
    run: Run, cluster: Cluster, options: tuple[str, ...], given: bytes, reason: str
):
    code, out, err = run("write", "s/t", *options, given=given)
    assert (code, out) == (1, "")
    assert reason in err
    assert err.endswith("; 1 event before it is written; to continue: --from-line 2\n")
    assert len(cluster.all_events()) == 1


def test_input_refused_at_once_says_that_nothing_is_written(run: Run, cluster: Cluster):
    code, _, err = run("write", "s/t", "--format", "csv", "--key-field", "K", given=b"k,v\n1,2\n")
    assert code == 1
    assert err.endswith("has no field 'K' for --key-field; its fields are k, v; nothing is written\n")
    assert cluster.all_events() == []


@pytest.mark.parametrize(
    ("options", "line"),
    [(("--format", "jsonl"), b'{"k":"a"}'), (("--format", "jsonl", "--key-field", "k"), b'{"k":"a"}')],
)
def test_a_byte_order_mark_is_left_out_of_json(
    run: Run, cluster: Cluster, tmp_path: Path, options: tuple[str, ...], line: bytes
):
    mark = b"\xef\xbb\xbf"
    (tmp_path / "a").write_bytes(mark + line + b"\n" + line + b"\n")
    code, out, err = run("write", "s/t", str(tmp_path / "a"), "-", *options, given=mark + line)
    assert (code, out) == (0, "3 events written\n")
    assert err.splitlines() == [
        f"headrace event write: {source} begins with a byte order mark, which is left out"
        for source in (tmp_path / "a", "standard input")
    ]
    assert cluster.all_events() == [line] * 3


def test_a_byte_order_mark_is_no_part_of_a_key(run: Run, monkeypatch: pytest.MonkeyPatch):
    keys: list[RoutingKeys] = []
    write_batch = EventWriter.write_batch

    def noted(writer: EventWriter, events: list[bytes], routing_keys: RoutingKeys = None) -> Ack:
        keys.append(routing_keys)
        return write_batch(writer, events, routing_keys)

    monkeypatch.setattr(EventWriter, "write_batch", noted)
    code, _, err = run("write", "s/t", "--key-separator", ",", given=b"\xef\xbb\xbfa,1\nb,2\n")
    assert (code, keys, err.count("byte order mark")) == (0, [["a", "b"]], 1)


def test_lines_without_keys_are_written_as_they_are(run: Run, cluster: Cluster):
    assert run("write", "s/t", given=b"\xef\xbb\xbfa\n\xff\n") == (0, "2 events written\n", "")
    assert sorted(cluster.all_events()) == [b"\xef\xbb\xbfa", b"\xff"]


def test_events_come_from_files(run: Run, cluster: Cluster, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"1\n2")
    (tmp_path / "b").write_bytes(b"3\n")
    given = ("write", "s/t", str(tmp_path / "a"), "-", str(tmp_path / "b"), "--routing-key", "k")
    assert run(*given, given=b"0\n")[:2] == (0, "4 events written\n")
    assert run("read", "s/t")[1] == "1\n2\n0\n3\n"
    code, _, err = run("write", "s/t", str(tmp_path / "none"))
    assert (code, "No such file" in err) == (1, True)


class _Interrupted(io.BytesIO):
    """Standard input that is interrupted by Ctrl-C after three lines."""

    reads = 0

    def read1(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > 2:
            raise KeyboardInterrupt
        return b"event\n" * self.reads + b"not wri"


class _Piped(io.BytesIO):
    """Standard input that gets a line only after the lines before it are stored."""

    def __init__(self, cluster: Cluster, pieces: list[bytes]) -> None:
        super().__init__()
        self._cluster = cluster
        self._pieces = pieces
        self.given = 0

    def read1(self, size: int | None = -1, /) -> bytes:
        deadline_s = time.monotonic() + 20
        while len(self._cluster.all_events()) < self.given:
            assert time.monotonic() < deadline_s, "an event that was there waits for more input"
            time.sleep(0.001)
        self.given += 1
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize(
    ("options", "pieces"),
    [
        ((), [b"1\n", b"2\n"]),
        (("--key-separator", ":"), [b"k:1\n", b"k:2\r\n"]),
        (("--format", "jsonl"), [b"1\n", b"2\n"]),
        (("--format", "raw"), [b"\0\0\0\1a", b"\0\0\0\1b"]),
    ],
)
def test_an_event_does_not_wait_for_more_input(
    run: Run, cluster: Cluster, options: tuple[str, ...], pieces: list[bytes]
):
    count = len(pieces)
    assert run("write", "s/t", *options, given=_Piped(cluster, pieces))[:2] == (0, f"{count} events written\n")


def test_events_that_are_there_are_written_together(run: Run, monkeypatch: pytest.MonkeyPatch):
    """Event by event, a file of short lines took several times as long."""
    sizes: list[int] = []
    write_batch = EventWriter.write_batch

    def counted(writer: EventWriter, events: list[bytes], routing_keys: RoutingKeys = None) -> Ack:
        sizes.append(len(events))
        return write_batch(writer, events, routing_keys)

    monkeypatch.setattr(EventWriter, "write_batch", counted)
    for options in ((), ("--key-separator", "5"), ("--format", "jsonl")):
        given = b"".join(b"15%d\n" % number for number in range(1_000))
        assert run("write", "s/t", *options, given=given)[0] == 0
        assert sizes == [1_000]
        sizes.clear()


def test_an_interrupted_write_tells_what_is_acknowledged(run: Run):
    code, out, err = run("write", "s/t", given=_Interrupted())
    assert (code, out) == (130, "")
    assert re.fullmatch(
        r"headrace event write: interrupted: [0-3] of 3 events acknowledged; to continue: --from-line [1-4]"
        r"(, which may write [1-3] events? again)?\n",
        err,
    )


@pytest.mark.parametrize(
    ("place", "given", "message"),
    [
        ("write_batch", b"1\n2\n", "interrupted: 0 of 2 events acknowledged"),
        ("flush", b"1\n", "interrupted: [01] of 1 event acknowledged"),
        ("flush", b"1\n{", "interrupted: [01] of 1 event acknowledged"),
        ("close", b"1\n2\n", "interrupted: 2 of 2 events acknowledged"),
    ],
)
def test_an_interrupt_anywhere_tells_what_is_acknowledged(
    run: Run, monkeypatch: pytest.MonkeyPatch, place: str, given: bytes, message: str
):
    leave = EventWriter.__exit__

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupted_behind(*arguments: Any) -> None:
        leave(*arguments)
        raise KeyboardInterrupt

    if place == "close":
        monkeypatch.setattr(EventWriter, "__exit__", interrupted_behind)
    else:
        monkeypatch.setattr(EventWriter, place, interrupted)
    code, out, err = run("write", "s/t", "--format", "jsonl", given=given)
    assert (code, out) == (130, "")
    assert re.fullmatch(f"headrace event write: {message}; to continue: --from-line .*\n", err)


def test_an_interrupted_read_tells_what_is_printed(run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    cluster.put(0, b"one", b"two", b"three")

    def interrupted(read: EventRead) -> str:
        if read.event == b"three":
            raise KeyboardInterrupt
        return read.event.decode()

    monkeypatch.setattr(event, "_text", interrupted)
    for options in ((), ("--follow", "--from", "earliest")):
        code, out, err = run("read", "s/t", *options)
        assert (code, out, err) == (130, "one\ntwo\n", "headrace event read: interrupted: 2 events printed\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("write", "s/t", "--format", "raw", "--key-separator", ","),
        ("write", "s/t", "--key-field", "k"),
        ("write", "s/t", "--key-separator", ""),
        ("read", "s/t", "--follow", "--to", "latest"),
        ("read", "s/t", "--format", "xml"),
    ],
)
def test_options_that_exclude_each_other_are_refused(run: Run, arguments: tuple[str, ...]):
    assert run(*arguments)[0] == 2


def test_reading_stops_at_a_cut(run: Run, cluster: Cluster):
    cluster.put(0, b"one", b"two", b"three")
    assert run("read", "s/t", "--to", "0@0:22,1@0:0")[1] == "one\ntwo\n"
    assert run("read", "s/t", "--to", "earliest")[1] == ""


def test_a_sealed_stream_takes_no_events(run: Run, cluster: Cluster):
    cluster.seal_stream()
    code, out, err = run("write", "s/t", given=b"one\n")
    assert (code, out) == (1, "")
    assert "sealed" in err
