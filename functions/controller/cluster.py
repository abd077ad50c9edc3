"""The cluster over HTTP: stores with their leases, and the container map."""

from __future__ import annotations

from functions import wiring
from functions.controller import models_cluster as models
from functions.http_api import http_api, lambda_handler

api = http_api()


@api.get("/v1/cluster", summary="Segment stores and their leases", tags=["Cluster"])
def get_cluster() -> models.Cluster:
    return models.Cluster.from_value(wiring.cluster_service().cluster())


@api.get("/v1/cluster/containers", summary="Where each container is and belongs", tags=["Cluster"])
def get_containers() -> models.ContainerMap:
    return models.ContainerMap.from_value(wiring.cluster_service().containers())


handler = lambda_handler(api)
