"""Reads a stream from head to tail again and again, to keep a segment store busy with reads until it is terminated.

`python -m benchmarks.catch_up_reader URL SCOPE STREAM` prints `ready` after its first bytes.
"""

from __future__ import annotations

import sys

from headrace.client import connect


def main(url: str, scope: str, stream: str) -> None:
    said = False
    with connect(url) as headrace:
        tail = headrace.admin.stream_cut(scope, stream, at="latest")
        while True:
            with headrace.reader(scope, stream, start="earliest", end=tail) as reader:
                while reader.read_batch() is not None:
                    if not said:
                        print("ready", flush=True)
                        said = True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
