"""`headrace event write`: rows that are left out, and where to continue, over the scripted cluster."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted_cluster import Cluster

from headrace.cli import main, session
from headrace.cli.event_write import Loading, Place
from headrace.client import Ack
from headrace.client.synchronous.synchronous_bases import EventWriter
from headrace.model.errors import UnavailableError

Run = Callable[..., tuple[int, str, str]]


class FullDisk(io.RawIOBase):
    """A file that takes nothing."""

    def __init__(self, reason: int) -> None:
        self._reason = reason

    def fileno(self) -> int:
        return sys.__stdin__.fileno() if sys.__stdin__ is not None else 0

    def write(self, data: object, /) -> int:
        raise OSError(self._reason, os.strerror(self._reason))


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `headrace event write s/t` with `given` as standard input, in a folder of its own."""
    monkeypatch.setattr(session, "open_client", lambda url, auth, retry_s, network: cluster.client(retry_s=retry_s))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, given: bytes = b"", source: io.BytesIO | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=source or io.BytesIO(given)))
        code = main(["event", "write", "s/t", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_the_name_of_a_file_says_its_format(run: Run, cluster: Cluster, tmp_path: Path):
    (tmp_path / "a.CSV").write_text("n\n1\n")
    (tmp_path / "b.tsv").write_text("n\tm\n2\t3\n")
    (tmp_path / "c.ndjson").write_text("\n4\n")
    (tmp_path / "d.log").write_text("5,6\n")
    assert run("a.CSV", "b.tsv", "c.ndjson", "d.log") == (0, "4 events written\n", "")
    assert sorted(cluster.all_events()) == [b"4", b"5,6", b'{"n":1}', b'{"n":2,"m":3}']
    assert run("a.CSV", "--format", "text")[:2] == (0, "2 events written\n")
    assert run("a.CSV", "--key-separator", "n")[2].startswith("headrace event write: line 2 has no 'n'")


def test_skipped_rows_are_in_a_file(run: Run, cluster: Cluster, tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b'{"k":"a"}\n{\n{"k":null}\n\xff\n{"k":"b"}\n')
    for runs in (1, 2):
        code, out, err = run("a.jsonl", "--key-field", "k", "--skip-invalid", "refused.jsonl")
        assert (code, out, err) == (7, "2 events written, 3 rows refused: see refused.jsonl\n", "")
        lines = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
        assert len(lines) == 3 * runs
    assert [(line["file"], line["line"], line.get("row"), line.get("base64")) for line in lines[:3]] == [
        ("a.jsonl", 2, "{", None),
        ("a.jsonl", 3, '{"k":null}', None),
        ("a.jsonl", 4, None, "/w=="),
    ]
    assert lines[1]["reason"] == "line 3 has no field 'k' with the routing key; --default-key is for such rows"
    assert sorted(cluster.all_events()) == [b'{"k":"a"}'] * 2 + [b'{"k":"b"}'] * 2
    assert run("a.jsonl", "--skip-invalid", "none/refused")[0] == 1


def test_a_default_key_is_for_rows_without_one(run: Run, cluster: Cluster):
    given = b'{"k":"a"}\n{"k":null}\n[]\n'
    code, out, _ = run("--format", "jsonl", "--key-field", "k", "--default-key", "none", given=given)
    assert (code, out) == (0, "3 events written\n")


def test_a_load_continues_where_it_ended(run: Run, cluster: Cluster, tmp_path: Path):
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b 1.csv").write_text('n\n2\n"3\n3"\nx,y\n4\n')
    code, out, err = run("a.csv", "b 1.csv")
    assert (code, out) == (1, "")
    assert err == (
        "headrace event write: b 1.csv: line 5 has 2 cells, but the header has 1 name; "
        "3 events before it are written; to continue: 'b 1.csv' --from-line 5\n"
    )
    assert run("b 1.csv", "--from-line", "6") == (0, "1 event written\n", "")
    assert sorted(cluster.all_events()) == [b'{"n":"3\\n3"}', b'{"n":1}', b'{"n":2}', b'{"n":4}']


def test_a_failed_write_says_where_to_continue(run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    def flush(writer: EventWriter, timeout_s: float | None = None) -> None:
        raise UnavailableError("the store is away")

    monkeypatch.setattr(EventWriter, "flush", flush)
    code, _, err = run(given=b"1\n2\n")
    assert code == 5
    assert re.fullmatch(
        r"headrace event write: the store is away; [0-2] of 2 events acknowledged; to continue: --from-line "
        r"(3|1, which may write 2 events again)( \(hint: .*\))?\n",
        err,
    )


def test_a_load_continues_at_the_first_event_that_failed():
    """Also if events behind it are durable, as those of another segment."""

    class Acknowledged:
        done = True

        def __init__(self, error: Exception | None) -> None:
            self._error = error

        def exception(self) -> Exception | None:
            return self._error

    loading = Loading([Path("a")], Place(0, 1, 0))
    for line, error in ((3, None), (5, UnavailableError("the store is away")), (7, None)):
        loading.events += 2
        loading.note(cast("Ack", Acknowledged(error)), Place(0, line, loading.events))
    assert loading.how_to_continue() == "to continue: --from-line 3, which may write 4 events again"


def test_nothing_is_told_of_a_stream_that_is_missing(run: Run, cluster: Cluster):
    code, _, err = run("--from-line", "0")
    assert code == 2
    cluster.seal_stream()
    code, _, err = run(given=b"1\n")
    assert (code, "continue" in err) == (1, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--default-key", "k"),
        ("--key-field", "k"),
        ("--key-field", "k", "--format", "raw"),
        ("--format", "jsonl", "--delimiter", ";"),
        ("--format", "csv", "--delimiter", ";;"),
        ("--format", "csv", "--delimiter", '"'),
        ("--format", "csv", "--key-separator", ";"),
        ("--text-cells",),
    ],
)
def test_options_that_do_not_suit_are_refused(run: Run, arguments: tuple[str, ...]):
    assert run(*arguments)[0] == 2


def test_without_pyarrow_parquet_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    code, _, err = run("a.parquet")
    assert code == 2
    assert "pip install 'headrace[cli,arrow]'" in " ".join(err.split())


def test_memory_does_not_grow_with_the_file(run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """A batch has at most what one read returns."""
    sizes: list[int] = []
    write_batch = EventWriter.write_batch

    def counted(writer: EventWriter, events: list[bytes], routing_keys: Any = None) -> Any:
        sizes.append(sum(map(len, events)))
        return write_batch(writer, events, routing_keys)

    monkeypatch.setattr(EventWriter, "write_batch", counted)
    given = b"n,text\n" + b"".join(b"%d,some text\n" % number for number in range(100_000))
    assert run("--format", "csv", given=given)[0] == 0
    assert max(sizes) < 1 << 20


def test_the_file_of_refused_rows_is_none_that_is_read(run: Run, cluster: Cluster, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"k":1}\n{\n')
    (tmp_path / "linked").symlink_to("a.jsonl")
    for name in ("a.jsonl", "./a.jsonl", "linked"):
        code, _, err = run("a.jsonl", "--skip-invalid", name)
        assert (code, "--skip-invalid names a.jsonl, which is read" in " ".join(err.split())) == (2, True)
    assert (tmp_path / "a.jsonl").read_text() == '{"k":1}\n{\n'
    assert cluster.all_events() == []


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EPIPE])
def test_a_full_disk_ends_the_load_at_the_row(run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, reason: int):
    """Also a pipe without reader: the rest was not written, so it is no success."""
    full = FullDisk(reason)
    monkeypatch.setattr(Path, "open", lambda path, *arguments, **options: full)
    code, _, err = run("--format", "jsonl", "--skip-invalid", "refused", given=b"1\n{\n3\n")
    assert (code, cluster.all_events()) == (1, [b"1"])
    assert err == (
        f"headrace event write: cannot write the refused row 2 to refused: {os.strerror(reason)}; 1 event before it is "
        "written; to continue: --from-line 2\n"
    )


def test_a_refused_row_is_in_its_file_at_once(run: Run, cluster: Cluster, tmp_path: Path):
    """A process that is killed later has written it."""
    skipped: list[str] = []

    class Input(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            skipped.append((tmp_path / "refused").read_text())
            return super().read1(size)

    assert run("--format", "jsonl", "--skip-invalid", "refused", source=Input(b"{\n"))[0] == 7
    assert [len(text.splitlines()) for text in skipped] == [0, 1]


@pytest.mark.parametrize("is_torn", [False, True], ids=["whole", "torn"])
def test_a_continued_load_adds_no_refused_row_twice(
    run: Run, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_torn: bool
):
    """Nothing before the refused rows was acknowledged, so they are read again."""
    given = b"1\n{\n3\n}\n"
    arguments = ("--format", "jsonl", "--skip-invalid", "refused")

    def flush(writer: EventWriter, timeout_s: float | None = None) -> None:
        raise UnavailableError("the store is away")

    with monkeypatch.context() as failing:
        failing.setattr(EventWriter, "flush", flush)
        failing.setattr(Ack, "done", False)
        code, _, err = run(*arguments, given=given)
    assert (code, "to continue: --from-line 1, which may write 2 events again" in err) == (5, True)
    refused = tmp_path / "refused"
    assert [json.loads(line)["line"] for line in refused.read_text().splitlines()] == [2, 4]
    if is_torn:
        refused.write_text(refused.read_text()[:-5])
    assert run(*arguments, "--from-line", "1", given=given)[:2] == (
        7,
        "2 events written, 2 rows refused: see refused\n",
    )
    lines = refused.read_text().splitlines()
    assert len(lines) == 2 + is_torn
    assert [json.loads(line)["line"] for line in (lines[0], lines[-1])] == [2, 4]


def test_another_load_adds_its_refused_rows(run: Run, tmp_path: Path):
    arguments = ("--format", "jsonl", "--skip-invalid", "refused")
    for options in ((), (), ("--from-line", "2")):
        assert run(*arguments, *options, given=b"{\n1\n}\n")[0] == 7
    lines = [json.loads(line)["line"] for line in (tmp_path / "refused").read_text().splitlines()]
    assert lines == [1, 3, 1, 3]
