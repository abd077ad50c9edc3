"""No code turns the checks of certificates off. Tests may, to be a peer that does."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from syntax_trees import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
UNCHECKED = {"CERT_NONE", "CERT_OPTIONAL", "_create_unverified_context", "PROTOCOL_TLS"}


def checks_turned_off(source: str) -> list[str]:
    """The places that accept any certificate, or any name in it."""
    found = []
    for node in ast.walk(syntax_tree(source)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in UNCHECKED:
                found.append(f"line {node.lineno}: {name}")
            case ast.Assign(targets=targets) if any(
                isinstance(target, ast.Attribute) and target.attr == "check_hostname" for target in targets
            ):
                found.append(f"line {node.lineno}: check_hostname is assigned")
            case ast.keyword(arg="verify", value=ast.Constant(value=False)):
                found.append(f"line {node.value.lineno}: verify=False")
    return found


def _sources() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.split() if not path.startswith("tests/") and (ROOT / path).exists()]


@pytest.mark.parametrize("path", _sources())
def test_certificates_are_checked(path: str):
    assert checks_turned_off((ROOT / path).read_text()) == []


def test_the_rule_finds_what_it_forbids():
    assert checks_turned_off("context.verify_mode = ssl.CERT_NONE") == ["line 1: CERT_NONE"]
    assert checks_turned_off("context.check_hostname = False") == ["line 1: check_hostname is assigned"]
    assert checks_turned_off("httpx.Client(verify=False)") == ["line 1: verify=False"]
    assert checks_turned_off("ssl._create_unverified_context()") == ["line 1: _create_unverified_context"]
    assert checks_turned_off("context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)") == []
