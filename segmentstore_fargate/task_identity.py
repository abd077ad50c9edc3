"""The name of a store on ECS: its zone and the first characters of its task's id, for example use1-az1-0a1b2c3d.

Each task is another store, since it begins with an empty volume. A store that is given a name keeps it: on a laptop,
and in a deployment with one copy of each log, where a task takes the place of the task before it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from headrace.model.errors import UnavailableError
from segmentstore_fargate.registration import TASK_METADATA_VARIABLE, OwnTask, own_task

_log = logging.getLogger(__name__)

STORE_ID_VARIABLE: Final = "HEADRACE_STORE_ID"
TASK_ID_CHARACTERS: Final = 8
RETRY_S: Final = 3.0
"""Between two attempts while ECS does not tell."""


def store_id_of(zone: str, task_arn: str) -> str:
    """The name of the store of a task, whose ARN ends with its id: "arn:aws:ecs:...:task/headrace/0a1b2c3d..."."""
    return f"{zone}-{task_arn.rpartition('/')[2][:TASK_ID_CHARACTERS]}"


def with_store_id(
    environment: Mapping[str, str],
    ask: Callable[[Mapping[str, str]], OwnTask | None] = own_task,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """The environment with the name of the store. Waits until ECS tells the task; unchanged outside of ECS."""
    if environment.get(STORE_ID_VARIABLE) or not environment.get(TASK_METADATA_VARIABLE):
        return dict(environment)
    while True:
        try:
            task = ask(environment)
            break
        except UnavailableError as error:
            _log.warning("event=start_waits for=%s retry_s=%.1f error=%r", "name", RETRY_S, error.message)
            pause(RETRY_S)
    if task is None:
        return dict(environment)
    return {**environment, STORE_ID_VARIABLE: store_id_of(environment.get("HEADRACE_ZONE", "local"), task.arn)}
