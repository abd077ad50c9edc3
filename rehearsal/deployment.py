"""The phases of a rehearsal, in their order."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rehearsal import callers, checks, emulator, fargate, leftovers, live, processes, traffic
from rehearsal.cloud import Cloud, post
from rehearsal.paths import ASSEMBLIES, CDK, LOGS, ROOT, SCRATCH
from rehearsal.report import Phase, Report
from rehearsal.synthesize import BROKEN_IMAGE
from rehearsal.task_decisions import FAILED_TASKS_MAX

SETTINGS: Final = {"keep_data": "false"}
"""Of all deployments: the deletion must leave nothing."""
FIRST: Final = SETTINGS | {"tls": "off", "tokens": "off"}
"""As a deployment of release 0.2.0, which the updates make secure step by step."""
BROKEN: Final = "broken"
STORES_STACK: Final = "HeadraceSegmentStores"
BOOTSTRAP_TARGET: Final = f"aws://{emulator.ACCOUNT}/{emulator.REGION}"
KEPT_ON_START: Final = ("lock", "assemblies")
MADE_FROM: Final = "made-from.txt"
SOURCES: Final = (
    *("headrace", "functions", "segmentstore_fargate", "glue_jobs", "infra", "rehearsal/synthesize.py"),
    *("cdk.json", "pyproject.toml", "requirements.lock"),
)
"""What an assembly is made from."""
POLL_S: Final = 0.5
MAIL_S: Final = 60
TRAFFIC_START_S: Final = 180
TRAFFIC_END_S: Final = 600
STORES_STOP_S: Final = 300


@dataclass(frozen=True, slots=True)
class Update:
    """A deployment with changed settings.

    With `stops_stores` all stores are stopped before it, as docs/operating/deploy.md says.
    """

    name: str
    settings: Mapping[str, str]
    stops_stores: bool = False


_SECURED: Final = {"tokens": "required", "tls": "permissive", "grpc_bridge": "true"}
UPDATES: Final = (
    Update("secured", _SECURED),
    Update("tls-required", _SECURED | {"tls": "required"}),
    Update("one-copy", _SECURED | {"tls": "required", "copies": "1"}, stops_stores=True),
)


class CheckFailedError(RuntimeError):
    """A check of the rehearsal failed."""


def sources_digest(settings: Sequence[str], root: Path = ROOT) -> str:
    """A digest of the sources of the app and of its settings."""
    digest = hashlib.sha256(repr(list(settings)).encode())
    for source in (root / name for name in SOURCES):
        files = [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                content = file.read_bytes()
                digest.update(f"\0{file.relative_to(root).as_posix()}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()


class Rehearsal:
    """One deployment from its bootstrap to its deletion."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._emulator: subprocess.Popen[bytes] | None = None
        self._fargate: subprocess.Popen[bytes] | None = None
        self._expected: set[str] = set()
        """Lines of ECS's log of events that look like a failure, and are wanted."""
        self._endpoint: emulator.Endpoint
        self._cloud: Cloud

    def run(self, updates: Sequence[Update]) -> None:
        """All phases; the report has what failed. Raises if a phase fails that later ones need."""
        with self._report.phase("scratch folder") as phase:
            self._clear_scratch(phase)
        with self._report.phase("synthesis") as phase:
            self._synthesize("first", FIRST, phase)
            self._synthesize(BROKEN, FIRST, phase, BROKEN_IMAGE)
            for update in updates:
                self._synthesize(update.name, SETTINGS | dict(update.settings), phase)
        with self._report.phase("emulator and bootstrap") as phase:
            before = self._bootstrap()
            phase.seen.append("IAM is enforced, and requests are only accepted with TLS")
        with self._report.phase("first deployment") as phase:
            self._deploy("first", phase)
        with self._report.phase("live use", is_needed=False) as phase:
            self._use("first", [], phase)
        with self._report.phase("difference to the deployment", is_needed=False) as phase:
            self._cdk("diff", "diff", "--all", "--fail", "--app", self._assembly("first"))
            phase.seen.append("`cdk diff --all` is empty")
        with self._report.phase("second deployment without changes", is_needed=False) as phase:
            self._deploy_again("first", phase)
        with self._report.phase("deployment of a broken image", is_needed=False) as phase:
            self._deploy_broken(phase)
        for update in updates:
            with self._report.phase(f"update: {update.name}", is_needed=False) as phase:
                self._update(update, phase)
        if updates:
            with self._report.phase("live use after the updates", is_needed=False) as phase:
                self._use("after", [live.TOKENS], phase)
        with self._report.phase("logs of functions, stores and bridge", is_needed=False) as phase:
            self._check_logs(phase)
        with self._report.phase("deletion") as phase:
            self._destroy(updates[-1].name if updates else "first", before, phase)

    def _clear_scratch(self, phase: Phase) -> None:
        if ended := processes.kill_all():
            phase.seen.append(f"{ended} processes of an earlier rehearsal ended")
        for entry in SCRATCH.iterdir():
            if entry.name not in KEPT_ON_START:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _assembly(self, name: str) -> str:
        return str(ASSEMBLIES / name)

    def _synthesize(self, name: str, settings: Mapping[str, str], phase: Phase, *options: str) -> None:
        """Bundles that have been built before are taken from other assemblies: their names say what they hold.

        An assembly of the same sources and settings is not made again.
        """
        folder = ASSEMBLIES / name
        given = [*options, *(f"{key}={value}" for key, value in settings.items())]
        phase.seen.append(f"{name}: `{' '.join(given)}`")
        made_from = sources_digest(given)
        if (folder / MADE_FROM).exists() and (folder / MADE_FROM).read_text() == made_from:
            return
        bundles = {each.name: each for each in sorted(ASSEMBLIES.glob("*/asset.*")) if (each / "functions").is_dir()}
        draft = ASSEMBLIES / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        for asset, source in bundles.items():
            shutil.copytree(source, draft / asset)
        draft.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "rehearsal.synthesize", str(draft), *given]
        processes.run(
            f"synthesize-{name}",
            command,
            emulator.inherited({**os.environ, "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1"}),
        )
        shutil.rmtree(folder, ignore_errors=True)
        (draft / MADE_FROM).write_text(made_from)
        draft.rename(folder)

    def _bootstrap(self) -> leftovers.Inventory:
        self._emulator, self._endpoint = emulator.start()
        self._cloud = Cloud(self._endpoint)
        self._cdk("bootstrap", "bootstrap", BOOTSTRAP_TARGET, "--app", self._assembly("first"))
        self._cloud.allow_publishing_of_images()
        command = [sys.executable, "-m", "rehearsal.fargate"]
        self._fargate = processes.start("fargate", command, self._endpoint.variables())
        return self._cloud.inventory()

    def _cdk(self, log: str, *arguments: str) -> None:
        # Images are not built: tasks run in the build contexts of their images.
        settings = {
            "CDK_DOCKER": "true",
            "CDK_DISABLE_CLI_TELEMETRY": "true",
            "CI": "true",
            "JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION": "1",
        }
        processes.run(log, [str(CDK), *arguments], self._endpoint.variables() | settings)

    def _deploy(self, name: str, phase: Phase) -> None:
        outputs = SCRATCH / "outputs.json"
        options = ("--require-approval", "never", "--outputs-file", str(outputs))
        self._cdk(f"deploy-{name}", "deploy", "--all", "--app", self._assembly(name), *options)
        unready = {stack: status for stack, status in self._cloud.stacks().items() if not status.endswith("_COMPLETE")}
        if unready or any("ROLLBACK" in each for each in self._cloud.stacks().values()):
            raise CheckFailedError(f"stacks are {self._cloud.stacks()}")
        phase.seen.append(f"{len(self._cloud.stacks())} stacks, also that of the bootstrap")
        phase.seen += self._tasks()
        if not callers.CALLERS.exists():
            api = json.loads(outputs.read_text())["HeadraceControllerApi"]["ApiId"]
            callers.save(self._endpoint.api_url(api), self._cloud.create_users())

    def _tasks(self) -> list[str]:
        tasks = json.loads(fargate.TASK_LIST.read_text())
        return sorted(
            f"{each['service']}: task {each['id'][:8]}, {each['definition'].rpartition('/')[2]}, "
            f"{'healthy' if each['healthy'] else 'not healthy'}"
            for each in tasks
        )

    def _use(self, name: str, options: Sequence[str], phase: Phase) -> None:
        command = [sys.executable, "-m", "rehearsal.live", name, *options]
        try:
            processes.run(f"live-{name}", command, self._endpoint.variables())
        finally:
            phase.seen += processes.log_end(f"live-{name}").splitlines()
        returned = self._cloud.call_canary()
        if returned.get("failed") != 0 or not returned.get("tried"):
            raise CheckFailedError(f"the canary returned {returned}")
        phase.seen.append(f"the canary got an event back from each of {returned['tried']} containers")

    def _deploy_again(self, name: str, phase: Phase) -> None:
        tasks = self._tasks()
        self._deploy(name, Phase("not reported"))
        log = (LOGS / f"deploy-{name}.log").read_text()
        unchanged, stacks = log.count("(no changes)"), len(list(Path(self._assembly(name)).glob("*.template.json")))
        if unchanged != stacks:
            raise CheckFailedError(f"{stacks - unchanged} of {stacks} stacks were changed")
        if self._tasks() != tasks:
            raise CheckFailedError(f"tasks were {tasks}, are {self._tasks()}")
        phase.seen.append(f"no changes in {stacks} stacks, and the same tasks")

    def _deploy_broken(self, phase: Phase) -> None:
        """The first zone fails and is rolled back, a mail tells of it, and no store is touched."""
        tasks, noted = self._tasks(), len(fargate.events())
        with self._traffic(BROKEN, phase), self._cloud.alarm_mails() as mails:
            try:
                self._deploy(BROKEN, Phase("not reported"))
            except processes.ProcessFailedError:
                log = (LOGS / f"deploy-{BROKEN}.log").read_text()
                if "circuit breaker was triggered" not in log:
                    raise
            else:
                raise CheckFailedError("the broken image was deployed")
            during = fargate.events()[noted:]
            self._expected.update(during)
            if problems := checks.broken_image_problems(during, f"{fargate.STORES}0", FAILED_TASKS_MAX):
                raise CheckFailedError("\n".join(problems))
            if (status := self._cloud.stacks()[STORES_STACK]) != "UPDATE_ROLLBACK_COMPLETE":
                raise CheckFailedError(f"{STORES_STACK} is {status}")
            if self._tasks() != tasks:
                raise CheckFailedError(f"tasks were {tasks}, are {self._tasks()}")
            self._await_mail(mails, "SERVICE_DEPLOYMENT_FAILED", f"{fargate.STORES}0")
        phase.seen.append(f"{FAILED_TASKS_MAX} tasks of {fargate.STORES}0 ended by themselves, and a mail tells of it")
        phase.seen.append(f"{STORES_STACK} is rolled back, and the stores of all zones are the same tasks as before")

    def _await_mail(self, mails: Callable[[], list[str]], *words: str) -> None:
        came: list[str] = []
        deadline = time.monotonic() + MAIL_S
        while not any(all(word in mail for word in words) for mail in came):
            if time.monotonic() > deadline:
                raise CheckFailedError(f"no mail with {' and '.join(words)}: {came}")
            time.sleep(POLL_S)
            came += mails()

    def _update(self, update: Update, phase: Phase) -> None:
        with self._traffic(update.name, phase):
            if update.stops_stores:
                self._stop_stores(phase)
            self._deploy(update.name, phase)

    @contextmanager
    def _traffic(self, name: str, phase: Phase) -> Iterator[None]:
        """A writer and a reader run through the block; afterwards nothing may be lost or repeated."""
        command = [sys.executable, "-m", "rehearsal.traffic", name]
        program = processes.start(f"traffic-{name}", command, self._endpoint.variables())
        deadline = time.monotonic() + TRAFFIC_START_S
        while not traffic.started_file(name).exists():
            if program.poll() is not None or time.monotonic() > deadline:
                raise CheckFailedError(f"the writer does not start: {processes.log_end(f'traffic-{name}')}")
            time.sleep(POLL_S)
        try:
            yield
        except BaseException:
            program.kill()
            raise
        program.terminate()
        if program.wait(TRAFFIC_END_S) != 0:
            raise CheckFailedError(f"writer and reader: {processes.log_end(f'traffic-{name}')}")
        result: dict[str, Any] = json.loads(traffic.result_file(name).read_text())
        if result["problems"]:
            raise CheckFailedError(f"writer and reader: {'; '.join(result['problems'])}")
        phase.seen.append(
            f"{result['written']} events written meanwhile, each read once and in the order of its key; the longest "
            f"acknowledgement took {result['longest_s']:.1f} s"
        )

    def _stop_stores(self, phase: Phase) -> None:
        """The documented way from three copies to one: all stores are stopped, then the logs are changed."""
        services = sorted({each["service"] for each in json.loads(fargate.TASK_LIST.read_text())})
        stores = [each for each in services if each.startswith("headrace-store-")]
        self._cloud.set_desired_counts(stores, 0)
        post(f"http://127.0.0.1:{fargate.CONTROL.read_text()}{fargate.STOP_STORES}")
        deadline = time.monotonic() + STORES_STOP_S
        while any(each["service"] in stores for each in json.loads(fargate.TASK_LIST.read_text())):
            if time.monotonic() > deadline:
                raise CheckFailedError(f"stores do not stop: {self._tasks()}")
            time.sleep(POLL_S)
        with_rights = self._endpoint.variables() | callers.variables_of("operator")
        command = [str(Path(sys.executable).with_name("headrace")), "--url", callers.api_url(), "--auth", "aws-iam"]
        processes.run("set-copies", [*command, "cluster", "set-copies", "1"], with_rights)
        phase.seen.append("all stores stopped, and the logs set to one copy")

    def _check_logs(self, phase: Phase) -> None:
        lines = list(self._cloud.log_lines())
        # The emulator is gone after the run, and the report has only the first line of an error.
        (LOGS / "functions.log").write_text("\n".join(f"{group} {line}" for group, line in lines))
        if denied := checks.denied_lines(lines):
            raise CheckFailedError("IAM refused what it must allow:\n" + "\n".join(denied))
        if failed := checks.failed_lines(lines):
            raise CheckFailedError("functions failed:\n" + "\n".join(failed))
        phase.seen.append(f"{len(lines)} lines of functions: nothing was denied, no error")
        events = [each for each in fargate.events() if each not in self._expected]
        if wrong := [each for each in events if any(word in each for word in fargate.BAD_EVENTS)]:
            raise CheckFailedError("tasks:\n" + "\n".join(wrong))
        phase.seen.append(
            f"{sum(' ended,' in each for each in events)} tasks were stopped, all by themselves after SIGTERM"
        )

    def _destroy(self, name: str, before: leftovers.Inventory, phase: Phase) -> None:
        self._cloud.delete_users()
        self._cloud.empty_buckets()
        self._cdk("destroy", "destroy", "--all", "--force", "--app", self._assembly(name))
        found = leftovers.leftovers(before, self._cloud.inventory())
        kept, wrong = leftovers.judge(found)
        phase.seen += [f"kept: {each}" for each in kept]
        if wrong:
            raise CheckFailedError("still there:\n" + "\n".join(wrong))
        if self._fargate is not None:
            processes.stop(self._fargate, STORES_STOP_S)
        phase.seen.append("everything else is gone")
