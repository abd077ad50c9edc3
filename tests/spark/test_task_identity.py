"""The run of a query, which Spark tells in places that depend on its version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.spark.engines.task_writes import active_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets between pyspark and its JVM
]


def test_the_run_is_known_whatever_the_job_group_is(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("x\n")
    seen: list[str | None] = []

    def handle(batch: DataFrame, _batch_id: int) -> None:
        context = batch.sparkSession.sparkContext
        context.setJobGroup("etl", "a job of the user")
        seen.append(active_run(batch.sparkSession, str(context.getLocalProperty("sql.streaming.queryId"))))

    lines = spark.readStream.text(str(tmp_path / "in"))
    query = lines.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    query.stop()
    assert seen == [str(query.runId)]
    assert active_run(spark, str(query.id)) is None, "it is not running any more"
