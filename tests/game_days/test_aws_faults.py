"""The proxy that lets one service of AWS fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aws_faults import DYNAMODB, S3, AwsFaults
from botocore.exceptions import BotoCoreError, ClientError
from emulated_aws import emulated_aws

from headrace.local.resources import aws_client

BODY = bytes(range(256)) * 4_096


@pytest.fixture(scope="module")
def faults() -> Iterator[AwsFaults]:
    with emulated_aws() as endpoint:
        proxy = AwsFaults(endpoint)
        proxy.start()
        aws_client("s3", proxy.url).create_bucket(Bucket="bucket")
        yield proxy
        proxy.stop()


def test_requests_pass(faults: AwsFaults):
    s3 = aws_client("s3", faults.url)
    s3.put_object(Bucket="bucket", Key="object", Body=BODY)
    assert s3.head_object(Bucket="bucket", Key="object")["ContentLength"] == len(BODY)
    assert s3.get_object(Bucket="bucket", Key="object", Range="bytes=1-9")["Body"].read() == BODY[1:10]
    assert aws_client("dynamodb", faults.url).list_tables()["TableNames"] == []


def test_one_service_fails_and_the_other_works(faults: AwsFaults):
    s3, dynamodb = aws_client("s3", faults.url), aws_client("dynamodb", faults.url)
    faults.throttled = frozenset({S3})
    with pytest.raises(ClientError, match="SlowDown"):
        s3.put_object(Bucket="bucket", Key="other", Body=BODY)
    assert dynamodb.list_tables()["TableNames"] == []
    faults.throttled, faults.unreachable = frozenset(), frozenset({DYNAMODB})
    with pytest.raises(BotoCoreError):
        dynamodb.list_tables()
    assert len(s3.list_objects_v2(Bucket="bucket").get("Contents", ())) <= 1
    faults.unreachable = frozenset()
    assert dynamodb.list_tables()["TableNames"] == []
