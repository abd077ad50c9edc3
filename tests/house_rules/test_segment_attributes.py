"""The ids of segment attributes are declared in one module, with a docstring each, and no two are equal."""

from __future__ import annotations

import ast
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

from headrace.model import segment_attributes

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = Path(segment_attributes.__file__)
ID_BITS_MIN = 66
"""An id of an attribute has 128 bits. Constants of hash functions have 64, and 2^64 has 65."""

IDS = {
    "CREATION_TIME": "80000000000000000000000000000000",
    "EVENT_COUNT": "80000000000000000000000000000001",
    "SCALE_POLICY_TYPE": "80000000000000000000000000000002",
    "SCALE_POLICY_RATE": "80000000000000000000000000000003",
    "ROLLOVER_SIZE": "80000000000000000000000000000004",
    "SEGMENT_TYPE": "80000000000000000000000000000009",
    "TABLE_KEY_LENGTH": "80000000000000000000000000000020",
    "TABLE_BATCHES": "80000000000000000000000000000021",
    "MAY_LACK_BYTES": "80000000000000000000000000000022",
    "REVISION_MARK": "7df9a874246cc9d69397cdd19ead68c5",
    "MARK_INCARNATION": "3c1d6a0f58e24b7a9d02c46b7e91f385",
    "CONTROLLER_WRITER": "68656164726163652d636f6e74726f6c",
}
"""They are stored with segments, so they never change."""


def declared_ids(source: str) -> list[str]:
    """The constant expressions with the value of an id, with their lines: numbers of 66 to 128 bits."""
    tree = syntax_tree(source)
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if _is_id(node)]


def _is_id(node: ast.AST) -> bool:
    value = _value(node)
    return value is not None and ID_BITS_MIN <= value.bit_length() <= 128


def _value(node: ast.AST) -> int | None:
    """The number that the expression of constants makes, as ids are written; None for any other expression."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(ast.Constant(value=int(number)), ast.LShift(), ast.Constant(value=int(bits))) if bits <= 128:
            return number << bits
        case ast.Call(ast.Attribute(ast.Name("int"), "from_bytes"), [ast.Constant(value=bytes(written)), *_]):
            return int.from_bytes(written)
        case ast.Attribute(ast.Call(ast.Name("UUID"), [ast.Constant(value=str(written))]), "int"):
            return int(written.replace("-", ""), 16)
    return None


def _sources() -> list[Path]:
    """Those of the product. Programs that test it have writers of their own."""
    command = ["git", "ls-files", "headrace/*.py", "functions/*.py", "segmentstore_fargate/*.py", "glue_jobs/*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.exists() and path != REGISTRY]


@pytest.mark.parametrize(
    "line",
    [
        "MAY_LACK_BYTES = 1 << 127 | 34",
        "MARK = 0x7DF9A874_246C_C9D6_9397_CDD19EAD68C5",
        'WRITER = int.from_bytes(b"headrace-control")',
        'MARK = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5").int',
    ],
)
def test_a_declared_id_is_found(line: str):
    assert declared_ids(line)


@pytest.mark.parametrize(
    "line", ["MAX = (1 << 63) - 1", "one = one % (1 << 64)", "FACTOR = 0x87C37B91114253D5", "one = number << 64 | 3"]
)
def test_other_numbers_are_allowed(line: str):
    assert declared_ids(line) == []


def test_ids_are_declared_in_one_module():
    found = [f"{path.relative_to(ROOT)}: {line}" for path in _sources() for line in declared_ids(path.read_text())]
    assert found == [], f"declare it in {REGISTRY.relative_to(ROOT)}"


def test_ids_never_change():
    declared = {
        name: f"{value:032x}"
        for name, value in vars(segment_attributes).items()
        if name.isupper() and name[0] != "_" and isinstance(value, int) and value.bit_length() >= ID_BITS_MIN
    }
    assert declared == IDS


def test_ids_are_different():
    assert len(set(IDS.values())) == len(IDS)


def test_each_id_has_a_docstring():
    body = syntax_tree(REGISTRY.read_text()).body
    explained = {
        node.target.id
        for node, after in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    assert set(IDS) <= explained
