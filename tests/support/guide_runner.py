"""Runs the blocks of a guide against a local stack, as a reader would who types them in order.

The guides use the scope `shop` and the address at which `headrace up` listens. Each run has a scope and a folder of its
own, so that pages do not meet. Python blocks of a page share their names.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guide_blocks import Block

import headrace.client
from headrace.client import AsyncHeadrace, Headrace, connect
from headrace.client.headrace import DEFAULT_URL

SCOPE = re.compile(r"\bshop\b")


class GuideRunner:
    """Runs blocks in one scope and one folder."""

    def __init__(self, url: str, scope: str, folder: Path) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._url, self._scope, self._folder = url, scope, folder

    def run(self, block: Block, page: str) -> str:
        """Returns what the block prints, with the name of the scope as the guide has it."""
        text = SCOPE.sub(self._scope, block.text)
        printed = self._python(text, block.line, page) if block.language == "python" else self._shell(text)
        return printed.replace(self._scope, "shop")

    def _python(self, text: str, line: int, page: str) -> str:
        printed = io.StringIO()
        text = text.replace(DEFAULT_URL, self._url) if "httpx" in text else text
        code = compile("\n" * (line - 1) + text, page, "exec")
        with contextlib.redirect_stdout(printed), contextlib.chdir(self._folder):
            exec(code, self.names)  # noqa: S102 - text of this project
        return printed.getvalue()

    def _shell(self, text: str) -> str:
        text = text.replace(DEFAULT_URL, self._url).replace("localhost:10080", self._url.removeprefix("http://"))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._folder,
            env=os.environ | {"PATH": path, "HEADRACE_URL": self._url, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        assert "works until release" not in done.stderr, f"{text}\nuses an old name: {done.stderr}"
        return done.stdout


@contextlib.contextmanager
def clients_of(url: str) -> Iterator[None]:
    """`connect` and `AsyncHeadrace` of the guides reach this stack in place of the one on the usual port."""

    clients: list[Headrace] = []

    def connect_here(**options: Any) -> Headrace:
        clients.append(connect(url, **options))
        return clients[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headrace.client, "connect", connect_here)
        patch.setattr(headrace.client, "AsyncHeadrace", lambda **options: AsyncHeadrace(url, **options))
        try:
            yield
        finally:
            for client in clients:
                client.close()
