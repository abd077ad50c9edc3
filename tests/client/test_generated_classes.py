"""The client's synchronous classes are what the generator makes of the asynchronous ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "headrace" / "client"

Edit = Callable[[str], str]


def _generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/generate_synchronous_client.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _edited(directory: Path, module: str, edit: Edit) -> Path:
    """A copy of the client's modules, one of them edited."""
    client = directory / "client"
    shutil.copytree(CLIENT, client, ignore=shutil.ignore_patterns("__pycache__"))
    path = client / module
    before = path.read_text()
    path.write_text(edit(before))
    assert path.read_text() != before
    return client


def test_generated_classes_are_current():
    checked = _generate("--check")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("edited", "before", "after", "stale"),
    [
        pytest.param(
            *(
                "administration/admin.py",
                "async def list_scopes(self)",
                "async def scopes(self)",
                "synchronous_admin.py",
            ),
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            *(
                "administration/tables_admin.py",
                "Returns the names of the",
                "Names of the",
                "synchronous_tables_admin.py",
            ),
            marks=pytest.mark.nightly,
        ),
        ("synchronous/synchronous_table.py", "def put(", "def store(", "synchronous_table.py"),
    ],
    ids=["another-method", "another-docstring", "edited-by-hand"],
)
def test_check_names_a_stale_file(tmp_path: Path, edited: str, before: str, after: str, stale: str):
    client = _edited(tmp_path, edited, lambda text: text.replace(before, after))
    checked = _generate("--check", "--client", str(client))
    assert (checked.returncode, checked.stderr) == (
        1, f"{stale} is not what the asynchronous class says: run `make synchronous`\n",
    )  # fmt: skip
    generated = _generate("--client", str(client))
    assert (generated.returncode, generated.stdout) == (0, f"wrote {client / 'synchronous' / stale}\n")


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("async def get(", "def get(", "KeyValueTable.get is public: make it a coroutine or a property"),
        ("page: int = PAGE_ENTRIES,", "most: int = PAGE_ENTRIES,", "KeyValueTable.entries needs a parameter `page`"),
    ],
    ids=["plain-method", "iterator-without-page"],
)
def test_method_without_a_synchronous_form_is_refused(tmp_path: Path, before: str, after: str, reason: str):
    client = _edited(tmp_path, "key_value_table.py", lambda text: text.replace(before, after))
    refused = _generate("--client", str(client))
    assert refused.returncode != 0
    assert reason in refused.stderr
