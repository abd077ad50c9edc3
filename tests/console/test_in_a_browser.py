"""The console in Chromium: no errors on the browser's console, no findings of axe, and all by keyboard.

A page is given some time to settle, which a busy machine may need more of: so this is a nightly test.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.console.server import ConsoleServer

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "node_modules"
ORDERS = "/streams/shop/orders"
PATHS = [
    "/streams?scope=shop",
    ORDERS,
    f"{ORDERS}?key=customer-7&from=-5m",
    f"{ORDERS}/transactions",
    "/groups?scope=shop",
    "/groups/shop/slow",
    "/tables?scope=shop",
    "/tables/shop/prices",
    "/cluster",
    "/dead-letters",
]


def missing() -> str | None:
    """What is not installed that a browser test needs."""
    for command, advice in (("chromium", "Debian: apt-get install chromium"), ("node", "make setup")):
        if shutil.which(command) is None:
            return f"{command} is not on the PATH ({advice})"
    if not (MODULES / "playwright-core").is_dir() or not (MODULES / "axe-core").is_dir():
        return "the npm packages are not installed (make node_modules/.installed)"
    return None


def check(
    console: ConsoleServer, folder: Path, paths: list[str], widths: list[int], stream: str | None = ORDERS
) -> list[str]:
    tasks = folder / "tasks.json"
    document = {
        "address": console.address,
        "paths": paths,
        "stream": stream,
        "without_stores": None if stream else ORDERS,
        "modules": str(MODULES),
        "chromium": shutil.which("chromium"),
        "widths": widths,
        "settle_ms": 1_500,
    }
    tasks.write_text(json.dumps(document))
    script = Path(__file__).parent / "check_pages.mjs"
    ran = subprocess.run(["node", str(script), str(tasks)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    wrong: list[str] = json.loads(ran.stdout)
    return wrong


@pytest.mark.nightly
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_all_pages_are_usable_by_all(console: ConsoleServer, tmp_path: Path):
    assert check(console, tmp_path, PATHS, [1280, 390]) == []


@pytest.mark.nightly
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_pages_with_forms_are_usable_by_all(changing: ConsoleServer, tmp_path: Path):
    paths = [ORDERS, "/groups/shop/slow", "/groups/shop/slow/reset?to=latest", "/dead-letters"]
    assert check(changing, tmp_path, paths, [1280, 390]) == []


@pytest.mark.nightly
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_live_events_come_from_s3_without_stores(far_console: ConsoleServer, tmp_path: Path):
    assert check(far_console, tmp_path, [ORDERS, "/groups/shop/slow", "/tables/shop/prices"], [1280], None) == []
