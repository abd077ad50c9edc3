"""The cluster over HTTP: stores with their leases, the container map, and the logs of containers."""

from __future__ import annotations

from typing import Annotated

from functions import wiring
from functions.controller.parameters import path_number
from functions.http_api import HttpApi, lambda_handler
from headrace.api.cluster import (
    AcceptedLoss,
    ClusterView,
    ContainerLogsView,
    ContainerLogView,
    ContainerMapView,
    Copies,
    CopiesChanged,
    EpochsRaised,
    RaisedEpochs,
)
from headrace.api.upgrades import UpgradeView
from headrace.controller.services.cluster_service import ClusterLogService
from headrace.controller.services.upgrade_service import UpgradeService

api = HttpApi()

CONTAINER_MAX = 9_999
ContainerNumber = Annotated[int, path_number("Number of a container", "container", CONTAINER_MAX)]


def _log_service() -> ClusterLogService:
    return ClusterLogService(wiring.metadata_store(), wiring.environment().all_containers)


@api.route("GET", "/v1/cluster", summary="Segment stores and their leases", tag="Cluster")
def get_cluster() -> ClusterView:
    return wiring.cluster_service().cluster()


@api.route("GET", "/v1/cluster/containers", summary="Where each container is and belongs", tag="Cluster")
def get_containers() -> ContainerMapView:
    return wiring.cluster_service().containers()


@api.route("GET", "/v1/cluster/logs", summary="The logs of containers and their members", tag="Cluster")
def get_logs() -> ContainerLogsView:
    return _log_service().logs()


@api.route(
    "POST",
    "/v1/cluster/logs/<container>/accept-loss",
    summary="Take lost members out of a container's log",
    tag="Cluster",
)
def accept_loss(container: ContainerNumber, request: AcceptedLoss) -> ContainerLogView:
    return _log_service().accept_loss(container, request.replicas(), request.version)


@api.route("PUT", "/v1/cluster/copies", summary="Set the number of copies of logs that are not open", tag="Cluster")
def set_copies(request: Copies) -> CopiesChanged:
    return _log_service().set_copies(request.copies)


@api.route("POST", "/v1/cluster/raise-epochs", summary="Raise the epochs of all containers", tag="Cluster")
def raise_epochs(request: RaisedEpochs) -> EpochsRaised:
    return _log_service().raise_epochs(request.above)


@api.route("GET", "/v1/cluster/upgrade", summary="Which releases run and may run", tag="Cluster")
def get_upgrade() -> UpgradeView:
    return UpgradeService(wiring.metadata_store()).status()


@api.route("POST", "/v1/cluster/upgrade", summary="Finalize the upgrade: no rollback after this", tag="Cluster")
def finalize_upgrade() -> UpgradeView:
    return UpgradeService(wiring.metadata_store()).finalize()


handler = lambda_handler(api)
