"""The cluster over HTTP: stores with their leases, the container map, and the logs of containers."""

from __future__ import annotations

from functions import wiring
from functions.controller import models_cluster as models
from functions.http_api import http_api, lambda_handler
from headrace.controller.services.cluster_logs import ClusterLogService

api = http_api()


def _log_service() -> ClusterLogService:
    return ClusterLogService(wiring.metadata_store(), wiring.environment().all_containers)


@api.get("/v1/cluster", summary="Segment stores and their leases", tags=["Cluster"])
def get_cluster() -> models.Cluster:
    return models.Cluster.from_value(wiring.cluster_service().cluster())


@api.get("/v1/cluster/containers", summary="Where each container is and belongs", tags=["Cluster"])
def get_containers() -> models.ContainerMap:
    return models.ContainerMap.from_value(wiring.cluster_service().containers())


@api.get("/v1/cluster/logs", summary="The logs of containers and their members", tags=["Cluster"])
def get_logs() -> models.ContainerLogs:
    return models.ContainerLogs.from_value(_log_service().logs())


@api.post(
    "/v1/cluster/logs/<container>/accept-loss", summary="Take lost members out of a container's log", tags=["Cluster"]
)
def accept_loss(container: models.ContainerNumber, request: models.AcceptedLoss) -> models.ContainerLog:
    service = _log_service()
    return models.ContainerLog.from_value(service.accept_loss(int(container), request.replicas(), request.version))


@api.put("/v1/cluster/copies", summary="Set the number of copies of logs that are not open", tags=["Cluster"])
def set_copies(request: models.Copies) -> models.CopiesChanged:
    return models.CopiesChanged.from_value(_log_service().set_copies(request.copies))


@api.post("/v1/cluster/raise-epochs", summary="Raise the epochs of all containers", tags=["Cluster"])
def raise_epochs(request: models.RaisedEpochs) -> models.EpochsRaised:
    return models.EpochsRaised.from_value(_log_service().raise_epochs(request.above))


handler = lambda_handler(api)
