"""What ECS does on Fargate: `python -m rehearsal.fargate` runs the tasks of all services as processes until SIGTERM.

A task runs the program of its image in the build context of that image, with the environment, the secrets and the role
that its task definition declares. Different are the ports, the host and the data directory, and that credentials come
from an address which is given whole. The health check runs as declared, and until its first success more often.

It writes what the rest of the rehearsal needs: `tasks.json`, a note for each settled service, and `events.log`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from rehearsal.emulator import ACCOUNT, REGION, free_port
from rehearsal.emulator_patches import FAILED
from rehearsal.paths import ASSEMBLIES, SCRATCH, SETTLED, TASKS, VOLUMES
from rehearsal.processes import MARK
from rehearsal.task_decisions import FAILED_TASKS_MAX, RunningTask, Service, decide
from rehearsal.task_definitions import TaskDefinition, entrypoint, local_variables

CLUSTER: Final = "headrace"
ARN: Final = f"arn:aws:ecs:{REGION}:{ACCOUNT}"
POLL_S: Final = 0.4
FIRST_CHECKS_S: Final = 1.5
"""Between health checks until the first success. As declared it would be 30 s, for each task of each deployment."""
CREDENTIALS_H: Final = 1
TASK_LIST: Final = SCRATCH / "tasks.json"
EVENTS: Final = SCRATCH / "events.log"
CONTROL: Final = SCRATCH / "fargate.port"
STOP_STORES: Final = "/stop-stores"
"""A POST to this path stops all stores at once, protected or not, as `aws ecs stop-task` does."""
STORES: Final = "headrace-store-"
BAD_EVENTS: Final = ("KILLED", "CANNOT START", "DENIED", "BY ITSELF", "INCOMPLETE", "not sent")
"""Words in lines of the log of events that no rehearsal may have."""


def note(text: str) -> None:
    """A line of the log of events."""
    with EVENTS.open("a") as log:
        log.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")


def events() -> list[str]:
    """The lines of the log of events so far."""
    return EVENTS.read_text().splitlines() if EVENTS.exists() else []


def assumed(role: str, session: str) -> dict[str, str]:
    """Credentials of a role, as the credentials endpoint of ECS answers them."""
    given = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName=session)["Credentials"]
    expiration = datetime.now(UTC) + timedelta(hours=CREDENTIALS_H)
    return {
        "AccessKeyId": given["AccessKeyId"],
        "SecretAccessKey": given["SecretAccessKey"],
        "Token": given["SessionToken"],
        "Expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def client_of(role: str, session: str, service: Any) -> Any:
    """A client of a service with the rights of a role."""
    given = assumed(role, session)
    return boto3.client(
        service,
        aws_access_key_id=given["AccessKeyId"],
        aws_secret_access_key=given["SecretAccessKey"],
        aws_session_token=given["Token"],
    )


class Task:
    """A task and its process."""

    def __init__(self, service: str, definition: TaskDefinition, agent: str) -> None:
        """Start the process. Raises ClientError: the execution role may not read a secret."""
        self.service, self.definition, self.id = service, definition, uuid.uuid4().hex
        self.arn = f"{ARN}:task/{CLUSTER}/{self.id}"
        self.protected_until_s, self.stop_asked_s = 0.0, 0.0
        self.started_s = time.monotonic()
        self.last_success_s: float | None = None
        self._next_check_s = self.started_s + FIRST_CHECKS_S
        self._data = VOLUMES / self.id
        self._data.mkdir(parents=True)
        self.log = TASKS / f"{service}-{self.id[:8]}.log"
        self._context = image_context(definition.image_tag)
        (dockerfile,) = [*self._context.rglob("*Dockerfile")]
        self._environment = self._variables(agent)
        command = [sys.executable if part == "python" else part for part in entrypoint(dockerfile.read_text())]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self._context,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        note(f"{service}: task {self.id[:8]} of revision {definition.revision} started")

    def _variables(self, agent: str) -> dict[str, str]:
        declared = {**self.definition.environment, **self._secrets()}
        injected = {
            "ECS_CONTAINER_METADATA_URI_V4": f"{agent}/{self.id}/v4",
            "ECS_AGENT_URI": f"{agent}/{self.id}/agent",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent}/{self.id}/credentials",
            "AWS_REGION": REGION,
        }
        image = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        emulator = {name: os.environ[name] for name in ("AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", MARK)}
        return image | declared | local_variables(declared, str(self._data), free_port) | injected | emulator

    def _secrets(self) -> dict[str, str]:
        """ECS reads them with the execution role."""
        if not self.definition.secrets:
            return {}
        reader = client_of(self.definition.execution_role, "ecs", "secretsmanager")
        return {
            name: reader.get_secret_value(SecretId=arn)["SecretString"] for name, arn in self.definition.secrets.items()
        }

    def check(self) -> None:
        """Run the health check if it is time."""
        check, now = self.definition.health_check, time.monotonic()
        if self.stop_asked_s or now < self._next_check_s:
            return
        command = [sys.executable if part == "python" else part for part in check.command]
        try:
            code = subprocess.run(
                command,
                cwd=self._context,
                env=self._environment,
                capture_output=True,
                timeout=check.timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = 1
        if code == 0:
            if self.last_success_s is None:
                note(f"{self.service}: task {self.id[:8]} healthy after {now - self.started_s:.0f} s")
            self.last_success_s = time.monotonic()
        pause_s = FIRST_CHECKS_S if self.last_success_s is None else check.interval_s
        self._next_check_s = time.monotonic() + pause_s

    def stop(self) -> None:
        """SIGTERM, and SIGKILL after the stop time-out."""
        if not self.stop_asked_s:
            self.stop_asked_s = time.monotonic()
            self.process.terminate()
            note(f"{self.service}: task {self.id[:8]} gets SIGTERM")
        elif time.monotonic() - self.stop_asked_s > self.definition.stop_timeout_s:
            os.killpg(self.process.pid, signal.SIGKILL)
            note(f"{self.service}: task {self.id[:8]} KILLED after {self.definition.stop_timeout_s:.0f} s")

    def seen(self) -> RunningTask:
        """The task as the rule sees it."""
        now = time.monotonic()
        return RunningTask(
            self.id,
            self.service,
            self.definition.arn,
            is_healthy=self.last_success_s is not None,
            has_failed=self.definition.health_check.has_failed(self.started_s, self.last_success_s, now),
            is_stopping=bool(self.stop_asked_s),
            is_protected=now < self.protected_until_s,
        )

    def clean_up(self) -> str:
        """Remove the volume, as ECS does; says how the task ended."""
        shutil.rmtree(self._data, ignore_errors=True)
        text = self.log.read_text(errors="replace")
        snapshots = text.count("event=last_snapshot")
        clean = sum("event=last_snapshot" in line and "clean=True" in line for line in text.splitlines())
        incomplete = " INCOMPLETE" if "event=close_incomplete" in text else ""
        asked = "" if self.stop_asked_s else " BY ITSELF"
        code = self.process.returncode
        return f"task {self.id[:8]} ended, exit code {code}, {clean} of {snapshots} snapshots clean{incomplete}{asked}"


def image_context(tag: str) -> Path:
    """The build context of an image. Raises LookupError: no assembly has it."""
    for folder in sorted(ASSEMBLIES.glob(f"*/asset.{tag}")):
        return folder
    raise LookupError(f"no assembly has the build context of the image {tag}")


class Fargate:
    """Runs the tasks of all services of the cluster."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.ended = threading.Event()
        self._definitions: dict[str, TaskDefinition] = {}
        self._failed: Counter[str] = Counter()
        self._ecs, self._events = boto3.client("ecs"), boto3.client("events")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Agent,), {"fargate": self}))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        CONTROL.write_text(str(self.server.server_port))

    def run(self) -> None:
        """Until SIGTERM; then all tasks are stopped."""
        signal.signal(signal.SIGTERM, lambda *_: self.ended.set())
        while not self.ended.wait(POLL_S):
            self._take_off_ended()
            try:
                self._step(self._services())
            except (BotoCoreError, ClientError) as error:
                note(f"ECS does not answer: {str(error)[:200]}")
            self._write_list()
        while self.tasks:
            for task in list(self.tasks.values()):
                task.stop()
            time.sleep(POLL_S)
            self._take_off_ended()
        self._write_list()

    def _services(self) -> list[Service]:
        arns = self._ecs.list_services(cluster=CLUSTER)["serviceArns"]
        described = self._ecs.describe_services(cluster=CLUSTER, services=arns)["services"] if arns else []
        return [
            Service(
                each["serviceName"],
                each["taskDefinition"],
                int(each["desiredCount"]),
                int(each["deploymentConfiguration"]["minimumHealthyPercent"]),
                int(each["deploymentConfiguration"]["maximumPercent"]),
                is_active=each["status"] != "INACTIVE",
            )
            for each in described
        ]

    def _step(self, services: list[Service]) -> None:
        for task in list(self.tasks.values()):
            task.check()
        decision = decide(services, [task.seen() for task in self.tasks.values()])
        for service in decision.start:
            if self._failed[service.definition] < FAILED_TASKS_MAX:
                self._start(service)
        for id_ in decision.stop:
            self.tasks[id_].stop()
        for task in list(self.tasks.values()):
            if task.stop_asked_s:
                task.stop()
        for service in services:
            if self._failed[service.definition] >= FAILED_TASKS_MAX:
                (SETTLED / service.name).write_text(f"{FAILED} {service.definition}")
            elif service.name in decision.settled:
                (SETTLED / service.name).write_text(service.definition)

    def _start(self, service: Service) -> None:
        try:
            task = Task(
                service.name, self._definition(service.definition), f"http://127.0.0.1:{self.server.server_port}"
            )
        except (ClientError, LookupError, ValueError) as error:
            self._count_failure(service.name, service.definition)
            note(f"{service.name}: a task CANNOT START: {error}")
        else:
            self.tasks[task.id] = task

    def _definition(self, arn: str) -> TaskDefinition:
        if arn not in self._definitions:
            described = self._ecs.describe_task_definition(taskDefinition=arn)["taskDefinition"]
            self._definitions[arn] = TaskDefinition.described(described)
        return self._definitions[arn]

    def _take_off_ended(self) -> None:
        for task in [each for each in self.tasks.values() if each.process.poll() is not None]:
            del self.tasks[task.id]
            if not task.stop_asked_s or task.seen().has_failed:
                self._count_failure(task.service, task.definition.arn)
            note(f"{task.service}: {task.clean_up()}")
            detail = {
                "lastStatus": "STOPPED",
                "taskArn": task.arn,
                "group": f"service:{task.service}",
                "clusterArn": f"{ARN}:cluster/{CLUSTER}",
                "stoppedReason": "stopped by the rehearsal",
            }
            self._send("ECS Task State Change", task.arn, detail)

    def _count_failure(self, service: str, definition: str) -> None:
        """At the last failure ECS ends the deployment of the service."""
        self._failed[definition] += 1
        if self._failed[definition] == FAILED_TASKS_MAX:
            detail = {
                "eventType": "ERROR",
                "eventName": "SERVICE_DEPLOYMENT_FAILED",
                "deploymentId": f"ecs-svc/{uuid.uuid4().int % 10**19}",
                "reason": "ECS deployment circuit breaker: tasks failed to start.",
            }
            self._send("ECS Deployment State Change", f"{ARN}:service/{CLUSTER}/{service}", detail)

    def _send(self, kind: str, resource: str, detail: dict[str, str]) -> None:
        """An event of ECS."""
        event = {"Source": "aws.ecs", "DetailType": kind, "Resources": [resource], "Detail": json.dumps(detail)}
        try:
            answer = self._events.put_events(Entries=[event])
        except (BotoCoreError, ClientError) as error:
            note(f"an event was not sent: {str(error)[:200]}")
        else:
            if answer["FailedEntryCount"]:
                note(f"an event was not sent: {answer['Entries']}")

    def _write_list(self) -> None:
        seen = [
            {
                "service": task.service,
                "id": task.id,
                "definition": task.definition.arn,
                "healthy": task.last_success_s is not None,
                "stopping": bool(task.stop_asked_s),
                "environment": {
                    name: value
                    for name, value in task._environment.items()
                    if name.startswith("HEADRACE_") and name not in task.definition.secrets
                },
            }
            for task in self.tasks.values()
        ]
        draft = TASK_LIST.with_suffix(".draft")
        draft.write_text(json.dumps(seen))
        draft.replace(TASK_LIST)


