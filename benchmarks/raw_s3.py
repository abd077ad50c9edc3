"""What the S3 that we are measured with gives: here a double, whose speed says nothing about AWS."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import botocore.session
import httpx

OBJECT_BYTES = 32 * 1024 * 1024
"""What the store writes while much is appended."""
RANGE = {"Range": f"bytes=0-{OBJECT_BYTES - 1}"}
LINK_LIFE_S = 3600


def s3_get_mb_per_s(environment: Mapping[str, str], seconds: float, threads: int) -> float:
    """Ranged GETs of one object over presigned links, `threads` at a time, for at least `seconds`."""
    link = _stored_object(environment)
    with httpx.Client() as http, ThreadPoolExecutor(threads) as pool:

        def fetch(_: int) -> int:
            return len(http.get(link, headers=RANGE).raise_for_status().content)

        started_s = time.perf_counter()
        received = 0
        while (elapsed_s := time.perf_counter() - started_s) < seconds:
            received += sum(pool.map(fetch, range(threads)))
    return received / elapsed_s / 1e6


def _stored_object(environment: Mapping[str, str]) -> str:
    client: Any = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )
    bucket = f"benchmark-raw-{os.urandom(8).hex()}"
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="object", Body=os.urandom(OBJECT_BYTES))
    parameters = {"Bucket": bucket, "Key": "object"}
    link: str = client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=LINK_LIFE_S)
    client.close()
    return link
