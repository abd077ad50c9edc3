"""JSON of the cluster routes."""

from __future__ import annotations

from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Path
from pydantic import AfterValidator, Field

from functions.controller.parameters import WireModel, decimal, path_value
from headrace.model.cluster import ContainerStanding, StoreState
from headrace.model.container_logs import LogState
from headrace.model.ensembles import COPIES, REPLICA_ID_BYTES, ReplicaId

CONTAINER_MAX = 9_999
EPOCH_MAX = (1 << 53) - 1


def _container(text: str) -> str:
    return str(decimal(path_value(text), "container", CONTAINER_MAX))


ContainerNumber = Annotated[str, AfterValidator(_container), Path(description="Number of a container")]
ReplicaIdText = Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * REPLICA_ID_BYTES}}}$")]


class Store(WireModel):
    storeId: str
    state: StoreState = Field(strict=False)
    host: str
    port: int
    zone: str
    capacity: int = Field(description="Weight against other stores")
    incarnation: int = Field(description="Grows with each start")
    task: str | None = Field(description="ARN of its ECS task")
    leaseUntil: int = Field(description="Milliseconds since 1970")
    endedTime: int | None = Field(description="Since when it is LEFT or LOST, milliseconds since 1970")
    takeOverTime: int | None = Field(description="Until when its containers wait for it, milliseconds since 1970")
    containers: list[int] = Field(description="What the container map gives it")


class Cluster(WireModel):
    mapVersion: int | None = Field(description="Null before the first container map")
    containerCount: int
    stores: list[Store]


class Container(WireModel):
    container: int
    store: str | None = Field(description="The store that the container map names")
    state: ContainerStanding = Field(strict=False)
    claimedBy: str | None = Field(description="The store that clients are sent to")
    host: str | None
    port: int | None
    zone: str | None
    epoch: int | None = Field(description="Grows with each claim; every endpoint answer carries it")


class ContainerMap(WireModel):
    mapVersion: int | None
    containers: list[Container]


class LogMember(WireModel):
    replica: str = Field(description="Id of the journal that holds a copy, hexadecimal digits")
    store: str | None = Field(description="The store that has this journal; null if none has registered it last")
    storeState: StoreState | None = Field(strict=False)
    zone: str | None
    mayBeRemoved: bool = Field(description="Its store has ended for certain: an operator may accept its loss")


class Ledger(WireModel):
    epoch: int = Field(description="Of the owner that wrote it")
    first: int = Field(description="Its first entry; it ends before the first entry of the next ledger")


class ContainerLog(WireModel):
    container: int
    state: LogState | None = Field(strict=False, description="Null if the container has no log record")
    copies: int | None
    version: int = Field(description="Of the log record; 0 without one")
    members: list[LogMember]
    ledgers: list[Ledger]
    truncated: int = Field(description="Tier 2 has everything before this entry")
    nextEntry: int | None = Field(description="Of a log that is not open: its next entry")
    complete: bool = Field(description="All wanted copies exist")
    blocked: bool = Field(description="Its recovery waits for members that do not answer")


class ContainerLogs(WireModel):
    logs: list[ContainerLog]


class AcceptedLoss(WireModel):
    lost: list[ReplicaIdText] = Field(min_length=1, max_length=COPIES, description="Members that are lost")
    version: int = Field(ge=1, description="Of the log record that names them")

    def replicas(self) -> tuple[ReplicaId, ...]:
        return tuple(ReplicaId(bytes.fromhex(each)) for each in self.lost)


class Copies(WireModel):
    copies: Literal[1, 3]


class CopiesChanged(WireModel):
    copies: int
    changed: list[int] = Field(description="Containers whose log record was changed")
    kept: list[int] = Field(description="Containers with an open log, which their owners extend")


class RaisedEpochs(WireModel):
    above: int = Field(ge=0, le=EPOCH_MAX, description="Each container gets a higher epoch than this")


class EpochsRaised(WireModel):
    raised: list[int]
    remaining: list[int] = Field(description="Containers that need another request")
