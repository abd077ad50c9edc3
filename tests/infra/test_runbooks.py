"""Each alarm has a runbook whose commands, metrics, log events, queries and log groups exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cdk_assembly import Assembly
from declared_metrics import COUNTED, DECLARED, PROMETHEUS

from headrace import topology
from headrace.cli.application import command_line
from infra.constructs.alarms import PAGE, PAGE_BEFORE_API
from infra.constructs.log_alarms import LOG_ALARMS

pytestmark = [pytest.mark.synth, pytest.mark.xdist_group("synth")]

ROOT = Path(__file__).resolve().parents[2]
PAGE_OF_RUNBOOKS = ROOT / "docs" / "operating" / "runbooks.md"
HEADING = re.compile(r"^### `([\w-]+)`$", re.MULTILINE)
PARTS = ("What users notice.", "Look here.", "Do this.", "When it is over.")
SEVERITY = re.compile(r"\*(Page|Ticket)\.\* ")
COMPOSITES = "AWS::CloudWatch::CompositeAlarm"
MAILS = {"headrace-task-retirement", "headrace-deployment-rolled-back", "headrace-spark-job-failed"}


def _sections() -> dict[str, str]:
    """The text of each section by its heading."""
    text = PAGE_OF_RUNBOOKS.read_text()
    parts = re.split(HEADING, text)
    return {name: body.partition("\n## ")[0] for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _anchor(heading: str) -> str:
    return heading.lower()


@pytest.fixture
def alarms(
    default_assembly: Assembly, smallest_assembly: Assembly, external_assembly: Assembly
) -> dict[str, dict[str, Any]]:
    """All alarms of all choices, composite ones too, by name."""
    return {
        name: resource.properties
        for each in (default_assembly, smallest_assembly, external_assembly)
        for type_ in ("AWS::CloudWatch::Alarm", COMPOSITES)
        for name, resource in each.named(type_, "AlarmName").items()
    }


def _linked(properties: dict[str, Any]) -> str:
    """The anchor at the end of a description."""
    matched = re.fullmatch(r".+: docs/operating/runbooks\.md#([a-z0-9-]+)", properties["AlarmDescription"])
    assert matched is not None, properties["AlarmDescription"]
    return matched[1]


def test_each_alarm_has_a_section_and_no_section_lacks_one(alarms):
    anchors = {_anchor(heading) for heading in _sections()}
    assert {_linked(properties) for properties in alarms.values()} == anchors - MAILS
    assert anchors >= MAILS


def test_mails_of_rules_have_sections(default_assembly: Assembly):
    topic = default_assembly.only("AWS::SNS::Topic").logical_id
    rules = default_assembly.named("AWS::Events::Rule", "Name")
    mailing = {
        name for name, rule in rules.items() if [each["Arn"] for each in rule.properties["Targets"]] == [{"Ref": topic}]
    }
    assert mailing == MAILS


@pytest.mark.parametrize(("name", "text"), _sections().items(), ids=list(_sections()))
def test_a_section_has_its_severity_and_four_parts(name, text):
    assert SEVERITY.match(text.strip()), name
    places = [text.find(f"**{part}**") for part in PARTS]
    assert places == sorted(places)
    assert min(places) > 0
    assert all(text.count(f"**{part}**") == 1 for part in PARTS)


def test_names_with_an_index_share_the_section_of_their_kind(alarms):
    """The link leads to the alarm's own name, once zone, queue and function are left out."""
    for name, properties in alarms.items():
        pattern = _linked(properties).replace("-zone-", r"-\d+-")
        pattern = pattern.replace("-queue-", r"-[\w-]+-").replace("-function-", r"-[\w-]+-")
        assert re.fullmatch(rf"{pattern}(-\d+[hm](-\d)?)?", name), (name, pattern)


