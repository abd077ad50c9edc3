"""The queues stack: the queues of background work of the control plane."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from constructs import Construct

from headrace import topology
from infra.constructs.queue_with_dead_letters import QueueWithDeadLetters


class QueuesStack(cdk.Stack):
    """Every queue of the topology with its dead letters; `queues` is in the topology's order."""

    def __init__(self, scope: Construct, id_: str, **kwargs: Any) -> None:
        super().__init__(scope, id_, description="Headrace: queues of background work", **kwargs)
        self.queues = tuple(QueueWithDeadLetters(self, declared) for declared in topology.QUEUES)
