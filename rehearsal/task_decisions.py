"""Which tasks ECS would start and stop: a pure rule over services and their tasks.

It follows the rolling update of ECS. With a minimum of 100 % healthy tasks new ones start first, and old ones stop when
new ones are healthy. With a minimum of 0 % the old ones stop first. Neither a deployment nor a smaller desired count
stops a protected task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

FAILED_TASKS_MAX: Final = 3
"""The circuit breaker of ECS gives a deployment at least so many tasks."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service as ECS describes it. `definition` is the ARN of the task definition that its tasks must have.

    `healthy_min_percent` and `running_max_percent` bound the tasks during a deployment, in percent of `desired`.
    """

    name: str
    definition: str
    desired: int
    healthy_min_percent: int = 100
    running_max_percent: int = 200
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task whose process runs."""

    id: str
    service: str
    definition: str
    is_healthy: bool = False
    has_failed: bool = False
    """Its health check has failed for too long."""
    is_stopping: bool = False
    is_protected: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. `start` has a service for each task, `stop` ids of tasks, `settled` names of services."""

    start: tuple[Service, ...] = ()
    stop: tuple[str, ...] = ()
    settled: tuple[str, ...] = ()


def decide(services: Iterable[Service], tasks: Sequence[RunningTask]) -> Decision:
    """What ECS would do now."""
    known = list(services)
    decisions = [_decide(each, [task for task in tasks if task.service == each.name]) for each in known]
    names = {each.name for each in known}
    ownerless = tuple(task.id for task in tasks if task.service not in names and not task.is_stopping)
    return Decision(
        start=tuple(service for each in decisions for service in each.start),
        stop=ownerless + tuple(task for each in decisions for task in each.stop),
        settled=tuple(name for each in decisions for name in each.settled),
    )


def _decide(service: Service, tasks: list[RunningTask]) -> Decision:
    staying = [task for task in tasks if not task.is_stopping]
    if not service.is_active:  # it was deleted by force, as CloudFormation does: protection does not count
        return Decision(stop=tuple(task.id for task in staying))
    failed = [task for task in staying if task.has_failed]
    new = [task for task in staying if task.definition == service.definition and not task.has_failed]
    old = [task for task in staying if task.definition != service.definition and not task.has_failed]
    healthy_new = [task for task in new if task.is_healthy]

    room = service.desired * service.running_max_percent // 100 - len(tasks)
    starting = max(0, min(service.desired - len(new), room))

    healthy = sum(task.is_healthy for task in new + old)
    spare = healthy - service.desired * service.healthy_min_percent // 100
    surplus = sorted(new, key=lambda task: task.is_healthy)[: max(0, len(new) - service.desired)]
    stopping = [task.id for task in failed + surplus if not task.is_protected]
    for task in old:
        if task.is_protected:
            continue
        if not task.is_healthy:
            stopping.append(task.id)
        elif spare > 0:
            stopping.append(task.id)
            spare -= 1
    is_settled = len(healthy_new) >= service.desired and len(tasks) == len(healthy_new) == service.desired
    return Decision((service,) * starting, tuple(stopping), (service.name,) if is_settled else ())


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The health check of a container; times in seconds."""

    command: tuple[str, ...]
    interval_s: float
    timeout_s: float
    retries: int
    start_period_s: float

    def has_failed(self, started_s: float, last_success_s: float | None, now_s: float) -> bool:
        """Whether ECS would call a task unhealthy: the start period is over, and all retries have failed."""
        since = started_s + self.start_period_s if last_success_s is None else last_success_s
        return now_s - since > self.interval_s * self.retries
