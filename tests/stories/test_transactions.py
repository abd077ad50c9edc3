"""A transaction of a Python program that someone ends at the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headrace.client import Headrace, IllegalStateError

Shell = Callable[[str], tuple[int, str, str]]


@pytest.mark.parametrize(("end", "code"), [("commit", "transaction_committed"), ("abort", "transaction_aborted")])
def test_a_transaction_is_ended_at_the_command_line(
    shell: Shell, headrace_client: Headrace, headrace_scope: str, end: str, code: str
):
    stream = f"{headrace_scope}/t"
    assert shell(f"headrace stream create {stream} --segments 1")[0] == 0
    with headrace_client.transactional_writer(headrace_scope, "t", lease_ms=60_000) as writer:
        transaction = writer.begin(label="q/1")
        transaction.write(b"one")
        transaction.flush()
        listed = json.loads(shell(f"headrace transaction list {stream} --json")[1])
        assert [shown["transaction"] for shown in listed["transactions"]] == [transaction.id]
        assert shell(f"headrace transaction {end} {stream} {transaction.id}")[0] == 0
        if end == "commit":
            transaction.commit(wait=True)
        else:
            with pytest.raises(IllegalStateError) as refused:
                transaction.commit()
            assert refused.value.specific_code == code
        with pytest.raises(IllegalStateError) as refused:
            transaction.write(b"two")
        assert refused.value.specific_code == code
    assert shell(f"headrace event read {stream}")[1] == ("one\n" if end == "commit" else "")
