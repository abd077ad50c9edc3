"""What the README shows, done literally against a running local stack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CURL_HOST = "localhost:10080"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_curl_and_python_examples(running: dict[str, Any]):
    url = running["endpoints"]["http"]
    calls = next(block for block in _blocks("sh") if "curl" in block).replace(CURL_HOST, url.removeprefix("http://"))
    shell = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", calls.replace("curl ", "curl --silent --show-error --fail ")],
        capture_output=True,
        text=True,
    )
    assert shell.returncode == 0, shell.stderr
    assert '"scopeName":"shop"' in shell.stdout
    assert shell.stdout.count('"segmentId"') == 2

    example = next(block for block in _blocks("python") if "headrace.writer(" in block)
    environment = os.environ | {"HEADRACE_URL": url}
    python = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert python.returncode == 0, python.stderr
    printed = python.stdout.splitlines()
    assert len(printed) == 1000
    orders = [re.fullmatch(r"(\d+) (\d+) b'order (\d+)'", line) for line in printed]
    assert sorted(int(order[3]) for order in orders if order) == list(range(1000))


def test_the_commands_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for block in _blocks("sh") for name in re.findall(r"^make (\w+)", block, re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


def test_files_that_the_readme_names_exist():
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
