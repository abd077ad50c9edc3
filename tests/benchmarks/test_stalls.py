"""The disk that stalls for a benchmark, and the benchmark of a takeover."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import stalling_disk

ROOT = Path(__file__).resolve().parents[2]
SYNCS = [
    "import os; os.fdatasync(os.open({!r}, os.O_RDWR))",
    "import os; os.pwritev(os.open({!r}, os.O_RDWR), [b'x'], 0, os.RWF_DSYNC)",
]


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize(("store", "stalls"), [("store-0", True), ("store-1", False)])
def test_syncs_of_one_store_stall(store: str, stalls: bool, sync: str, tmp_path: Path):
    site, data = tmp_path / "site", tmp_path / "data"
    site.mkdir()
    data.touch()
    file = tmp_path / "stalls"
    environment = os.environ | stalling_disk.environment(site, file) | {stalling_disk.STORE_VARIABLE: store}
    stalling_disk.stall(file, "store-0", 3600.0, 3600.0)
    command = [sys.executable, "-c", sync.format(str(data))]
    if not stalls:
        subprocess.run(command, env=environment, capture_output=True, check=True, timeout=1800)
        return
    command[-1] = f"print('begins', flush=True); {command[-1]}"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as stalled:
        assert stalled.stdout is not None
        assert stalled.stdout.readline() == b"begins\n"
        with pytest.raises(subprocess.TimeoutExpired):
            stalled.wait(0.5)
        stalled.kill()
    file.unlink()
    subprocess.run(command, env=environment, capture_output=True, check=True)


def test_a_quick_takeover_gives_every_figure(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.takeover_pauses", "--quick", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "takeover-pauses.json").read_text())["figures"]
    pause = figures["pause of the loop, takeover of 16 MiB, appends of 256 KiB, longest"]
    assert pause["beside"] == "pause of the loop, no takeover, longest"
    assert pause["median"] > 0
    assert figures["takeover of 16 MiB, appends of 256 KiB, until all is in memory"]["median"] > 0
