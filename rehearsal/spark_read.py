"""Reads a stream with a batch of Spark: `python -m rehearsal.spark_read URL SCOPE STREAM`.

Prints the number of events, and the number of different ones.
"""

from __future__ import annotations

import sys

from headrace.spark import register
from headrace.spark.engines.local_session import local_session
from rehearsal.paths import SCRATCH


def main() -> None:
    url, scope, stream = sys.argv[1:]
    directory = SCRATCH / "spark"
    directory.mkdir(parents=True, exist_ok=True)
    spark = local_session(directory, "rehearsal")
    try:
        register(spark)
        options = {"controller": url, "auth": "aws-iam", "scope": scope, "stream": stream}
        events = spark.read.format("headrace").options(**options).load().select("event").collect()
        print(len(events), len({bytes(row["event"]) for row in events}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
