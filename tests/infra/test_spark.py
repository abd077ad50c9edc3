"""The Glue job runs the example on Glue 6.0 with the library, its pins and the API's address."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from cdk_assembly import Assembly, synthesize

from infra.settings import SPARK_JOBS

STACK = "HeadraceSpark"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "using" / "jobs-on-aws.md"
EXAMPLE_ID = "JobB9D00F9F"
"""Another one would replace the job of each deployment."""
CONTROLLER_URL = (
    "https://<SsmParameterValueheadracecontrollerapiidC96584B6F00A464EAD1953AFF4B05118Parameter>.execute-api."
    "<AWS::Region>.<AWS::URLSuffix>"
)
pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]


@pytest.fixture
def job(assembly: Assembly):
    return assembly.only("AWS::Glue::Job").properties


def test_the_job_runs_on_glue_6(job):
    assert job["GlueVersion"] == "6.0"
    assert job["Command"]["Name"] == "glueetl"
    assert job["MaxRetries"] == 0
    assert job["ExecutionProperty"] == {"MaxConcurrentRuns": 1}


def test_the_job_knows_where_to_read_and_write(job, as_text: Callable[[object], str]):
    arguments = job["DefaultArguments"]
    assert as_text(arguments["--controller"]) == CONTROLLER_URL
    assert arguments["--auth"] == "aws-iam"
    assert as_text(arguments["--checkpoint"]).endswith("/checkpoints/flight-delays")
    assert as_text(arguments["--output"]).endswith("/output/flight-delays")
    assert arguments["--job-bookmark-option"] == "job-bookmark-disable"


def test_the_dependencies_are_installed_with_their_hashes(assembly: Assembly, job, as_text: Callable[[object], str]):
    assert job["DefaultArguments"]["--python-modules-installer-option"] == "-r"
    file = _asset(assembly, as_text(job["DefaultArguments"]["--additional-python-modules"]))
    assert file.suffix == ".txt"
    requirements = file.read_text().replace("\\\n", " ").splitlines()
    names = {requirement.partition("==")[0] for requirement in requirements}
    assert {"httpx", "mmh3"} <= names
    assert not names & {"pyspark", "pyarrow", "numpy", "boto3"}, "Glue brings its own"
    assert all("--hash=sha256:" in requirement for requirement in requirements), requirements


def test_logs_expire(assembly: Assembly, job, as_text: Callable[[object], str]):
    """Glue would make groups that it finds missing, without retention."""
    prefix = job["DefaultArguments"]["--custom-logGroup-prefix"]
    groups = {each.properties["LogGroupName"]: each for each in assembly.resources("AWS::Logs::LogGroup", STACK)}
    assert set(groups) == {f"{prefix}/error", f"{prefix}/output"}
    assert all(group.properties["RetentionInDays"] == 30 for group in groups.values())
    assert job["DefaultArguments"].get("--enable-continuous-cloudwatch-log", "false") == "false"
    (role,) = assembly.resources("AWS::IAM::Role", STACK)
    statements = {each["Sid"]: each for each in role.properties["Policies"][0]["PolicyDocument"]["Statement"]}
    assert statements["WriteLogs"]["Action"] == ["logs:CreateLogStream", "logs:PutLogEvents"]
    assert sorted(as_text(each).partition("log-group:")[2] for each in statements["WriteLogs"]["Resource"]) == [
        f"{group}:*" for group in sorted(groups)
    ]


def test_the_bucket_of_the_job_is_tidied_up(assembly: Assembly, job, as_text: Callable[[object], str]):
    bucket = assembly.only("AWS::S3::Bucket", STACK)
    rules = {rule["Id"]: rule for rule in bucket.properties["LifecycleConfiguration"]["Rules"]}
    assert rules["abort-abandoned-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    assert rules["drop-temporary"]["ExpirationInDays"] == 7
    assert as_text(job["DefaultArguments"]["--TempDir"]).endswith("/" + rules["drop-temporary"]["Prefix"])
    expired = [rule.get("Prefix", "") for rule in rules.values() if "ExpirationInDays" in rule]
    assert expired == ["temporary/"], "Spark reads checkpoints and output back"


def _asset(assembly, url):
    """The file of the assembly that is uploaded to `url`."""
    key = url.rpartition("/")[2]
    assets = json.loads((assembly.directory / "HeadraceSpark.assets.json").read_text())["files"]
    (source,) = {
        asset["source"]["path"]
        for asset in assets.values()
        for destination in asset["destinations"].values()
        if destination["objectKey"] == key
    }
    return assembly.directory / source


def test_the_library_is_on_the_python_path(assembly: Assembly, project: Path, job, as_text: Callable[[object], str]):
    file = _asset(assembly, as_text(job["DefaultArguments"]["--extra-py-files"]))
    with zipfile.ZipFile(file) as archive:
        files = (path.relative_to(project) for path in (project / "headrace").rglob("*") if path.is_file())
        left_out = {"bridge", "console", "local", "__pycache__"}  # the synth of the copy may write byte code into it
        library = {path.as_posix() for path in files if not left_out.intersection(path.parts)}
        assert sorted(archive.namelist()) == sorted(library)
        assert archive.testzip() is None


@pytest.fixture(scope="module")
def with_all_jobs(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    return synthesize(project, tmp_path_factory.mktemp("cdk.jobs.out"), spark_jobs=", ".join(SPARK_JOBS))


@pytest.mark.nightly
def test_every_other_job_can_be_deployed(with_all_jobs: Assembly, assembly: Assembly, as_text: Callable[[object], str]):
    """The example keeps its logical id: another resource could not be created under the name in use."""
    jobs = with_all_jobs.named("AWS::Glue::Job", "Name")
    assert set(jobs) == {"headrace-flight-delays", *(f"headrace-{name}" for name in SPARK_JOBS)}
    assert jobs["headrace-flight-delays"].logical_id == assembly.only("AWS::Glue::Job").logical_id == EXAMPLE_ID
    roles = with_all_jobs.resources("AWS::IAM::Role", STACK)
    assert "headrace-write-streams" in as_text(roles[0].properties["ManagedPolicyArns"][0])
    (without,) = assembly.resources("AWS::IAM::Role", STACK)
    assert "headrace-read-streams" in as_text(without.properties["ManagedPolicyArns"][0]), "the example only reads"
    statements = {each["Sid"]: each for each in roles[0].properties["Policies"][0]["PolicyDocument"]["Statement"]}
    readable = {as_text(each).rpartition("/")[2] for each in statements["ReadCode"]["Resource"]}
    for name in SPARK_JOBS:
        job = jobs[f"headrace-{name}"].properties
        script = as_text(job["Command"]["ScriptLocation"]).rpartition("/")[2]
        assert script in readable, "the role may read the script"
        assert "--checkpoint" not in job["DefaultArguments"]
        assert as_text(job["DefaultArguments"]["--controller"]) == CONTROLLER_URL
        assert job["Timeout"] <= 8 * 60
    (rule,) = [
        resource
        for resource in with_all_jobs.resources("AWS::Events::Rule")
        if "jobName" in as_text(resource.properties)
    ]
    assert set(rule.properties["EventPattern"]["detail"]["jobName"]) == set(jobs)


def test_only_the_job_with_iceberg_uses_the_catalog(
    with_all_jobs: Assembly, assembly: Assembly, as_text: Callable[[object], str]
):
    jobs = with_all_jobs.named("AWS::Glue::Job", "Name")
    arguments = jobs["headrace-stream-to-iceberg"].properties["DefaultArguments"]
    assert (arguments["--format"], arguments["--datalake-formats"]) == ("iceberg", "iceberg")
    settings = as_text(arguments["--conf"]).split(" --conf ")
    catalog = "spark.sql.catalog.glue_catalog"
    assert f"{catalog}.catalog-impl=org.apache.iceberg.aws.glue.GlueCatalog" in settings
    assert [
        setting
        for setting in settings
        if setting.startswith(f"{catalog}.warehouse=s3://") and setting.endswith("/iceberg")
    ]
    others = [job for name, job in jobs.items() if name != "headrace-stream-to-iceberg"]
    assert not [job for job in others if {"--conf", "--datalake-formats"} & set(job.properties["DefaultArguments"])]

    statements = _statements(with_all_jobs)
    assert statements["UseTables"]["Action"] == [
        "glue:CreateTable", "glue:GetDatabase", "glue:GetTable", "glue:UpdateTable",
    ]  # fmt: skip
    (database,) = with_all_jobs.resources("AWS::Glue::Database", STACK)
    name = database.properties["DatabaseInput"]["Name"]
    resources = [as_text(each).rpartition(":")[2] for each in statements["UseTables"]["Resource"]]
    assert resources == ["catalog", f"database/{name}", f"table/{name}/*"]
    assert "UseTables" not in _statements(assembly)
    assert not assembly.resources("AWS::Glue::Database", STACK)


def _statements(assembly: Assembly):
    roles = assembly.resources("AWS::IAM::Role", STACK)
    return {each["Sid"]: each for each in roles[0].properties["Policies"][0]["PolicyDocument"]["Statement"]}


def test_the_guide_creates_the_same_job_on_glue_5(assembly: Assembly, job):
    """What the page says of a job by hand: all arguments but those of CDK, of the example, and of Glue 6.0."""
    (text,) = re.findall(r"^cat > job\.json <<END\n(.*?)^END$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    by_hand = json.loads(text)
    arguments, by_hand_arguments = job["DefaultArguments"], by_hand["DefaultArguments"]
    of_cdk = {"--job-language", "--enable-metrics", "--enable-observability-metrics"}
    of_glue_6 = {"--python-virtual-env-storage-prefix"}
    assert set(by_hand_arguments) == set(arguments) - of_cdk - of_glue_6 - {"--checkpoint", "--output"}
    same = [name for name, value in by_hand_arguments.items() if "$" not in value]
    assert {name: by_hand_arguments[name] for name in same} == {name: arguments[name] for name in same}
    assert (by_hand["WorkerType"], by_hand["NumberOfWorkers"]) == (job["WorkerType"], job["NumberOfWorkers"])
    connection = assembly.only("AWS::Glue::Connection").properties["ConnectionInput"]["Name"]
    assert by_hand["Connections"] == {"Connections": [connection]}
    assert by_hand["GlueVersion"] == "5.1"


def test_without_the_job_there_is_no_stack_for_it(smallest_assembly: Assembly):
    assert "HeadraceSpark" not in smallest_assembly.templates