def test_pages_are_the_parts_of_the_alarm_that_wakes(default_assembly: Assembly, external_assembly: Assembly):
    said = {name for name, text in _sections().items() if text.strip().startswith("*Page.*")}
    raised: set[str] = set()
    for each in (default_assembly, external_assembly):
        composites = each.named(COMPOSITES, "AlarmName")
        rule = str(composites[PAGE].properties["AlarmRule"])
        assert PAGE_BEFORE_API in rule
        assert "headrace-api-5xx" in rule
        part = composites[PAGE_BEFORE_API]
        ids = re.findall(r"'Fn::GetAtt': \['(\w+)', 'Arn'\]", str(part.properties["AlarmRule"]))
        raised |= {_linked(each.get(part.stack, {"Ref": id_}).properties) for id_ in ids}
    of_one_copy = {"headrace-containers-given-up"}
    assert {_anchor(name) for name in said} == raised | of_one_copy | {PAGE, "headrace-api-5xx"}


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def test_commands_exist():
    commands = {each for each in _quoted(PAGE_OF_RUNBOOKS.read_text()) if re.match(r"headrace [a-z-]", each)}
    assert len(commands) > 10
    for command in commands:
        found: Any = command_line()
        for word in command.split()[1:]:
            if word.startswith("--"):
                assert word in {option for each in found.params for option in each.opts}, command
            elif hasattr(found, "list_commands"):
                assert word in found.list_commands(None), command
                found = found.get_command(None, word)
        assert not hasattr(found, "list_commands"), f"{command} is a group of commands"


def test_metrics_exist():
    text = PAGE_OF_RUNBOOKS.read_text()
    for name in re.findall(r"`((?:headrace|process)_\w+)`", text):
        assert name in PROMETHEUS, name
    reported = {each for each in _quoted(text) if re.fullmatch(r"([A-Z][a-z0-9]+){2,}", each)} - {"SlowDown"}
    errors = {each for each in reported if each.endswith("Error")}
    assert reported - errors <= DECLARED | COUNTED
    assert "AckP99Ms" in text


def test_log_events_exist():
    documented = (ROOT / "docs/operating/log-lines.md").read_text()
    events = set(re.findall(r"`event=(\w+)", PAGE_OF_RUNBOOKS.read_text()))
    assert len(events) > 10
    assert not {event for event in events if f"| `{event}` |" not in documented}
    assert {each.event for each in LOG_ALARMS} <= events, "what raises an alarm is named"


def test_saved_queries_exist(default_assembly: Assembly):
    queries = set(default_assembly.named("AWS::Logs::QueryDefinition", "Name"))
    named = set(re.findall(r"`(headrace/[a-z ]+)`", PAGE_OF_RUNBOOKS.read_text()))
    assert named
    assert named <= queries


def test_log_groups_exist(default_assembly: Assembly, external_assembly: Assembly, smallest_assembly: Assembly):
    assemblies = (default_assembly, external_assembly, smallest_assembly)
    groups = {name for each in assemblies for name in each.named("AWS::Logs::LogGroup", "LogGroupName")}
    named = {each for each in _quoted(PAGE_OF_RUNBOOKS.read_text()) if re.match(r"/(aws|headrace)/", each)}
    of_glue = {"/headrace/spark/error", "/headrace/spark/output"}
    assert named - {"/aws/lambda/FUNCTION"} <= groups | of_glue


def test_named_resources_exist(alarms, default_assembly: Assembly, external_assembly: Assembly):
    named = set(re.findall(r"`(headrace-[\w-]+)`", PAGE_OF_RUNBOOKS.read_text()))
    known = {*alarms, *_sections(), "headrace-alarms", "headrace-port-NUMBER"}
    for each in (default_assembly, external_assembly):
        for type_, name in (
            ("AWS::Lambda::Function", "FunctionName"),
            ("AWS::ECS::Service", "ServiceName"),
            ("AWS::Events::Rule", "Name"),
        ):
            known |= set(each.named(type_, name))
    known |= {queue.name for queue in topology.QUEUES} | {"headrace-store-ZONE"}
    assert named <= known, named - known
    linked = re.findall(r"\]\((?!http)([^)#]*)#?[^)]*\)", PAGE_OF_RUNBOOKS.read_text())
    assert all((PAGE_OF_RUNBOOKS.parent / target).exists() for target in linked if target)
