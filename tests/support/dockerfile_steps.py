"""Runs the steps of a Dockerfile in folders and virtual environments, where there is no docker.

Each stage has a folder that stands for `/`, and an environment of its own. What a stage is made from is run again for
it. Packages of the system are not installed: a test says which ones it expects, and has them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.packaging.byte_code import find_interpreter

ROOTS: Final = ("/opt/", "/var/lib/")
"""Absolute paths that steps name, which are in the folder of the stage instead."""
_STAGE: Final = re.compile(r"FROM (?P<base>\S+)(?: AS (?P<name>\S+))?$")
_SYSTEM_PACKAGES: Final = '#!/bin/sh\necho "$@" >> "$APT_LOG"\n'


@dataclass(frozen=True, slots=True)
class Stage:
    """`base` is an image, or the name of another stage."""

    base: str
    name: str
    steps: tuple[tuple[str, str], ...]


def stages(dockerfile: str) -> list[Stage]:
    """The stages in order, with each instruction and its arguments. Comments are left out."""
    kept = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    lines = [line for line in "\n".join(kept).replace("\\\n", " ").splitlines() if line]
    found: list[tuple[str, str, list[tuple[str, str]]]] = []
    for line in lines:
        instruction, _, arguments = line.partition(" ")
        if instruction == "FROM":
            match = _STAGE.match(line)
            assert match is not None, line
            found.append((match["base"], match["name"] or "", []))
        else:
            found[-1][2].append((instruction, arguments))
    return [Stage(base, name, tuple(steps)) for base, name, steps in found]


@dataclass
class ImageBuild:
    """One build. `python` makes the environments."""

    context: Path
    folder: Path
    python: str
    stages: Sequence[Stage]
    system_packages: list[str] = field(default_factory=list)
    """What was asked of apt-get, a line each call."""

    def run(self, stage: Stage, environment: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
        """Run a stage, after those that it needs. Returns its working directory, and the environment of a container.

        Raises:
            RuntimeError: a step failed, or is of an unknown kind.
        """
        root = self.folder / (stage.name or "last")
        shutil.rmtree(root, ignore_errors=True)
        (root / "tools").mkdir(parents=True)
        for name in ROOTS:
            (root / name.strip("/")).mkdir(parents=True)
        self._run(["uv", "venv", "--quiet", "--seed", "--python", self.python, str(root / "venv")], root, environment)
        installer = root / "tools" / "apt-get"
        installer.write_text(_SYSTEM_PACKAGES)
        installer.chmod(0o755)
        shown = {
            **environment,
            "PATH": f"{root / 'tools'}:{root / 'venv' / 'bin'}:{environment['PATH']}",
            "APT_LOG": str(root / "apt.log"),
        }
        directory = root
        for instruction, arguments in self._all_steps(stage):
            if instruction == "WORKDIR":
                directory = Path(self._placed(arguments, root))
                directory.mkdir(parents=True, exist_ok=True)
            elif instruction in ("ENV", "ARG"):
                shown |= dict(pair.split("=", 1) for pair in arguments.split())
            elif instruction == "COPY":
                self._copy(arguments, root, directory, environment)
            elif instruction == "RUN":
                self._run(["sh", "-e", "-c", self._placed(arguments, root)], directory, shown)
            elif instruction not in ("USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"):
                raise RuntimeError(f"unknown instruction {instruction} {arguments}")
        log = root / "apt.log"
        self.system_packages += log.read_text().splitlines() if log.exists() else []
        return directory, shown

    def _all_steps(self, stage: Stage) -> list[tuple[str, str]]:
        inherited = [each for each in self.stages if each.name == stage.base]
        return [*(step for each in inherited for step in self._all_steps(each)), *stage.steps]

    def _copy(self, arguments: str, root: Path, directory: Path, environment: Mapping[str, str]) -> None:
        *options, source, target = arguments.split()
        origin = self.context / source
        if options:
            (name,) = (option.removeprefix("--from=") for option in options)
            (stage,) = (each for each in self.stages if each.name == name)
            self.run(stage, environment)
            origin = Path(self._placed(source, self.folder / name))
        destination = directory / target
        if origin.is_dir():
            shutil.copytree(origin, destination, dirs_exist_ok=True)
        else:
            shutil.copy(origin, destination)

    def _placed(self, text: str, root: Path) -> str:
        for name in ROOTS:
            text = re.sub(rf"(?<![\w.]){name}", f"{root}{name}", text)
        return text

    def _run(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def nearest_python(version: str) -> str:
    """A Python of that version if the machine has one, else the Python of the tests."""
    return str(find_interpreter(version) or sys.executable)


def clean_environment() -> dict[str, str]:
    """That of the tests, without what tells Python where the checkout is."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
