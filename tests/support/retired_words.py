"""Words that this project no longer uses, and the terms that it uses in their place.

`make words` counts per folder what is left and lists every place; `python tests/support/retired_words.py PATH...` lists
the places in these files or folders. The house test of the same name keeps all of them at zero.

Identifiers count as prose: `give_up_scale` and `GiveUpScale` are read as "give up scale".
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SCANNED = (
    "headrace",
    "functions",
    "segmentstore_fargate",
    "glue_jobs",
    "infra",
    "docs",
    ".github",
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "Makefile",
    "app.py",
    "pyproject.toml",
    ".pre-commit-config.yaml",
)
"""Tests, benchmarks, the demo and the fuzzers are not scanned."""
"""Tests, benchmarks, the demo and the fuzzers follow when the folders that they exercise are clean."""

CLEAN = (
    "docs",
    "functions/__init__.py",
    "functions/controller",
    "functions/environment.py",
    "functions/error_responses.py",
    "functions/http_api.py",
    "functions/observability.py",
    "functions/openapi.py",
    "functions/processors/__init__.py",
    "functions/processors/aborts.py",
    "functions/processors/batches.py",
    "functions/processors/commits.py",
    "functions/processors/dead_letters.py",
    "functions/processors/fifo_queues.py",
    "functions/processors/scaling_reports.py",
    "functions/processors/schedule_ticks.py",
    "functions/processors/store_tasks.py",
    "functions/processors/stream_requests.py",
    "functions/processors/tables.py",
    "functions/processors/tick_messages.py",
    "functions/processors/tick_work.py",
    "functions/processors/ticks.py",
    "functions/time_limits.py",
    "functions/wiring.py",
    "headrace/adapters/disk",
    "headrace/adapters/dynamodb",
    "headrace/adapters/memory",
    "headrace/adapters/s3",
    "headrace/adapters/sqs",
    "headrace/adapters/tcp",
    "headrace/api",
    "headrace/cli",
    "headrace/bridge",
    "headrace/client",
    "headrace/controller/__init__.py",
    "headrace/controller/acceptance.py",
    "headrace/controller/engine.py",
    "headrace/controller/operations",
    "headrace/controller/steps",
    "headrace/controller/write_dead_letter.py",
    "headrace/deployment_defaults.py",
    "headrace/local",
    "headrace/metadata",
    "headrace/codec",
    "headrace/controller/services",
    "headrace/controller/ticks",
    "headrace/model",
    "headrace/ports",
    "headrace/replication",
    "headrace/spark",
    "headrace/segmentstore/cache",
    "headrace/segmentstore/owned_container.py",
    "headrace/segmentstore/containers",
    "headrace/segmentstore/lease_gate.py",
    "headrace/segmentstore/log",
    "headrace/segmentstore/metrics.py",
    "headrace/segmentstore/metrics.py",
    "headrace/segmentstore/owned_container.py",
    "headrace/topology",
    "headrace/wire",
    "glue_jobs",
    ".github",
    "ARCHITECTURE.md",
    "infra",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "app.py",
    "pyproject.toml",
)
"""Folders and files without a retired word. A folder is added when it has been rewritten, and is never removed."""

SUFFIXES = (".py", ".md", ".toml", ".yml", ".yaml")
NAMES = ("Makefile", "CODEOWNERS")
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")

RETIRED = (
    # Literary function words.
    (r"nobody", "no client, no process, ..."),
    (r"somebody", "another client, another process, ..."),
    (r"whoever|whomever", "the caller, the process that ..."),
    (r"whatever", "any, all; or name it"),
    (r"anew", "again"),
    (r"beside", "next to, in addition to"),
    (r"shall|shan't", "must; for a plan, will"),
    (r"thereof|therein|thereby", "of it, in it, by it"),
    (r"lies?|lain", "is, is stored in"),
    (r"stands", "is, is recorded in; for an abbreviation, means"),
    (r"(has|have|had|having) to do with", "concerns, belongs to"),
    (r"it is none", "it returns None, there is no ..."),
    (r"(?<!there )is no(?! (longer|more))", "is not a ..."),
    # Terms with a standard term of the field.
    (r"chores?|dut(y|ies)", "maintenance task, periodic task"),
    (r"rounds?(?! (trips?|robin))", "pass, maintenance task, attempt"),
    (r"(leave|leaves|leaving|left) memory|let(s|ting)?( \w+)? go", "evict, discard"),
    (r"un ?stored|not stored yet", "not tiered, not flushed"),
    (r"appends before bytes", "backfill"),
    (r"packers?", "batch accumulator"),
    (r"los(e|es|ing|t)( (a|the))? race|race(s)? lost", "optimistic retry, compare-and-set loop"),
    (r"bur(y|ies|ied|ying|ial)|letters? about", "dead-letter handling, tombstone"),
    (r"abandon(s|ed|ing|ment)?|(give|gives|gave|given|giving) up", "roll back, rollback; discard; stop retrying"),
    (r"(take|takes|took|taken|taking)( \w+)? back", "roll back, rollback"),
    (r"doubles? of (aws|dynamo|s3|sqs)|aws doubles?", "emulator"),
    (r"cures?|cured|curing", "patch, fix"),
    (r"leash(es)?", "parent watchdog"),
    (r"life|lives", "incarnation, lifetime; is stored in"),
    (r"nouns?|subjects?", "resource"),
    (r"faces?|twins?", "synchronous API, asynchronous API"),
    (r"in good order", "after a clean shutdown, graceful shutdown"),
    (r"(go|goes|going|gone|went) on with", "take over, continue, resume"),
    (r"holders?|deposed?|deposes|standing", "owner; fenced; state"),
    (r"(leave|leaves|leaving|left)( \w+){1,2} alone", "throttle, back-pressure"),
    (r"what (is|was|are|were) asked", "request"),
)

EXCEPTIONS = {
    "headrace-containers-given-up": "the name of an alarm that deployments have",
    "ContainersGivenUp": "the name of a metric that deployments have",
    "headrace_cache_unstored_bytes": "the name of a metric that deployments have",
    "chore_retry": "a documented log event",
    "chores_failed": "a documented log event",
    "holder_waited_for": "a documented log event",
    "unstored_segments=": "a field of a log line",
    "give_up_after_s": "a published option of the writer",
    "ContainerStanding": "the name of a schema in the OpenAPI document",
    "How it stands with a container": "the description of that schema",
    '"given_up"': "a field of the stored container map",
    "given_up=[[": "a field of the stored container map",
    '"subject"': "a field of a dead letter in the HTTP API, in --json and in its record",
    ".subject": "the attribute of a dead letter for that field",
    "subject=": "the attribute of a dead letter for that field",
    "subject: str": "the attribute of a dead letter for that field",
    "subject: Annotated": "the attribute of a dead letter for that field",
    "`subject`": "the attribute of a dead letter for that field",
    "= subject": "the subject of a token, a term of RFC 7519",
    "SubjectKeyIdentifier": "a class of the package cryptography",
    "SubjectAlternativeName": "a class of the package cryptography",
    "SubjectPublicKeyInfo": "a name of the package cryptography",
    ".subject_name(": "a method of the package cryptography",
    "subjectAltName": "a name of Python's module ssl",
    "LIFE": "the setting HEADRACE_TOKEN_LIFE_S and its bounds",
    "life_s": "the value of that setting",
    "round(": "Python's built-in function",
    "END_OF_LIFE": "part of a variable of the JSII runtime",
    "Configure a reader group anew": "a summary in the published API document",
    "tells one life of a name from another": "a description in the published API document",
    "How many bytes lie between": "a summary in the published API document",
    "in whatever unit its events have": "a description in the published API document",
    "abort-abandoned-uploads": "the id of a lifecycle rule that deployments have",
}
"""Published strings and ordinary uses, removed from a line before it is scanned, each with the reason."""

_CODE_SPAN = re.compile(r"`[^`]*`|\]\([^)]*\)")
"""Documents quote the names of the code and of files. The folder of the code accounts for them."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PATTERNS = tuple((re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), standard) for pattern, standard in RETIRED)


