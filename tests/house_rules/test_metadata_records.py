"""Only `headrace.metadata` knows the keys and bodies of records: other packages use its reads and writes."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
PORT = "headrace.ports.metadata_store"
MESSAGES = {"headrace.metadata.request_messages", "headrace.metadata.transaction_messages"}
"""Their bodies are those of queue messages."""

EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "headrace/adapters/dynamodb/record_item.py": (
        {"Key"},
        "an adapter makes a record of an item, whatever the record means",
    ),
    "headrace/adapters/dynamodb/table_items.py": ({"Key"}, "as above"),
    "headrace/adapters/memory/metadata_store.py": ({"Key"}, "as above"),
    "headrace/controller/operations/update_stream.py": (
        {"configuration_fields", "decode_configuration"},
        "a dead letter keeps the parameters of an undone update: a configuration as JSON, as in the stream's record",
    ),
    "headrace/segmentstore/tables/index_store.py": (
        {"Key"},
        "the body of this record of the segment store is part of the model: model/table_indexes.py",
    ),
    "headrace/segmentstore/tiering/chunk_directory.py": (
        {"Key"},
        "as above: model/chunks.py and model/chunks.py",
    ),
}
"""What modules outside `headrace.metadata` may use of keys and bodies, and the reason."""


def _modules() -> list[str]:
    packages = ["headrace", "functions", "segmentstore_fargate", "glue_jobs", "infra"]
    listed = subprocess.run(
        ["git", "ls-files", *(f"{package}/*.py" for package in packages)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [path for path in listed.stdout.splitlines() if (ROOT / path).exists()]
    return [path for path in paths if not path.startswith(("headrace/metadata/", "headrace/ports/"))]


def _known_of_records(source: str) -> set[str]:
    """The names that a module uses and that make a key, or make or read a body."""
    tree = syntax_tree(source)
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    found = {name for module, name in imported.values() if _is_of_body(module, name)}
    return found | {"Key" for local in called if imported.get(local) == (PORT, "Key")}


def _is_of_body(module: str, name: str) -> bool:
    is_record = module.startswith("headrace.metadata") and module not in MESSAGES
    return is_record and (name.startswith("decode_") or name.endswith(("_body", "_fields")))


@pytest.mark.parametrize("path", _modules())
def test_a_module_does_not_know_keys_and_bodies(path: str):
    assert _known_of_records((ROOT / path).read_text()) == EXCEPTIONS.get(path, (set(), ""))[0]


def test_the_rule_finds_keys_and_bodies():
    assert _known_of_records("from headrace.ports.metadata_store import Key\nx = Key('a', 'b')") == {"Key"}
    assert _known_of_records("from headrace.metadata.truncation import decode_truncation") == {"decode_truncation"}
    assert _known_of_records("from headrace.metadata.truncation import truncation_body as b") == {"truncation_body"}
    assert _known_of_records("from headrace.metadata.request_messages import message_body") == set()
    assert _known_of_records("from headrace.ports.metadata_store import Key\nx: Key") == set()
