"""What a wheel has in addition to the sources, as a hook of hatch.

- Files of npm packages: a checkout has them in node_modules, not in git. An editable installation needs none: the
  console finds the file of the checkout, if it is there.
- With HEADRACE_COMPILED=1 in the environment, the modules of `[tool.headrace.compiled]` as machine code. Such a wheel
  is for one Python on one kind of processor. The build fails if a module cannot be compiled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = {"node_modules/htmx.org/dist/htmx.min.js": "headrace/console/static/htmx.min.js"}
COMPILED = "HEADRACE_COMPILED"
GROUP, EXTRA = "compiler", "segment-store"
"""The compiler, and what the compiled modules use: mypy knows its types, so the code is the one that was tested."""


class BuildHook(BuildHookInterface):
    """Adds the files to what is packed. A source archive has them where a checkout has them."""

    def dependencies(self) -> list[str]:
        """What must be installed for the build, with the versions of requirements.lock."""
        return locked(Path(self.root)) if is_compiled_build() and self.target_name == "wheel" else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for source, target in FILES.items():
            path = Path(self.root) / source
            if not path.is_file():
                raise FileNotFoundError(f"{source} is missing: run `make node_modules/.installed` before the build")
            build_data["force_include"][str(path)] = target if self.target_name == "wheel" else source
        if is_compiled_build() and self.target_name == "wheel":
            self._compile(build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch)

    _scratch: Path | None = None
    """Where the modules are compiled. Its files must be there until the wheel is packed."""

    def _compile(self, build_data: dict[str, Any]) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="headrace-compiled-"))
        directory = self._scratch / "compiled"
        script = Path(self.root) / "scripts" / "compile_modules.py"
        subprocess.run([sys.executable, script, directory, self.root], check=True)
        build_data.update(pure_python=False, infer_tag=True)
        for library in directory.rglob("*.so"):
            build_data["force_include"][str(library)] = str(library.relative_to(directory))


def is_compiled_build() -> bool:
    return os.environ.get(COMPILED) == "1"


def locked(root: Path) -> list[str]:
    """The pins of the compiler and of what the compiled modules use.

    Raises:
        KeyError: one of them is not in requirements.lock.
    """
    pins = dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", (root / "requirements.lock").read_text(), re.MULTILINE))
    project = tomllib.loads((root / "pyproject.toml").read_text())
    needed = [
        *project["dependency-groups"][GROUP],
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"][EXTRA],
    ]
    names = [re.split(r"[^A-Za-z0-9-]", requirement, maxsplit=1)[0] for requirement in needed]
    return [f"{name}=={pins[name]}" for name in names]
