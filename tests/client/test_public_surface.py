"""The names users import, that they are all there is, and that importing them is light."""

from __future__ import annotations

import inspect
import subprocess
import sys

import headrace.client
from headrace.client.admin import AsyncAdmin
from headrace.client.synchronous_admin import Admin
from headrace.model import errors

PUBLIC = {
    "Ack", "AsyncEventReader", "AsyncEventWriter", "AsyncHeadrace", "AsyncKeyValueTable", "EventBatch", "EventRead",
    "EventReader", "EventWriter", "GroupStream", "Headrace", "KeyRange", "KeyValueTable", "ReaderGroupConfiguration",
    "ReaderOptions", "RetentionMode", "RetentionPolicy", "RetentionType", "ScalingPolicy", "ScalingType",
    "SegmentReads", "StreamCut", "TableConfiguration", "TableEntry", "TableKey", "TimeWindow",
    "WriterOptions", "connect",
    "AsyncTransaction", "AsyncTransactionalWriter", "Transaction", "TransactionalWriter",
}  # fmt: skip
ERRORS = {
    "AlreadyExistsError", "ConflictError", "CorruptError", "FencedError", "HeadraceError", "IllegalStateError",
    "InvalidRequestError", "NotFoundError", "OutOfTimeError", "SealedError", "ThrottledError", "TruncatedError",
    "UnauthorizedError", "UnavailableError",
}  # fmt: skip


def test_exported_names() -> None:
    assert set(headrace.client.__all__) == PUBLIC | ERRORS
    for name in headrace.client.__all__:
        assert getattr(headrace.client, name).__doc__, name


def test_the_whole_error_tree_is_exported() -> None:
    tree = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and name.endswith("Error")}
    assert tree == ERRORS


def test_the_synchronous_admin_is_the_asynchronous_one() -> None:
    def methods(kind: type) -> dict[str, inspect.Signature]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(function) for name, function in found if not name.startswith("_")}

    assert methods(Admin) == methods(AsyncAdmin)


def test_importing_is_light() -> None:
    code = "import sys, headrace.client; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"boto3", "botocore", "pynamodb", "pyspark", "pyarrow", "numpy", "pandas", "aws_lambda_powertools", "moto"}
    assert not heavy & set(loaded)
