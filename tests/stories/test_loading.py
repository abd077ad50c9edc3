"""Files that `headrace event write` loads: the examples of its help, and all or nothing."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli import main
from headrace.cli.event_write import EXAMPLES
from headrace.client import Headrace
from headrace.client.administration.transactions_admin import AsyncTransactionsAdmin
from headrace.model.errors import UnavailableError

Shell = Callable[[str], tuple[int, str, str]]

ROWS = [b'{"customer":"anna","n":1}', b'{"customer":"bert","n":2}']
AFTERWARDS = {
    EXAMPLES[0]: [b"%d" % number for number in range(1, 1001)],
    EXAMPLES[1]: ROWS,
    EXAMPLES[2]: [*ROWS, b'{"customer":null,"n":3}'],
    EXAMPLES[3]: ROWS,
    EXAMPLES[4]: [b"order 1", b"order 2"],
}
"""The events that each example of the help writes."""


def _events(client: Headrace, scope: str, stream: str) -> list[bytes]:
    with client.reader(scope, stream, end=client.admin.stream_cut(scope, stream)) as reader:
        return sorted(read.event for read in reader)


def _write_files(folder: Path) -> None:
    (folder / "orders.csv").write_text("customer,n\nanna,1\nbert,2\n")
    (folder / "orders.jsonl").write_bytes(ROWS[0] + b'\n{"customer":null}\n' + ROWS[1] + b"\n")
    (folder / "orders.txt").write_text("anna order 1\nbert order 2\n")
    pq.write_table(pa.table({"customer": ["anna", "bert", None], "n": [1, 2, 3]}), folder / "orders.parquet")


def test_examples_of_the_help_do_what_they_say(
    shell: Shell, headrace_client: Headrace, headrace_scope: str, tmp_path: Path
):
    _write_files(tmp_path)
    assert set(EXAMPLES) - set(AFTERWARDS) == {EXAMPLES[5]}
    for number, (example, events) in enumerate(AFTERWARDS.items()):
        stream = f"orders-{number}"
        headrace_client.admin.create_stream(headrace_scope, stream)
        code, out, err = shell(example.replace("shop/orders", f"{headrace_scope}/{stream}"))
        refused = "--skip-invalid" in example
        assert (code, err) == (7 if refused else 0, ""), example
        assert out == f"{len(events)} events written{', 1 row refused: see refused.jsonl' if refused else ''}\n"
        assert _events(headrace_client, headrace_scope, stream) == sorted(events)
    headrace_client.admin.create_stream(headrace_scope, "copy")
    copied = EXAMPLES[5].replace("shop/orders", f"{headrace_scope}/orders-1")
    assert shell(copied.replace("shop/copy", f"{headrace_scope}/copy"))[:2] == (0, "2 events written\n")
    assert _events(headrace_client, headrace_scope, "copy") == ROWS


def test_a_transaction_writes_all_or_nothing(
    shell: Shell, headrace_client: Headrace, headrace_scope: str, tmp_path: Path
):
    headrace_client.admin.create_stream(headrace_scope, "t")
    _write_files(tmp_path)
    (tmp_path / "bad.csv").write_text("customer,n\ncarl,3\ndora\n")
    write = f"headrace event write {headrace_scope}/t --transaction"
    code, out, err = shell(f"{write} orders.csv bad.csv")
    assert (code, out) == (1, "")
    assert err == (
        "headrace event write: bad.csv: line 3 has 1 cell, but the header has 2 names; the transaction was aborted: "
        "nothing is written\n"
    )
    assert _events(headrace_client, headrace_scope, "t") == []
    assert shell(f"{write} orders.csv bad.csv --skip-invalid refused")[0] == 7
    assert _events(headrace_client, headrace_scope, "t") == [*ROWS, b'{"customer":"carl","n":3}']


def test_an_interrupted_transaction_writes_nothing(headrace_url: str, headrace_client: Headrace, headrace_scope: str):
    headrace_client.admin.create_stream(headrace_scope, "t")
    command = [
        str(Path(sys.executable).with_name("headrace")),
        "--url",
        headrace_url,
        "event",
        "write",
        f"{headrace_scope}/t",
    ]
    with subprocess.Popen(
        [*command, "--transaction"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        while not headrace_client.admin.transactions.list_open(headrace_scope, "t"):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        assert process.wait() == 130
    assert re.fullmatch(r"headrace event write: interrupted: (the transaction was aborted: )?nothing is written\n", err)
    assert _events(headrace_client, headrace_scope, "t") == []


Load = Callable[[io.BytesIO], tuple[int, str, str]]


@pytest.fixture
def load(
    headrace_url: str,
    headrace_client: Headrace,
    headrace_scope: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Load:
    """Loads JSON lines into the stream `t` in one transaction, in this process."""
    headrace_client.admin.create_stream(headrace_scope, "t")

    def load(given: io.BytesIO) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=given))
        options = ("--format", "jsonl", "--transaction")
        code = main(["--url", headrace_url, "event", "write", f"{headrace_scope}/t", *options])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return load


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_without_an_answer_is_settled(
    load: Load, headrace_client: Headrace, headrace_scope: str, monkeypatch: pytest.MonkeyPatch, arrives: bool
):
    """A program that repeats a load after an error would write the events of a committed one twice."""
    commit = AsyncTransactionsAdmin.commit
    lost: list[bool] = []

    async def without_answer(admin: AsyncTransactionsAdmin, *arguments: Any, **options: Any) -> Any:
        if lost:
            return await commit(admin, *arguments, **options)
        lost.append(True)
        if arrives:
            await commit(admin, *arguments, **options)
        raise UnavailableError("the controller is away")

    monkeypatch.setattr(AsyncTransactionsAdmin, "commit", without_answer)
    code, out, err = load(io.BytesIO(b"1\n2\n"))
    if arrives:
        assert (code, out, err) == (0, "2 events written\n", "")
        assert _events(headrace_client, headrace_scope, "t") == [b"1", b"2"]
    else:
        assert (code, out) == (5, "")
        assert "the controller is away; the transaction was aborted: nothing is written" in err
        assert _events(headrace_client, headrace_scope, "t") == []


@pytest.mark.parametrize("end", [b"2\n", b"{\n"])
def test_a_part_that_others_have_committed_is_no_load(
    load: Load, headrace_client: Headrace, headrace_scope: str, end: bytes
):
    transactions = headrace_client.admin.transactions

    class Input(io.BytesIO):
        """Another client commits the transaction before the second line is read."""

        def read1(self, size: int | None = -1, /) -> bytes:
            data = super().read1(2)
            if data == end:
                (transaction,) = transactions.list_open(headrace_scope, "t")
                transactions.commit(headrace_scope, "t", transaction.transaction)
                while transactions.get(headrace_scope, "t", transaction.transaction).state != "COMMITTED":
                    time.sleep(0.05)
            return data

    code, out, err = load(Input(b"1\n" + end))
    assert (code, out, "all events are written" in err) == (1, "", False)
    assert "was committed by another client, perhaps with a part of the events" in err
