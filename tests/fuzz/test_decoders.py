"""Any bytes for every decoder: hypothesis in the default run, and proof that the fuzzer's job runs targets."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.__main__ import CORPUS, DECODERS
from fuzz.decoders import TARGETS

SEEDS = {name: sorted(path.read_bytes() for path in (CORPUS / name).iterdir()) for name in TARGETS}
MEMORY_BYTES_MAX = 20 << 20
"""What a decoder may take for a few hundred bytes, whatever they claim: one largest frame, and little else."""

EXAMPLES = 150
RUNS = 200


def test_every_target_has_a_corpus_and_takes_it():
    assert sorted(TARGETS) == DECODERS
    for name, seeds in SEEDS.items():
        assert seeds
        for data in seeds:
            TARGETS[name](data)


@st.composite
def mutated(draw, seeds):
    """A known input with a few bytes changed, inserted, removed, or cut off; or any bytes."""
    data = bytearray(draw(st.sampled_from(seeds) | st.binary(max_size=300)))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 9))
        data[position : position + length] = draw(
            st.binary(max_size=9) | st.sampled_from([b"\xff" * 4, b"\x7f" + b"\xff" * 7])
        )
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))])


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_are_taken_or_refused(name):
    @settings(max_examples=EXAMPLES)
    @given(mutated(SEEDS[name]))
    def run(data):
        TARGETS[name](data)

    run()


@pytest.mark.parametrize("name", TARGETS)
def test_lengths_that_lie_take_no_memory(name):
    tracemalloc.start()
    try:
        for seed in SEEDS[name]:
            for position in range(len(seed)):
                for lie in (b"\x7f\xff\xff\xff", b"\xff" * 8):
                    TARGETS[name](seed[:position] + lie + seed[position + len(lie) :])
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


if importlib.util.find_spec("atheris"):  # it exists for Linux on x86-64 only

    @pytest.mark.parametrize("name", [DECODERS[0], DECODERS[-1]])
    def test_the_fuzzer_runs_the_target(name, tmp_path):
        command = [
            sys.executable,
            "-m",
            "fuzz",
            name,
            "--runs",
            str(RUNS),
            "--seconds",
            "60",
            "--output",
            str(tmp_path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert f"Done {RUNS} " in done.stderr
