"""Cuts the part out of requirements.lock that one artefact needs: exact versions, hashes, nothing else.

The lock names the packages that require each package. So this module finds all dependencies of a few direct
requirements without a network and without another resolution. It refuses a requirement that is not in the lock.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?:\s*;\s*(?P<marker>.*?))?\s*\\?$")
_HASH = re.compile(r"^\s+--hash=(?P<hash>sha256:[0-9a-f]{64})\s*\\?$")
_VIA = re.compile(r"^\s+#(?: via|  ) (?P<parent>[A-Za-z0-9._-]+)(?: .*)?$")
_REQUIREMENT_NAME = re.compile(r"^[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One pin of the lock; `required_by` are the names of the packages that asked for it."""

    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]
    required_by: frozenset[str]

    @property
    def pin(self) -> str:
        """`name==version`, with the environment marker if the pin has one."""
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def read_lock(text: str) -> tuple[LockedPackage, ...]:
    """The pins of a lock file as `uv pip compile --generate-hashes` writes it.

    Raises:
        ValueError: a line that is none of pin, hash or comment, or a pin without a hash.
    """
    packages: list[LockedPackage] = []
    current: re.Match[str] | None = None
    hashes: list[str] = []
    parents: list[str] = []

    def close() -> None:
        if current is None:
            return
        if not hashes:
            raise ValueError(f"requirements.lock: {current['name']} has no hash")
        packages.append(
            LockedPackage(
                _normalized(current["name"]),
                current["version"],
                current["marker"],
                tuple(hashes),
                frozenset(map(_normalized, parents)),
            )
        )

    for number, line in enumerate(text.splitlines(), start=1):
        if pin := _PIN.match(line):
            close()
            current, hashes, parents = pin, [], []
        elif hashed := _HASH.match(line):
            hashes.append(hashed["hash"])
        elif current is not None and (via := _VIA.match(line)):
            parents.append(via["parent"])
        elif line.strip() and not line.lstrip().startswith("#"):
            raise ValueError(f"requirements.lock line {number}: neither pin, hash nor comment: {line!r}")
    close()
    return tuple(packages)


def closure(packages: Iterable[LockedPackage], roots: Collection[str]) -> tuple[LockedPackage, ...]:
    """`roots` and everything that they need, in the order of the lock.

    Raises:
        ValueError: a root is not locked.
    """
    packages = tuple(packages)
    needed = {_normalized(root) for root in roots}
    missing = needed - {package.name for package in packages}
    if missing:
        raise ValueError(f"requirements.lock has no pin for {', '.join(sorted(missing))}: run `make lock`")
    while added := {p.name for p in packages if p.required_by & needed} - needed:
        needed |= added
    return tuple(package for package in packages if package.name in needed)


def requirements_text(packages: Iterable[LockedPackage]) -> str:
    """A requirements file with hashes for `uv pip install --require-hashes --no-deps`."""
    return "".join(
        " \\\n    ".join([package.pin, *(f"--hash={value}" for value in package.hashes)]) + "\n" for package in packages
    )


def declared_requirements(pyproject: str, *extras: str) -> frozenset[str]:
    """Names of the direct requirements in `[project]`, those of the named extras included."""
    project = tomllib.loads(pyproject)["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    return _names(requirements)


def declared_group(pyproject: str, group: str) -> frozenset[str]:
    """Names of the requirements in `[dependency-groups]`; the group includes no other."""
    return _names(tomllib.loads(pyproject)["dependency-groups"][group])


def _names(requirements: Iterable[str]) -> frozenset[str]:
    matches = (_REQUIREMENT_NAME.match(requirement) for requirement in requirements)
    return frozenset(_normalized(match[0]) for match in matches if match)


def _normalized(name: str) -> str:
    """As PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()
