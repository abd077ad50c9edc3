"""Names, ARNs and URLs of the resources that the topology declares, known to every stack without a cross-reference.

All resources have the names of the topology. So a template that would replace the metadata table fails; otherwise it
would start with an empty table next to the old one. Stacks depend on each other only by the order of deployment, not by
exports, which would forbid changes of the exporting stack. What AWS names is published under fixed names
(`deployed_network`). The cost: only one deployment per account and Region.
"""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
from constructs import Construct

from headrace import topology
from headrace.certificate_names import secret_name
from headrace.topology import Grant, Queue
from headrace.topology.services import GRPC_BRIDGE
from infra.constructs.deployed_network import CONTROLLER_API_ID, published

CLUSTER_NAME = topology.SEGMENT_STORES.cluster
"""The ECS cluster of the segment stores."""
STORE_LOG_GROUP_NAME = "/headrace/segment-stores"
REPLICA_SECRET_NAME = "headrace-replica-secret"
"""The secret that the segment stores of a deployment prove to each other."""
GRPC_USERS_SECRET_NAME = "headrace-grpc-users"
"""The secret with the users of the gRPC bridge, in a deployment with bridge and tokens."""
BRIDGE_LOG_GROUP_NAME = "/headrace/grpc-bridge"
BRIDGE_SERVICE_NAME = GRPC_BRIDGE.service
OUTSIDE_SERVICE_NAME = f"{BRIDGE_SERVICE_NAME}-external"
"""The service of the bridge for clients outside the network."""
CANARY_NAME = f"headrace-{topology.CANARY.name}"
"""The function that writes an event to each container each minute, and reads it back."""
STORES_STACK_NAME = "HeadraceSegmentStores"
"""CloudFormation begins the names of the roles of stores with it."""


@dataclass(frozen=True, slots=True)
class DeployedResources:
    """The names of the topology's resources in the account and Region of the stack of `scope`."""

    stack: cdk.Stack

    @classmethod
    def seen_from(cls, scope: Construct) -> DeployedResources:
        return cls(cdk.Stack.of(scope))

    @property
    def chunk_bucket_name(self) -> str:
        """The topology's name with account and Region, because bucket names are unique across all accounts."""
        return f"{topology.CHUNK_BUCKET.name}-{self.stack.account}-{self.stack.region}"

    @property
    def metadata_table_arn(self) -> str:
        return self.stack.format_arn(service="dynamodb", resource="table", resource_name=topology.METADATA_TABLE.name)

    @property
    def chunk_bucket_arn(self) -> str:
        return self.stack.format_arn(
            service="s3",
            account="",
            region="",
            resource=self.chunk_bucket_name,
            arn_format=cdk.ArnFormat.NO_RESOURCE_NAME,
        )

    @property
    def controller_api_id(self) -> str:
        """The id that AWS gave the HTTP API, which its stack has published."""
        return published(self.stack, CONTROLLER_API_ID)

    @property
    def controller_url(self) -> str:
        """The address of the HTTP API."""
        return f"https://{self.controller_api_id}.execute-api.{self.stack.region}.{self.stack.url_suffix}"

    def queue_arn(self, queue: Queue) -> str:
        return self.stack.format_arn(service="sqs", resource=queue.name, arn_format=cdk.ArnFormat.NO_RESOURCE_NAME)

    def queue_url(self, queue: Queue) -> str:
        stack = self.stack
        return f"https://sqs.{stack.region}.{stack.url_suffix}/{stack.account}/{queue.name}"

    def function_arn(self, function: topology.Function) -> str:
        return self.stack.format_arn(
            service="lambda",
            resource="function",
            resource_name=function_name(function),
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )

    def log_streams_arn(self, log_group_name: str) -> str:
        """The ARN of all streams of a log group, in the form that the Logs API expects."""
        return self.stack.format_arn(
            service="logs",
            resource="log-group",
            resource_name=f"{log_group_name}:*",
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )

    @property
    def replica_secret_arn(self) -> str:
        return self._secret_arn(REPLICA_SECRET_NAME)

    @property
    def token_keys_arn(self) -> str:
        return self._secret_arn(topology.TOKEN_KEYS_SECRET)

    def certificate_secret_arn(self, label: str) -> str:
        """The secret with the certificate of `label`; `*` for those of all."""
        return self._secret_arn(secret_name(label))

    @property
    def grpc_users_arn(self) -> str:
        return self._secret_arn(GRPC_USERS_SECRET_NAME)

    def _secret_arn(self, name: str) -> str:
        """Any secret of the name: Secrets Manager adds six random characters to the ARN."""
        return self.stack.format_arn(
            service="secretsmanager",
            resource="secret",
            resource_name=f"{name}-??????",
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )

    def granted(self, grant: Grant) -> str:
        """The one resource (for objects of a bucket: the one pattern) on which `grant` allows its actions."""
        match grant:
            case "metadata:read" | "metadata:write":
                return self.metadata_table_arn
            case "chunks:read" | "chunks:write":
                return f"{self.chunk_bucket_arn}/*"
            case "chunks:list":
                return self.chunk_bucket_arn
            case "tasks:protect":
                return self.stack.format_arn(service="ecs", resource="task", resource_name=f"{CLUSTER_NAME}/*")
            case "token-keys:read":
                return self.token_keys_arn
            case "audit-log:write":
                return self.log_streams_arn(topology.AUDIT_LOG.name)
            case _:
                return self.queue_arn(topology.SENDS_TO[grant])


def function_name(function: topology.Function) -> str:
    """The name of a function in the account."""
    return f"headrace-{function.name}"


def log_group_name(function: topology.Function) -> str:
    """The log group of a function."""
    return f"/aws/lambda/{function_name(function)}"


def service_name(index: int) -> str:
    """The name of the ECS service of store number `index`."""
    return f"headrace-store-{index}"
