"""The double as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.local.resources import aws_client

ROOT = Path(__file__).resolve().parents[2]


def test_a_taken_port_is_one_clear_line(aws_endpoint: str):
    port = aws_endpoint.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "headrace.local.aws_emulator", "--port", port],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"127.0.0.1:{port}" in done.stderr.splitlines()[-1]


def test_it_listens_on_loopback_only(aws_endpoint: str):
    assert aws_endpoint.startswith("http://127.0.0.1:")


def test_objects_are_created_once(aws_endpoint: str, unique: str):
    s3 = aws_client("s3", aws_endpoint)
    s3.create_bucket(Bucket=unique.replace("_", "-").lower())
    bucket = unique.replace("_", "-").lower()
    body = bytes(range(256)) * 1024
    s3.put_object(Bucket=bucket, Key="o", Body=body, IfNoneMatch="*")
    assert s3.get_object(Bucket=bucket, Key="o", Range="bytes=256-511")["Body"].read() == bytes(range(256))
    try:
        s3.put_object(Bucket=bucket, Key="o", Body=b"", IfNoneMatch="*")
        code = ""
    except s3.exceptions.ClientError as error:
        code = error.response["Error"]["Code"]
    assert code == "PreconditionFailed"
