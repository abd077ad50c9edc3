"""The command line: reports of complete and of interrupted runs, and which deliberate bugs count."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from simulation import __main__ as command
from simulation.runs import Run, run_seed


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    return command.main()


def test_run_reports_its_seeds(monkeypatch, capsys):
    assert run_command(monkeypatch, "run", "--seeds", "2", "--processes", "1") == 0
    assert capsys.readouterr().out.startswith("2 seeds, ")


def test_interrupted_run_reports_and_fails(monkeypatch, capsys):
    def interrupted(first: int, processes: int) -> Iterator[Run]:
        yield run_seed(first)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_runs", interrupted)
    assert run_command(monkeypatch, "run", "--seeds", "2") == 1
    assert "\n1 seeds, " in capsys.readouterr().out


def test_state_that_is_too_rare_fails_a_run(monkeypatch, capsys):
    assert run_command(monkeypatch, "run", "--seeds", "1", "--each", "1000", "--processes", "1") == 1
    assert "reached too rarely: state recovery served" in capsys.readouterr().out


def found_unless(*missed: str):
    def seeds_until_caught(mutation: command.Mutation, _seeds: int) -> tuple[int, str] | None:
        return None if mutation.name in missed else (1, "I1")

    return seeds_until_caught


def test_all_numbers_of_the_design_are_caught_once(monkeypatch, capsys):
    monkeypatch.setattr(command, "seeds_until_caught", found_unless())
    monkeypatch.setattr(command.store_mutations, "seeds_until_caught", found_unless())
    assert run_command(monkeypatch, "mutations") == 0
    assert capsys.readouterr().out.endswith("\n27 of 27 caught\n")


def test_number_needs_all_its_variants(monkeypatch, capsys):
    monkeypatch.setattr(command, "seeds_until_caught", found_unless("17b", "15d"))
    monkeypatch.setattr(command.store_mutations, "seeds_until_caught", found_unless())
    assert run_command(monkeypatch, "mutations") == 1
    assert capsys.readouterr().out.endswith("\n25 of 27 caught\n")
