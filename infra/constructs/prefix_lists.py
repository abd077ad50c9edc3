"""The Region's lists of the addresses of S3 and DynamoDB, for rules of security groups.

AWS has made them, and a synth without an account cannot look up their ids. So CloudFormation asks a function.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from constructs import Construct

from headrace import topology
from infra.constructs.acknowledgements import acknowledge_wildcard
from infra.constructs.controller_function import ControllerFunction
from infra.packaging import lambda_bundle
from infra.settings import Settings

DESCRIBE_REASON = "ec2:DescribeManagedPrefixLists is an action on the account: AWS defines no resource for it."


class PrefixLists(Construct):
    """`s3` and `dynamodb` are the ids of the lists with the addresses of these services in the Region."""

    def __init__(self, scope: Construct, id_: str) -> None:
        super().__init__(scope, id_)
        finder = ControllerFunction(
            self,
            topology.PREFIX_LISTS,
            code=lambda_bundle.lambda_code(lambda_bundle.NETWORK),
            network=None,
            # It reads none, and the network must not depend on those of other stacks.
            settings=Settings(tls="off", tokens=False),
            more_statements=[
                iam.PolicyStatement(sid="FindPrefixLists", actions=["ec2:DescribeManagedPrefixLists"], resources=["*"])
            ],
        )
        acknowledge_wildcard(finder, "*", DESCRIBE_REASON)
        known = cdk.CustomResource(
            self,
            "Lists",
            service_token=finder.function.function_arn,
            resource_type="Custom::HeadracePrefixLists",
            service_timeout=cdk.Duration.seconds(topology.PREFIX_LISTS.timeout_s),
        )
        known.node.add_dependency(finder)
        self.s3 = known.get_att_string("S3")
        self.dynamodb = known.get_att_string("DynamoDb")
