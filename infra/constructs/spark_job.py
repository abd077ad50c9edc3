"""A Glue 6.0 job that runs a script of `glue_jobs/` with the library, in the network of the segment stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import aws_cdk as cdk
from aws_cdk import aws_glue as glue
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from infra.constructs.acknowledgements import acknowledge

LOG_GROUP_PREFIX = "/headrace/spark"
ICEBERG_CATALOG = "glue_catalog"
ICEBERG_DATABASE = "headrace"
ICEBERG_PREFIX = "iceberg/"
"""Tables are `glue_catalog.headrace.NAME`, with their files below this prefix of the bucket of the jobs."""
LOG_KEY_REASON = "Logs are encrypted with the key of CloudWatch Logs; they hold no events, so no key of their own."
BOOKMARK_REASON = "Bookmarks are off: the progress of the job is its Spark checkpoint in the encrypted bucket."


@dataclass(frozen=True, slots=True)
class JobDeclaration:
    """A job: its script in `glue_jobs/`, its default arguments, and its limits.

    The arguments `checkpoint` and `output` are paths in the bucket of the jobs. A job without defaults for them gets
    them, like the stream, when it is started, and may run several times at once. `writes_streams`: its role may write
    to streams, too.
    """

    name: str
    script: str
    description: str
    timeout: cdk.Duration = field(default_factory=lambda: cdk.Duration.hours(1))
    workers: int = 2
    checkpoint: str | None = None
    output: str | None = None
    runs_at_once: int = 5
    writes_streams: bool = False
    iceberg: bool = False
    """Whether it writes tables of the Glue catalog, in Iceberg's format."""

    @property
    def job_name(self) -> str:
        return f"headrace-{self.name}"


FLIGHT_DELAYS = JobDeclaration(
    name="flight-delays",
    script="flight_delays.py",
    description="Delays per carrier and hour of a stream of flights",
    checkpoint="checkpoints/flight-delays",
    output="output/flight-delays",
    runs_at_once=1,  # one checkpoint, one writer
)
"""The example, which every deployment with `spark_job` has."""

OTHER_JOBS = {
    job.name: job
    for job in (
        JobDeclaration(
            name="stream-to-lake",
            script="stream_to_lake.py",
            description="Stores a stream of JSON objects as Parquet files, each event once",
            timeout=cdk.Duration.hours(8),
        ),
        JobDeclaration(
            name="stream-to-iceberg",
            script="stream_to_lake.py",
            description="Stores a stream of JSON objects in an Iceberg table, each event once",
            timeout=cdk.Duration.hours(8),
            iceberg=True,
        ),
        JobDeclaration(
            name="replay",
            script="replay.py",
            description="Copies the events between two times into Parquet files or another stream",
            timeout=cdk.Duration.hours(8),
            writes_streams=True,
        ),
        JobDeclaration(
            name="windowed-counts",
            script="windowed_counts.py",
            description="Counts and sums in windows of event time, from a stream into another stream",
            timeout=cdk.Duration.hours(8),
            writes_streams=True,
        ),
        JobDeclaration(name="report", script="report.py", description="Rates, skew and lag of a stream as a page"),
    )
}
"""The jobs that the setting `spark_jobs` adds, by name."""


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What the jobs of a deployment share."""

    library: s3_assets.Asset
    requirements: s3_assets.Asset
    bucket: s3.IBucket
    connection: glue.IConnection
    role: iam.IRole
    controller_url: str


class SparkJob(glue.PySparkEtlJob):
    """The job of a declaration. `script` is the asset with its file."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        declared: JobDeclaration,
        *,
        script: s3_assets.Asset,
        environment: JobEnvironment,
    ) -> None:
        library = environment.library
        super().__init__(
            scope,
            id_,
            job_name=declared.job_name,
            description=declared.description,
            glue_version=glue.GlueVersion.V6_0,
            role=environment.role,
            script=glue.Code.from_bucket(script.bucket, script.s3_object_key),
            extra_python_files=[glue.Code.from_bucket(library.bucket, library.s3_object_key)],
            connections=[environment.connection],
            worker_configuration=glue.WorkerConfiguration(
                worker_type=glue.WorkerType.G_1X,
                number_of_workers=declared.workers,
            ),
            timeout=declared.timeout,
            max_retries=0,
            max_concurrent_runs=declared.runs_at_once,
            # Its log group, which would never expire, is of older versions: since 5.0 Glue logs while the job runs.
            continuous_logging=glue.ContinuousLoggingProps(enabled=False),
            default_arguments=dict(_arguments(declared, environment)),
        )
        acknowledge(self, "AwsSolutions-GL1", LOG_KEY_REASON)
        acknowledge(self, "AwsSolutions-GL3", BOOKMARK_REASON)


def _arguments(declared: JobDeclaration, environment: JobEnvironment) -> Mapping[str, str]:
    bucket = environment.bucket
    paths = {"--checkpoint": declared.checkpoint, "--output": declared.output}
    return (
        {
            "--additional-python-modules": environment.requirements.s3_object_url,
            "--python-modules-installer-option": "-r",
            "--custom-logGroup-prefix": LOG_GROUP_PREFIX,
            "--TempDir": bucket.s3_url_for_object("temporary/"),
            "--python-virtual-env-storage-prefix": bucket.s3_url_for_object("python/"),
            "--job-bookmark-option": "job-bookmark-disable",
            "--controller": environment.controller_url,
            "--auth": "aws-iam",
        }
        | {name: bucket.s3_url_for_object(path) for name, path in paths.items() if path is not None}
        | (_iceberg_arguments(bucket) if declared.iceberg else {})
    )


def _iceberg_arguments(bucket: s3.IBucket) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{ICEBERG_CATALOG}"
    settings = {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog",
        f"{catalog}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{catalog}.warehouse": bucket.s3_url_for_object(ICEBERG_PREFIX.rstrip("/")),
    }
    return {
        "--format": "iceberg",
        "--datalake-formats": "iceberg",
        # Glue takes one argument --conf, whose value holds the others.
        "--conf": " --conf ".join(f"{name}={value}" for name, value in settings.items()),
    }
