"""The Spark stack: jobs on Glue 6.0 (Spark 4.1, Python 3.13), in the network of the segment stores.

It has the example, and the jobs that the setting `spark_jobs` names. A job calls the HTTP API over the internet (an
HTTP API has no private endpoint), reads history from S3 with links that the controller signs, and the tail from the
segment stores: so it runs in the client subnets, behind a NAT gateway.
The library comes as a zip on the Python path; its few dependencies are locked with their hashes, and Glue installs them
once into a virtual environment that it keeps in the job's bucket.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_glue as glue
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from headrace.topology.caller_access import READ_STREAMS_POLICY, WRITE_STREAMS_POLICY
from infra.constructs.acknowledgements import acknowledge, acknowledge_wildcard
from infra.constructs.deployed_resources import DeployedResources
from infra.constructs.least_privilege import closed_role
from infra.constructs.spark_job import (
    FLIGHT_DELAYS,
    ICEBERG_DATABASE,
    ICEBERG_PREFIX,
    LOG_GROUP_PREFIX,
    OTHER_JOBS,
    JobDeclaration,
    JobEnvironment,
    SparkJob,
)
from infra.constructs.store_network import StoreNetwork
from infra.packaging.project import ROOT
from infra.packaging.spark_archive import write_spark_archive, write_spark_requirements
from infra.settings import Settings

CONNECTION_NAME = "headrace-clients"
_LOG_GROUPS = ("error", "output")
"""Glue's names of the two groups below the prefix: the logs of Spark, and the output of the job."""
INCOMPLETE_UPLOAD_DAYS = 1
TEMPORARY_DAYS = 7
"""Temporary files of Glue and Spark are useless after the end of their run, which may take an hour."""

_JOB_INTERFACE_READS = (
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcAttribute",
    "ec2:DescribeVpcEndpoints",
)
_JOB_INTERFACE_WRITES = ("ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface")

_TABLE_ACTIONS = ("glue:CreateTable", "glue:GetDatabase", "glue:GetTable", "glue:UpdateTable")
"""What an Iceberg table needs of the Glue catalog. No job deletes a table."""

TABLES_REASON = "The tables are named when a job is started: the statement covers those of the jobs' own database."
RESULTS_REASON = "Spark names checkpoint and output files itself: the statement covers the objects of the job's bucket."
GLUE_LOGS_REASON = "Glue names a log stream per run and worker: the statement covers those of the job's log groups."
INTERFACES_REASON = (
    "Glue attaches network interfaces in the name of the job; EC2 has no resource for Describe actions, and CloudWatch "
    "none for PutMetricData, which is limited to the namespace Glue."
)
NEW_INTERFACES_REASON = "The network interfaces do not exist yet: limited to this account and Region."
JOB_BUCKET_REASON = "Scratch of one job, which alone reads and writes it: access logs would show no other reader."
ZONE_REASON = "The zones of a deployment are the operator's choice, and a subnet's zone cannot be looked up otherwise."


