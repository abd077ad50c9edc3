"""The check for Java, against made-up ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace.local.failures import LocalStackError, require_jdk


def java(home: Path, output: str, code: int = 0) -> None:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{output}' >&2\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "24-ea" 2025-03-18', 24),
    ],
)
def test_a_new_enough_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, version: int):
    java(tmp_path, output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_jdk() == version


@pytest.mark.parametrize("output", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', "nonsense"])
def test_an_old_or_unknown_java_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str):
    java(tmp_path, output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalStackError, match="install a JDK 17 or newer"):
        require_jdk()


def test_a_java_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java(tmp_path, "", code=1)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalStackError, match="does not run"):
        require_jdk()


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalStackError, match="there is none"):
        require_jdk()


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java(tmp_path / "home", 'openjdk version "21"')
    java(tmp_path / "path", 'openjdk version "11"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert require_jdk() == 21
