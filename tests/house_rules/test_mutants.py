"""The search for changes of the code that no test notices, on a project of one function."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from scripts_under_test import loaded_script

ROOT = Path(__file__).resolve().parents[2]

RULES = '''"""Rules."""


def is_full(count: int, limit: int) -> bool:
    return count >= limit


def is_empty(count: int) -> bool:
    return count == 0
'''

UNIT_TEST = """from rules.room import is_full


def test_room():
    assert is_full(2, 1)
    assert not is_full(0, 1)
"""

SLOW_TEST = """from rules.room import is_full


def test_the_limit_is_full():
    assert is_full(1, 1)
"""


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    module = loaded_script("run_mutants", monkeypatch)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "WORK", tmp_path / "build")
    monkeypatch.setattr(module, "EQUIVALENT", tmp_path / "equivalent.txt")
    return module


def project(tmp_path: Path, equivalent: str = "") -> None:
    files = {
        "rules/__init__.py": "",
        "rules/room.py": RULES,
        "quick/test_room.py": UNIT_TEST,
        "slow/test_room.py": SLOW_TEST,
        "pyproject.toml": "",
        "equivalent.txt": f"# a reason\n{equivalent}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)


EMPTY_IS_NOT = "rules.room.is_empty: return count == 0 => return count != 0"
EMPTY_IS_ONE = "rules.room.is_empty: return count == 0 => return count == 1"
LIMIT = "rules.room.is_full: return count >= limit => return count > limit"


@pytest.mark.nightly
def test_survivors_of_both_kinds_of_tests_are_listed(
    mutants: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    project(tmp_path, EMPTY_IS_ONE + "\n")
    slow = ("pytest", "-qx", "slow")
    monkeypatch.setattr(mutants, "AREAS", (mutants.Area("rules", ("quick",), slow),))
    assert mutants.main(["--minutes", "10"]) == 0
    lines = (tmp_path / "build" / "survivors.txt").read_text().splitlines()
    assert lines == [EMPTY_IS_NOT], "the slow test notices the limit, and one survivor is known to be equivalent"
    monkeypatch.setattr(mutants, "AREAS", (mutants.Area("rules", ("quick",), ("pytest", "-qx", "quick")),))
    assert mutants.main(["--minutes", "10"]) == 0
    assert (tmp_path / "build" / "survivors.txt").read_text().splitlines() == [EMPTY_IS_NOT, LIMIT]
    monkeypatch.setattr(mutants, "AREAS", (mutants.Area("rules", ("quick",), ("pytest", "--no-such-option")),))
    with pytest.raises(SystemExit, match="fails without a mutant"):
        mutants.main(["--minutes", "10"])


def test_a_name_that_no_module_has_is_refused(mutants: ModuleType, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        mutants.main(["--only", "absent"])
    assert "no module has 'absent'" in capsys.readouterr().err


def test_all_areas_and_their_tests_exist(mutants: ModuleType):
    for area in mutants.AREAS:
        assert list((ROOT / area.folder).glob("*.py"))
        assert all((ROOT / tests).is_dir() for tests in area.tests)