@dataclass(frozen=True)
class Found:
    """A retired word in a line, and what the project says in its place."""

    path: str
    line: int
    word: str
    standard: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: write {self.standard}"


def scan(text: str, path: str = "", exceptions: Iterable[str] = EXCEPTIONS) -> Iterator[Found]:
    """The retired words of a text, line by line."""
    for number, line in enumerate(text.splitlines(), 1):
        for exempt in exceptions:
            line = line.replace(exempt, " ")
        if path.endswith(".md"):
            line = _CODE_SPAN.sub(" ", line)
        words = " ".join(_CAMEL.sub(" ", line.replace("_", " ").replace("-", " ")).split())
        for pattern, standard in _PATTERNS:
            for match in pattern.finditer(words):
                yield Found(path, number, match[0], standard)


def scan_paths(paths: Iterable[str]) -> list[Found]:
    """The retired words of the tracked files in these folders, and of the paths of these files."""
    found: list[Found] = []
    for path in _tracked(paths):
        found += (Found(path, 0, hit.word, hit.standard) for hit in scan(Path(path).with_suffix("").as_posix()))
        found += scan((ROOT / path).read_text(), path)
    return found


def _tracked(paths: Iterable[str]) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in sorted(set(listed.stdout.splitlines())) if _is_prose(path) and (ROOT / path).is_file()]


def _is_prose(path: str) -> bool:
    return (path.endswith(SUFFIXES) or path.split("/")[-1] in NAMES) and not path.endswith(GENERATED)


def _folder(path: str) -> str:
    return "/".join(path.split("/")[:2]) if path.startswith(("headrace/", "docs/")) else path.split("/")[0]


def main(arguments: list[str]) -> int:
    hits = scan_paths(arguments or SCANNED)
    for hit in hits:
        print(hit)
    counts = Counter(_folder(hit.path) for hit in hits)
    print("\nretired words left:")
    for folder, count in sorted(counts.items()):
        print(f"{count:7d}  {folder}")
    print(f"{sum(counts.values()):7d}  together")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
