"""The custom resource with the ids of the Region's lists of addresses of S3 and DynamoDB.

Rules of security groups refer to the lists, which AWS keeps. Their ids differ from Region to Region, no template can
compute them, and a synth without an account cannot look them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from functions.aws_clients import aws_client
from functions.deployment.custom_resources import ResourceRequest, send_report
from functions.observability import logger

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

SERVICES: Final = {"S3": "s3", "DynamoDb": "dynamodb"}
"""The attributes of the resource, and the last parts of the names of the lists."""


@logger.inject_lambda_context
def handler(event: dict[str, Any], _context: LambdaContext) -> dict[str, str]:
    """Handle one request of CloudFormation; return what became of it.

    Raises:
        InvalidRequestError: this is not such a request, so a retry cannot succeed.
        OSError: the report did not reach CloudFormation; Lambda retries the event.
    """
    request = ResourceRequest.from_event(event)
    lists: dict[str, str] = {}
    problems: list[str] = []
    if request.kind != "Delete":
        try:
            lists = find_lists()
        except (BotoCoreError, ClientError) as error:
            problems = [f"EC2 does not tell the prefix lists: {error}"]
        else:
            problems = [f"the Region has no prefix list of {name}" for name in SERVICES if name not in lists]
    send_report(request, problems, "the prefix lists are known", lists)
    return {"outcome": "failed" if problems else "passed"}


def find_lists() -> dict[str, str]:
    """The ids of the lists by the names of the resource's attributes."""
    ec2 = aws_client("ec2")
    region = ec2.meta.region_name
    names = {f"com.amazonaws.{region}.{service}": attribute for attribute, service in SERVICES.items()}
    answer = ec2.describe_managed_prefix_lists(Filters=[{"Name": "prefix-list-name", "Values": list(names)}])
    lists = {each["PrefixListName"]: each["PrefixListId"] for each in answer["PrefixLists"]}
    return {attribute: lists[name] for name, attribute in names.items() if name in lists}