class Agent(BaseHTTPRequestHandler):
    """The endpoints that ECS gives a task: metadata, credentials of its role, and protection of the task."""

    fargate: Fargate

    def log_message(self, *_args: Any) -> None:
        """Requests are not logged."""

    def _answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _task(self) -> Task:
        return self.fargate.tasks[self.path.split("/")[1]]

    def do_GET(self) -> None:
        task = self._task()
        if self.path.endswith("/credentials"):
            self._answer(assumed(task.definition.task_role, "task"))
            return
        labels = {
            "com.amazonaws.ecs.task-arn": task.arn,
            "com.amazonaws.ecs.task-definition-version": str(task.definition.revision),
        }
        self._answer({"Labels": labels, "Networks": [{"IPv4Addresses": ["127.0.0.1"]}]})

    def do_PUT(self) -> None:
        """Protection of the task, for which the agent asks ECS with the role of the task."""
        task = self._task()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        minutes = int(asked["ExpiresInMinutes"])
        try:
            client_of(task.definition.task_role, "task", "ecs").update_task_protection(
                cluster=CLUSTER,
                tasks=[task.arn],
                protectionEnabled=asked["ProtectionEnabled"],
                expiresInMinutes=minutes,
            )
        except ClientError as error:
            note(f"{task.service}: task {task.id[:8]} may not be protected: DENIED {error}")
            self._answer({"error": {"Code": "AccessDeniedException", "Message": str(error)}})
            return
        note(f"{task.service}: task {task.id[:8]} is protected for {minutes} minutes")
        task.protected_until_s = time.monotonic() + 60 * minutes
        self._answer({"protection": {"ProtectionEnabled": True, "ExpirationDate": "", "TaskArn": task.arn}})

    def do_POST(self) -> None:
        if self.path == STOP_STORES:
            for task in list(self.fargate.tasks.values()):
                if task.service.startswith(STORES):
                    task.stop()
        self._answer({})


def main() -> None:
    for folder in (SETTLED, TASKS, VOLUMES):
        folder.mkdir(parents=True, exist_ok=True)
    Fargate().run()


if __name__ == "__main__":
    main()
