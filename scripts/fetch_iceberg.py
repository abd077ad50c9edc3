"""Download Iceberg's runtime for Spark from Maven Central, for the tests and for runs on one machine.

    python scripts/fetch_iceberg.py 4.1

Prints the path of the jar, which is kept in a cache and checked against its sha256. Engines on AWS bring their own.
"""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from pathlib import Path
from typing import Final

VERSION: Final = "1.11.0"
RUNTIMES: Final = {
    "3.5": ("3.5_2.12", "94b8e36fc329f0293d44ba9e01b784a56e9501affec1842d898144c51f6e486a"),
    "4.0": ("4.0_2.13", "63c3b812549dc232c1920865ff42436df8604a9bbacd693930985c06bd97e6dc"),
    "4.1": ("4.1_2.13", "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242"),
}
"""By version of Spark: the end of the artifact's name, and the sha256 of its jar. There is none for Spark 4.3."""
SOURCE: Final = "https://repo1.maven.org/maven2/org/apache/iceberg"
JAR_BYTES_MAX: Final = 100_000_000
TIMEOUT_S: Final = 120


def jar_path(spark_version: str) -> Path | None:
    """Where the jar for a version like 4.1 or 4.1.1 is or would be in the cache; None: there is no such jar."""
    runtime = RUNTIMES.get(".".join(spark_version.split(".")[:2]))
    if runtime is None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headrace" / "jars" / f"iceberg-spark-runtime-{runtime[0]}-{VERSION}.jar"


def fetch(spark_version: str) -> Path:
    """The jar in the cache, downloaded if it is not there. Raises ValueError for a version without a jar."""
    path = jar_path(spark_version)
    if path is None:
        raise ValueError(f"no Iceberg runtime for Spark {spark_version}: there is one for {', '.join(RUNTIMES)}")
    if path.exists():
        return path
    suffix, expected = RUNTIMES[".".join(spark_version.split(".")[:2])]
    with urllib.request.urlopen(
        f"{SOURCE}/iceberg-spark-runtime-{suffix}/{VERSION}/{path.name}", timeout=TIMEOUT_S
    ) as r:
        content = r.read(JAR_BYTES_MAX)
    return keep(path, content, expected)


def keep(path: Path, content: bytes, expected: str) -> Path:
    """Write the jar to the cache if it is the one that is pinned. Raises ValueError otherwise."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(f"{path.name} has the sha256 {found}, expected {expected}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(fetch(sys.argv[1]))
    except (ValueError, OSError) as error:
        sys.exit(f"fetch_iceberg: {error}")
