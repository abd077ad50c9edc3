"""`python -m benchmarks.metadata_calls`: processor time of a metadata call, through pynamodb and by botocore alone.

Answers are made up in front of the HTTP connection, so a call is what Python does: building and signing the request,
and reading the answer. Both sides take turns within each round, because a shared machine changes its speed. The import
is measured in processes of its own, also in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
from botocore.awsrequest import AWSResponse

from benchmarks.machine import machine_facts, versions
from benchmarks.plain_metadata_calls import PlainMetadataCalls
from benchmarks.results import Results, document
from headrace.adapters.dynamodb.client import dynamodb_client
from headrace.adapters.dynamodb.metadata_store import DynamoMetadataStore
from headrace.ports.metadata_store import Check, Create, Delete, Key, Replace

ROUNDS = 200
CALLS_PER_ROUND = 10
WARM_UP_CALLS = 30
IMPORT_ROUNDS = 15
TABLE = "metadata"
KEYS = [Key("streams/scope/stream", f"{number:04d}") for number in range(20)]
BODY = {
    "scope": "scope",
    "name": "stream",
    "epoch": 3,
    "segments": [{"id": number, "low": number / 8, "high": (number + 1) / 8} for number in range(4)],
    "state": "active",
}
CALLS: dict[str, Callable[[Any], object]] = {
    "get": lambda store: store.get(KEYS[0]),
    "put, if absent": lambda store: store.write(Create(KEYS[0], BODY)),
    "update, if version": lambda store: store.write(Replace(KEYS[0], BODY, 3)),
    "delete, if version": lambda store: store.write(Delete(KEYS[0], 3)),
    "batch get of 10": lambda store: store.get_many(KEYS[:10]),
    "query of 20": lambda store: store.query(KEYS[0].partition, first="0", last="9", limit=100),
    "transaction of 3": lambda store: store.write(Replace(KEYS[0], BODY, 3), Create(KEYS[1], BODY), Check(KEYS[2], 1)),
}
PLAIN_IMPORTS = "headrace.ports.metadata_store, botocore.session, botocore.config"
ADAPTER_IMPORTS = "headrace.adapters.dynamodb.metadata_store"
IMPORT_PROGRAM = """
import time
from headrace.adapters.dynamodb.client import dynamodb_client
before_s = time.process_time()
import {modules}
dynamodb_client()
print(time.process_time() - before_s)
"""
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_REGION": "us-east-1"}


class _Body:
    """An answer's bytes as botocore reads them from a connection."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        yield self._content


def answered_client(session: botocore.session.Session) -> Any:
    """A client with the settings of the metadata store whose requests never reach a connection."""
    client: Any = dynamodb_client(session)
    answers = {operation: json.dumps(answer).encode() for operation, answer in _answers().items()}

    def answer(request: Any, **_: Any) -> AWSResponse:
        target = request.headers["X-Amz-Target"]
        operation = (target.decode() if isinstance(target, bytes) else target).rpartition(".")[2]
        headers: Any = {"content-type": "application/x-amz-json-1.0"}
        raw: Any = _Body(answers[operation])
        return AWSResponse(request.url, 200, headers, raw)

    client.meta.events.register("before-send.dynamodb.*", answer)
    return client


def _answers() -> dict[str, Any]:
    body = json.dumps(BODY, separators=(",", ":"))
    items = [
        {
            "partition": {"S": key.partition},
            "sort": {"S": key.sort},
            "version": {"N": "3"},
            "body": {"S": body},
            "write_id": {"S": "abcdefghijklmnop"},
        }
        for key in KEYS
    ]
    return {
        "GetItem": {"Item": items[0]},
        "PutItem": {},
        "DeleteItem": {},
        "TransactWriteItems": {},
        "BatchGetItem": {"Responses": {TABLE: items[:10]}, "UnprocessedKeys": {}},
        "Query": {"Items": items, "Count": len(items), "ScannedCount": len(items)},
    }


def measure_calls(results: Results, rounds: int) -> None:
    """Microseconds of processor time a call, of both sides in turns."""
    session = botocore.session.get_session()
    plain = PlainMetadataCalls(TABLE, answered_client(session))
    adapter = DynamoMetadataStore(TABLE, answered_client(session))
    for name, call in CALLS.items():
        sides: list[tuple[str, Any, str | None]] = [
            (f"{name}, botocore alone", plain, None),
            (f"{name}, pynamodb", adapter, f"{name}, botocore alone"),
        ]
        for _, store, _ in sides:
            _processor_time_s(call, store, WARM_UP_CALLS)
        for _ in range(rounds):
            for figure, store, beside in sides:
                used_s = _processor_time_s(call, store, CALLS_PER_ROUND)
                results.add(figure, used_s / CALLS_PER_ROUND * 1e6, "us", beside=beside)


def _processor_time_s(call: Callable[[Any], object], store: Any, calls: int) -> float:
    before_s = time.process_time()
    for _ in range(calls):
        call(store)
    return time.process_time() - before_s


def measure_imports(results: Results, rounds: int) -> None:
    """Milliseconds until a new process has its client, with byte code that an earlier process has left."""
    plain, adapter = "import and client, botocore alone", "import and client, pynamodb"
    with tempfile.TemporaryDirectory() as byte_code:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": byte_code, "PYTHONDONTWRITEBYTECODE": ""}
        for number in range(rounds + 1):
            for figure, modules, beside in ((plain, PLAIN_IMPORTS, None), (adapter, ADAPTER_IMPORTS, plain)):
                command = [sys.executable, "-c", IMPORT_PROGRAM.format(modules=modules)]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                if number:  # the first one compiles
                    results.add(figure, float(done.stdout) * 1000, "ms", beside=beside)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metadata_calls", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds to take medians of")
    parser.add_argument("--import-rounds", type=int, default=IMPORT_ROUNDS, help="processes that import each side")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory for metadata-calls.json")
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    results, facts = Results(), machine_facts()
    measure_calls(results, options.rounds)
    measure_imports(results, options.import_rounds)
    settings = {"rounds": options.rounds, "import_rounds": options.import_rounds, "calls_per_round": CALLS_PER_ROUND}
    written = document(results, machine=facts, versions=versions(), settings=settings)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "metadata-calls.json").write_text(json.dumps(written, indent=2) + "\n")
    print(results.table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
