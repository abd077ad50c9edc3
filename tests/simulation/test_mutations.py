"""Deliberate bugs, each from a seed near one that catches it. `make nightly` begins with the first seed."""

from __future__ import annotations

import pytest

from simulation.mutations import MUTATIONS, applied, seeds_until_caught
from simulation.runs import run_seed

SEEDS_MAX = 150

FIRST_SEEDS = {
    "3": 4,
    "4": 514,
    "5": 86,
    "6": 195,
    "6b": 1521,
    "7": 408,
    "8": 96,
    "9": 88,
    "10": 2,
    "11": 21,
    "12": 11,
    "13": 19,
    "14": 173,
    "15": 67,
    "15b": 3,
    "15c": 4,
    "15d": 632,
    "16": 255,
    "16b": 255,
    "16c": 1,
    "17b": 153,
    "18": 1,
    "20": 45,
    "21": 73,
    "22": 30,
}
"""Seeds that catch them: from 0 on it takes longer. The nightly run finds new ones when runs have changed."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_is_caught_by_its_checker(mutation):
    assert seeds_until_caught(mutation, SEEDS_MAX, FIRST_SEEDS.get(mutation.name, 0)) is not None


def test_mutations_end_with_their_block():
    before = run_seed(0)
    with applied(MUTATIONS[0]):
        assert run_seed(0).violations
    assert run_seed(0) == before