class SparkStack(cdk.Stack):
    """Glue jobs, their connection to the network, their bucket and their role."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        settings: Settings,
        *,
        network: StoreNetwork,
        **kwargs: Any,
    ) -> None:
        super().__init__(scope, id_, description="Headrace: Spark jobs on Glue", **kwargs)
        self.bucket = self._bucket(cdk.RemovalPolicy.RETAIN if settings.keep_data else cdk.RemovalPolicy.DESTROY)
        library = self._file("Library", "headrace.zip", write_spark_archive)
        requirements = self._file("Requirements", "requirements.txt", write_spark_requirements)
        declared = (FLIGHT_DELAYS, *(OTHER_JOBS[name] for name in settings.spark_jobs))
        scripts = {job.name: self._script(job) for job in declared}
        self._log_groups()
        tables = self._iceberg_database() if any(job.iceberg for job in declared) else []
        environment = JobEnvironment(
            library=library,
            requirements=requirements,
            bucket=self.bucket,
            connection=self._connection(network),
            role=self._role(
                (library, requirements, *scripts.values()),
                tables,
                writes_streams=any(job.writes_streams for job in declared),
            ),
            controller_url=DeployedResources.seen_from(self).controller_url,
        )
        for job in declared:
            # The example keeps the logical id that deployments have: its name cannot be used by a new resource.
            id_of_job = "Job" if job is FLIGHT_DELAYS else f"Job-{job.name}"
            SparkJob(self, id_of_job, job, script=scripts[job.name], environment=environment)
        cdk.CfnOutput(self, "JobName", value=FLIGHT_DELAYS.job_name)
        cdk.CfnOutput(self, "JobBucketName", value=self.bucket.bucket_name)

    def _script(self, job: JobDeclaration) -> s3_assets.Asset:
        id_ = "Script" if job is FLIGHT_DELAYS else f"Script-{job.name}"
        return s3_assets.Asset(self, id_, path=str(ROOT / "glue_jobs" / job.script))

    def _bucket(self, removal_policy: cdk.RemovalPolicy) -> s3.Bucket:
        """Checkpoints, results and the job's virtual environment; nothing here is the only copy of an event."""
        bucket = s3.Bucket(
            self,
            "JobBucket",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            removal_policy=removal_policy,
            auto_delete_objects=removal_policy is cdk.RemovalPolicy.DESTROY,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="abort-abandoned-uploads",
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(INCOMPLETE_UPLOAD_DAYS),
                ),
                # Only temporary files expire: Spark reads checkpoints and output again, however old they are.
                s3.LifecycleRule(
                    id="drop-temporary", prefix="temporary/", expiration=cdk.Duration.days(TEMPORARY_DAYS)
                ),
            ],
        )
        acknowledge(bucket, "AwsSolutions-S1", JOB_BUCKET_REASON)
        return bucket

    def _file(self, id_: str, name: str, write: Callable[[Path], None]) -> s3_assets.Asset:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            write(file)
            # The constructor of the asset copies the file; the folder is not needed after that.
            return s3_assets.Asset(self, id_, path=str(file))

    def _log_groups(self) -> None:
        """Create the log groups with a retention time: Glue would create them without one."""
        for name in _LOG_GROUPS:
            logs.LogGroup(
                self,
                f"Logs-{name}",
                log_group_name=f"{LOG_GROUP_PREFIX}/{name}",
                retention=logs.RetentionDays.ONE_MONTH,
                removal_policy=cdk.RemovalPolicy.DESTROY,
            )

    def _connection(self, network: StoreNetwork) -> glue.Connection:
        """A connection in the first zone, since it has one subnet. Workers must reach each other on every port."""
        seen = network.seen_from(self)
        workers = ec2.SecurityGroup(
            self, "Workers", vpc=seen.vpc, description="Glue workers (Headrace)", allow_all_outbound=True
        )
        workers.add_ingress_rule(workers, ec2.Port.all_tcp(), "Glue workers among themselves")
        connection = glue.Connection(
            self,
            "Connection",
            connection_name=CONNECTION_NAME,
            type=glue.ConnectionType.NETWORK,
            network=glue.ConnectionNetwork.subnet(seen.client_subnet),
            security_groups=[workers, seen.clients_group],
        )
        acknowledge(connection, "CloudFormation-Validate::W3010", ZONE_REASON)
        return connection

    def _iceberg_database(self) -> list[str]:
        """The database of the tables; the names in the catalog that a job with Iceberg may read and change."""
        glue.CfnDatabase(
            self,
            "IcebergDatabase",
            catalog_id=self.account,
            database_input=glue.CfnDatabase.DatabaseInputProperty(
                name=ICEBERG_DATABASE,
                description="Iceberg tables of Headrace's Spark jobs",
                location_uri=self.bucket.s3_url_for_object(ICEBERG_PREFIX.rstrip("/")),
            ),
        )
        return [
            self.format_arn(service="glue", resource="catalog", arn_format=cdk.ArnFormat.NO_RESOURCE_NAME),
            self.format_arn(service="glue", resource="database", resource_name=ICEBERG_DATABASE),
            self.format_arn(service="glue", resource="table", resource_name=f"{ICEBERG_DATABASE}/*"),
        ]

    def _role(self, assets: tuple[s3_assets.Asset, ...], tables: list[str], *, writes_streams: bool) -> iam.IRole:
        """The role of all jobs. It may write to streams only if one of them does, and only to the given tables."""
        account_ec2 = self.format_arn(service="ec2", resource="*")
        resources = DeployedResources.seen_from(self)
        log_streams = [resources.log_streams_arn(f"{LOG_GROUP_PREFIX}/{name}") for name in _LOG_GROUPS]
        connection = [self.format_arn(service="glue", resource="catalog", arn_format=cdk.ArnFormat.NO_RESOURCE_NAME)]
        connection += [self.format_arn(service="glue", resource="connection", resource_name=CONNECTION_NAME)]
        objects = self.bucket.arn_for_objects("*")
        role = closed_role(
            self,
            "Role",
            service="glue.amazonaws.com",
            description="Glue job of Headrace",
            statements=[
                _allow("ReadCode", ["s3:GetObject"], [a.bucket.arn_for_objects(a.s3_object_key) for a in assets]),
                _allow("ListJobBucket", ["s3:ListBucket"], [self.bucket.bucket_arn]),
                _allow("UseJobBucket", ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"], [objects]),
                _allow("ReadConnection", ["glue:GetConnection"], connection),
                *([_allow("UseTables", list(_TABLE_ACTIONS), tables)] if tables else []),
                _allow("WriteLogs", ["logs:CreateLogStream", "logs:PutLogEvents"], log_streams),
                _allow("FindNetwork", list(_JOB_INTERFACE_READS), ["*"]),
                _allow("AttachToNetwork", list(_JOB_INTERFACE_WRITES), [account_ec2]),
                iam.PolicyStatement(
                    sid="TagInterfaces",
                    actions=["ec2:CreateTags", "ec2:DeleteTags"],
                    resources=[account_ec2],
                    conditions={"ForAllValues:StringEquals": {"aws:TagKeys": ["aws-glue-service-resource"]}},
                ),
                iam.PolicyStatement(
                    sid="PutMetrics",
                    actions=["cloudwatch:PutMetricData"],
                    resources=["*"],
                    conditions={"StringEquals": {"cloudwatch:namespace": "Glue"}},
                ),
            ],
        )
        acknowledge_wildcard(role, objects, RESULTS_REASON)
        for arn in tables[-1:]:
            acknowledge_wildcard(role, arn, TABLES_REASON)
        for arn in log_streams:
            acknowledge_wildcard(role, arn, GLUE_LOGS_REASON)
        acknowledge_wildcard(role, account_ec2, NEW_INTERFACES_REASON)
        acknowledge_wildcard(role, "*", INTERFACES_REASON)
        id_, policy = ("WriteStreams", WRITE_STREAMS_POLICY) if writes_streams else ("ReadStreams", READ_STREAMS_POLICY)
        role.add_managed_policy(iam.ManagedPolicy.from_managed_policy_name(self, id_, policy))
        return role.without_policy_updates()


def _allow(sid: str, actions: list[str], resources: list[str]) -> iam.PolicyStatement:
    return iam.PolicyStatement(sid=sid, actions=actions, resources=resources)
