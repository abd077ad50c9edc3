"""Rehearses a deployment: `python -m rehearsal`. `make rehearse` makes what it needs first.

The CDK app is deployed into an emulator of AWS with IAM enforced, used, deployed again, changed under a writer and a
reader, and destroyed. The report is `build/rehearsal/report.md`. The exit code is 1 if a check failed. No process is
left on any ending.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import FrameType

from rehearsal import processes
from rehearsal.deployment import UPDATES, Rehearsal
from rehearsal.paths import REPORT, ROOT, SCRATCH
from rehearsal.report import Report
from scripts.run_nightly import revision


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [each.name for each in UPDATES]
    parser.add_argument(
        "--updates", nargs="*", choices=names, default=names, metavar="NAME", help=f"which of: {', '.join(names)}"
    )
    options = parser.parse_args(arguments)
    # The same for all ways in which a run is ended from outside: the cleaning up below runs.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    with _alone():
        report = Report(revision(), f"{datetime.now(UTC):%Y-%m-%d %H:%M}")
        updates = [each for each in UPDATES if each.name in options.updates]
        try:
            Rehearsal(report).run(updates)
        except KeyboardInterrupt:
            print("rehearsal: interrupted", file=sys.stderr)
        except Exception as error:  # noqa: BLE001 - the report has it as the failure of its phase
            print(f"rehearsal: {type(error).__name__}, see the report", file=sys.stderr)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            processes.kill_all()
            REPORT.write_text(report.text())
    print(f"\n{report.text()}")
    print(f"rehearsal: the report is {REPORT.relative_to(ROOT)}")
    return int(report.has_failed or not report.phases)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _alone() -> Iterator[None]:
    """Two rehearsals in one folder would end each other's processes."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with (SCRATCH / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("rehearsal: another one runs in this folder") from None
        with suppress(OSError):
            os.set_inheritable(lock.fileno(), False)
        yield


if __name__ == "__main__":
    sys.exit(main())
