"""What the rehearsal asks of the emulator's AWS as the administrator of the account."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import boto3

from rehearsal.emulator import ACCOUNT, ADMINISTRATOR, REGION, Endpoint
from rehearsal.leftovers import Inventory

USERS: Final = {
    "reader": "headrace-read-streams",
    "writer": "headrace-write-streams",
    "manager": "headrace-manage-streams",
    "operator": "headrace-operate",
}
"""The IAM users of the rehearsal with their managed policies."""
BOOTSTRAP: Final = "CDKToolkit"
PUBLISHING_ROLE: Final = f"cdk-hnb659fds-image-publishing-role-{ACCOUNT}-{REGION}"
ALARM_TOPIC: Final = f"arn:aws:sns:{REGION}:{ACCOUNT}:headrace-alarms"
ADMINISTRATOR_POLICY: Final = "arn:aws:iam::aws:policy/AdministratorAccess"


class Cloud:
    """The account in the emulator."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session = boto3.Session(
            aws_access_key_id=ADMINISTRATOR, aws_secret_access_key=ADMINISTRATOR, region_name=REGION
        )

    def client(self, service: Any) -> Any:
        """A client of a service of AWS."""
        return self._session.client(service, endpoint_url=self._endpoint.url, verify=str(self._endpoint.certificate))

    def allow_publishing_of_images(self) -> None:
        """MiniStack's IAM refuses what the CDK asks of ECR with the role of its bootstrap. AWS allows it."""
        self.client("iam").attach_role_policy(RoleName=PUBLISHING_ROLE, PolicyArn=ADMINISTRATOR_POLICY)

    def create_users(self) -> dict[str, tuple[str, str]]:
        """Create the users; returns key and secret of each."""
        iam, keys = self.client("iam"), {}
        for user, policy in USERS.items():
            iam.create_user(UserName=user)
            iam.attach_user_policy(UserName=user, PolicyArn=f"arn:aws:iam::{ACCOUNT}:policy/{policy}")
            key = iam.create_access_key(UserName=user)["AccessKey"]
            keys[user] = key["AccessKeyId"], key["SecretAccessKey"]
        return keys

    def delete_users(self) -> None:
        """Remove the users, whose policies CloudFormation could not delete otherwise."""
        iam = self.client("iam")
        existing = {each["UserName"] for each in iam.list_users()["Users"]}
        for user in existing & set(USERS):
            for key in iam.list_access_keys(UserName=user)["AccessKeyMetadata"]:
                iam.delete_access_key(UserName=user, AccessKeyId=key["AccessKeyId"])
            for policy in iam.list_attached_user_policies(UserName=user)["AttachedPolicies"]:
                iam.detach_user_policy(UserName=user, PolicyArn=policy["PolicyArn"])
            iam.delete_user(UserName=user)

    def set_desired_counts(self, services: list[str], count: int) -> None:
        """As an operator does who stops all stores."""
        for service in services:
            self.client("ecs").update_service(cluster="headrace", service=service, desiredCount=count)

    def log_lines(self) -> Iterator[tuple[str, str]]:
        """The lines of all log groups, each with the name of its group."""
        logs = self.client("logs")
        for page in logs.get_paginator("describe_log_groups").paginate():
            for group in page["logGroups"]:
                name = group["logGroupName"]
                for stream in logs.describe_log_streams(logGroupName=name)["logStreams"]:
                    answer = logs.get_log_events(
                        logGroupName=name, logStreamName=stream["logStreamName"], startFromHead=True
                    )
                    yield from ((name, event["message"]) for event in answer["events"])

    def call_canary(self) -> dict[str, Any]:
        """What the canary returns, or its error: how many containers it has tried, and how many failed."""
        answer = self.client("lambda").invoke(FunctionName="headrace-canary")
        returned: dict[str, Any] = json.loads(answer["Payload"].read())
        return returned

    @contextmanager
    def alarm_mails(self) -> Iterator[Callable[[], list[str]]]:
        """Subscribe a queue to the topic of alarms for the block. It gets a function that takes what has come."""
        sns, sqs = self.client("sns"), self.client("sqs")
        queue = sqs.create_queue(QueueName="rehearsal-mails")["QueueUrl"]
        name = {"AttributeNames": ["QueueArn"]}
        arn = sqs.get_queue_attributes(QueueUrl=queue, **name)["Attributes"]["QueueArn"]
        sender = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [{**sender, "Resource": arn}]})
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
        subscription = sns.subscribe(TopicArn=ALARM_TOPIC, Protocol="sqs", Endpoint=arn)["SubscriptionArn"]

        def taken() -> list[str]:
            received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", ())
            return [json.loads(each["Body"])["Message"] for each in received]

        try:
            yield taken
        finally:
            sns.unsubscribe(SubscriptionArn=subscription)
            sqs.delete_queue(QueueUrl=queue)

    def empty_buckets(self) -> None:
        """Delete all objects in the buckets of the deployment, and the versions of them."""
        for bucket in self._session.resource(
            "s3", endpoint_url=self._endpoint.url, verify=str(self._endpoint.certificate)
        ).buckets.all():
            if bucket.name.startswith("headrace"):
                bucket.object_versions.delete()

    def stacks(self) -> dict[str, str]:
        """The status of each stack that is not deleted."""
        described = self.client("cloudformation").describe_stacks()["Stacks"]
        return {
            each["StackName"]: each["StackStatus"] for each in described if each["StackStatus"] != "DELETE_COMPLETE"
        }

    def inventory(self) -> Inventory:
        """The resources in the account that cost money or have names, by kind."""
        secrets = self.client("secretsmanager").list_secrets(IncludePlannedDeletion=True)["SecretList"]
        keys = [self.client("kms").describe_key(KeyId=each["KeyId"])["KeyMetadata"] for each in self._keys()]
        ec2 = self.client("ec2")
        return {
            "stack": sorted(self.stacks()),
            "bucket": [each["Name"] for each in self.client("s3").list_buckets()["Buckets"]],
            "table": self.client("dynamodb").list_tables()["TableNames"],
            "queue": [each.rpartition("/")[2] for each in self.client("sqs").list_queues().get("QueueUrls", [])],
            "function": [each["FunctionName"] for each in self.client("lambda").list_functions()["Functions"]],
            "API": [each["Name"] for each in self.client("apigatewayv2").get_apis()["Items"]],
            "log group": [each["logGroupName"] for each in self.client("logs").describe_log_groups()["logGroups"]],
            "alarm": self._alarms(),
            "secret": [each["Name"] for each in secrets if not each.get("DeletedDate")],
            "secret in deletion": [each["Name"] for each in secrets if each.get("DeletedDate")],
            "key": [each["KeyId"] for each in keys if each["KeyState"] == "Enabled"],
            "key in deletion": [each["Description"] for each in keys if each["KeyState"] == "PendingDeletion"],
            "role": [each["RoleName"] for each in self.client("iam").list_roles()["Roles"]],
            "policy": [each["PolicyName"] for each in self.client("iam").list_policies(Scope="Local")["Policies"]],
            "rule": [each["Name"] for each in self.client("events").list_rules()["Rules"]],
            "topic": [each["TopicArn"].rpartition(":")[2] for each in self.client("sns").list_topics()["Topics"]],
            "parameter": [each["Name"] for each in self.client("ssm").describe_parameters()["Parameters"]],
            "cluster": self.client("ecs").list_clusters()["clusterArns"],
            "namespace": [each["Name"] for each in self.client("servicediscovery").list_namespaces()["Namespaces"]],
            "load balancer": [
                each["LoadBalancerName"] for each in self.client("elbv2").describe_load_balancers()["LoadBalancers"]
            ],
            "network": [each["VpcId"] for each in ec2.describe_vpcs()["Vpcs"] if not each.get("IsDefault")],
            "NAT gateway": [each["NatGatewayId"] for each in ec2.describe_nat_gateways()["NatGateways"]],
            "address": [each["PublicIp"] for each in ec2.describe_addresses()["Addresses"]],
            "job": [each["Name"] for each in self.client("glue").get_jobs()["Jobs"]],
        }

    def _alarms(self) -> list[str]:
        pages = self.client("cloudwatch").get_paginator("describe_alarms")
        found = pages.paginate(AlarmTypes=["MetricAlarm", "CompositeAlarm"])
        kinds = ("MetricAlarms", "CompositeAlarms")
        return [each["AlarmName"] for page in found for kind in kinds for each in page[kind]]

    def _keys(self) -> list[dict[str, Any]]:
        return list(self.client("kms").list_keys()["Keys"])


def post(url: str, body: Any = None) -> None:
    """A POST to a program of the rehearsal on loopback."""
    request = urllib.request.Request(url, data=json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10):
        pass
