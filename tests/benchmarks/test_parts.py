"""The processes that the benchmark measures with: the S3 double, the prototype, the counted store, the experiments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import instructions, prototype
from benchmarks.processor_time import processor_s, processor_s_of_tree
from benchmarks.s3_double import FREE, LIKE_S3, PACES, running_s3_double
from benchmarks.settings import KIB, MIB, AppendLoad, PacedLoad, Settings
from headrace.adapters.s3.chunk_storage import S3ChunkStorage
from headrace.adapters.s3.client import s3_client

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.anyio
@pytest.mark.parametrize("pace", sorted(PACES))
async def test_the_s3_double_takes_objects_and_keeps_none(monkeypatch: pytest.MonkeyPatch, pace: str):
    for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "us-east-1")
    with running_s3_double(pace) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        storage = S3ChunkStorage("bucket", s3_client())
        await storage.put("object", [os.urandom(100), os.urandom(MIB)])
        assert await storage.read("object", 10, 1000) == bytes(1000)
        assert list(await storage.list("")) == []
        await storage.delete(["object"])
        storage.close()


@pytest.mark.anyio
async def test_the_s3_double_keeps_objects_if_it_is_told_to(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "us-east-1")
    with running_s3_double("free", keep=True) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
        storage = S3ChunkStorage("bucket", s3_client())
        parts = [os.urandom(100), os.urandom(MIB)]
        await storage.put("object", parts)
        await storage.put("another", [b"other"])
        assert await storage.read("object", 10, 1000) == b"".join(parts)[10:1010]
        assert await storage.read("another", 0, 5) == b"other"
        storage.close()


def test_a_connection_like_s3_takes_time_for_bytes():
    assert FREE.seconds(90_000_000) == 0.0
    assert LIKE_S3.seconds(0) == 0.030
    assert LIKE_S3.seconds(90_000_000) == pytest.approx(1.030)


def test_the_prototype_acknowledges_everything(tmp_path: Path):
    with prototype.running_prototype(tmp_path, 8 * MIB) as port:
        for load in (AppendLoad(100, 30_000), AppendLoad(10 * KIB, 2_000)):
            assert prototype.append_burst(port, load, Settings()).mb_per_s > 0
        paced = prototype.paced_acknowledgements(port, PacedLoad(2_000, 0.1), Settings())
        assert paced.count == 200
        assert 0 < paced.p50_ms <= paced.p99_ms
    assert list(tmp_path.iterdir()) == []


def test_the_counted_store_gets_every_event():
    nothing = instructions.count_run(AppendLoad(100, 0), single=False, below=[])
    for single in (False, True):
        count = instructions.count_run(AppendLoad(100, 3_000), single=single, below=[])
        assert count.appends > nothing.appends >= 1
        assert (count.client, count.store) == (0, 0)


def test_instructions_are_read_from_a_report():
    assert instructions.instructions_in("==1== \n==1== I   refs:      1,234,567\n") == 1_234_567
    assert instructions.instructions_in("==1== Memcheck") == 0


def test_processor_time_of_this_process_grows():
    before_s = processor_s(os.getpid())
    while processor_s(os.getpid()) == before_s:
        sum(range(10_000))
    assert processor_s(os.getpid()) > before_s


def test_processor_time_of_a_tree_includes_ended_children():
    before_s = processor_s_of_tree(os.getpid())
    # More than is asked for: each field of each process is in whole ticks of 10 ms.
    work = "import time\nwhile time.process_time() < 0.5: sum(range(10_000))"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert processor_s_of_tree(os.getpid()) >= before_s + 0.3


@pytest.mark.parametrize(
    ("module", "figure"),
    [
        ("direct_writes", "O_DIRECT + O_DSYNC, 4 KiB blocks, p50"),
        ("upload_reads", "PUT of 32 MiB in whole parts"),
        ("loop_pauses", "packing 4,000 appends, processor"),
        ("commit_ways", "the loop writes, the kernel syncs, p50"),
    ],
)
def test_an_experiment_writes_its_figures(tmp_path: Path, module: str, figure: str):
    command = [sys.executable, "-m", f"benchmarks.{module}", "--rounds", "1", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    written = json.loads(file.read_text())
    assert written["figures"][figure]["median"] > 0
    assert all(len(each["rounds"]) == 1 for each in written["figures"].values())
