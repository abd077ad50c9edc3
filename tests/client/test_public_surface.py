"""The names users import, that they are all there is, and that importing them is light."""

from __future__ import annotations

import ast
import gc
import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from syntax_trees import syntax_tree

import headrace.client
from headrace.client import connect
from headrace.client.administration.admin import AsyncAdmin
from headrace.client.administration.operators_admin import AsyncClusterAdmin, AsyncDeadLettersAdmin
from headrace.client.administration.reader_groups_admin import AsyncReaderGroupsAdmin
from headrace.client.administration.retention_admin import AsyncRetentionAdmin, AsyncSubscribersAdmin
from headrace.client.administration.tables_admin import AsyncTablesAdmin
from headrace.client.administration.transactions_admin import AsyncTransactionsAdmin
from headrace.client.administration.watermarks_admin import AsyncWatermarksAdmin
from headrace.client.headrace import DEFAULT_URL
from headrace.client.http_api import HttpApi
from headrace.client.lazy_imports import lazy_part
from headrace.client.synchronous.synchronous_admin import Admin
from headrace.client.synchronous.synchronous_operators_admin import ClusterAdmin, DeadLettersAdmin
from headrace.client.synchronous.synchronous_reader_groups_admin import ReaderGroupsAdmin
from headrace.client.synchronous.synchronous_retention_admin import RetentionAdmin, SubscribersAdmin
from headrace.client.synchronous.synchronous_tables_admin import TablesAdmin
from headrace.client.synchronous.synchronous_transactions_admin import TransactionsAdmin
from headrace.client.synchronous.synchronous_watermarks_admin import WatermarksAdmin
from headrace.model import errors
from headrace.model.arguments import _hint

PUBLIC = {
    "Ack", "AsyncEventReader", "AsyncEventWriter", "AsyncHeadrace", "AsyncKeyValueTable", "EventBatch", "EventRead",
    "EventReader", "EventWriter", "GroupStream", "Headrace", "KeyRange", "KeyValueTable", "ReaderGroupConfiguration",
    "ReaderOptions", "ReadOrder", "RetentionMode", "RetentionPolicy", "RetentionType", "ScalingPolicy", "ScalingType",
    "SegmentLag", "StreamCut", "TableConfiguration", "TableEntry", "TableKey", "TimeWindow",
    "WriterOptions", "connect", "TlsOptions",
    "AsyncTransaction", "AsyncTransactionalWriter", "Transaction", "TransactionalWriter",
    "AsyncRevisionedStream", "AsyncStateSynchronizer", "RevisionedEntry", "RevisionedStream", "StateForm",
    "StateSynchronizer", "AsyncGroupReader", "AsyncReaderGroup", "Checkpoint", "GroupBatch", "GroupEvent", "GroupLag",
    "GroupReader", "GroupReaderOptions", "ReaderGroup", "StreamSegmentName", "LogClass",
    "AsyncByteReader", "AsyncByteStream", "AsyncByteWriter", "ByteReader", "ByteStream", "ByteWriter",
    "AsyncRangeReader", "RangeReader", "SegmentRange", "TransformOptions", "Transformed", "GroupStatus", "ReaderStatus",
}  # fmt: skip
ERRORS = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and name.endswith("Error")}


def test_exported_names() -> None:
    assert set(headrace.client.__all__) == PUBLIC | ERRORS
    for name in headrace.client.__all__:
        assert getattr(headrace.client, name).__doc__, name


def test_only_public_names_are_shown() -> None:
    assert set(dir(headrace.client)) == set(headrace.client.__all__)


ADMINS = {
    "admin": (Admin, AsyncAdmin),
    "cluster": (ClusterAdmin, AsyncClusterAdmin),
    "dead_letters": (DeadLettersAdmin, AsyncDeadLettersAdmin),
    "reader_groups": (ReaderGroupsAdmin, AsyncReaderGroupsAdmin),
    "retention": (RetentionAdmin, AsyncRetentionAdmin),
    "subscribers": (SubscribersAdmin, AsyncSubscribersAdmin),
    "tables": (TablesAdmin, AsyncTablesAdmin),
    "transactions": (TransactionsAdmin, AsyncTransactionsAdmin),
    "watermarks": (WatermarksAdmin, AsyncWatermarksAdmin),
}


@pytest.mark.parametrize(("synchronous", "asynchronous"), ADMINS.values(), ids=ADMINS)
def test_the_synchronous_admin_is_the_asynchronous_one(synchronous: type, asynchronous: type) -> None:
    def methods(kind: type) -> dict[str, tuple[inspect.Signature, str | None]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: (inspect.signature(function), inspect.getdoc(function))
            for name, function in members
            if not name.startswith("_")
        }

    assert methods(synchronous) == methods(asynchronous)


FILE_METHODS = {"flush", "readable", "seekable", "writable"}
"""What `io` asks of a file; the asynchronous byte streams are not files."""


def _public(kind: type) -> set[str]:
    iterates = {"iterates"} if hasattr(kind, "__iter__") or hasattr(kind, "__aiter__") else set()
    return {name for name in dir(kind) if not name.startswith("_")} | iterates


@pytest.mark.parametrize("name", sorted(public_name for public_name in PUBLIC if public_name.startswith("Async")))
def test_both_clients_use_the_same_words(name: str) -> None:
    """Each method of a synchronous class has a twin. The asynchronous one may have more for the generated class."""
    assert _public(getattr(headrace.client, name[5:])) - FILE_METHODS <= _public(getattr(headrace.client, name))


def test_both_entry_points_have_the_same_signatures() -> None:
    def parameters(kind: type) -> dict[str, list[str]]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(function).parameters) for name, function in members if not name.startswith("_")
        }

    assert parameters(headrace.client.Headrace) == parameters(headrace.client.AsyncHeadrace)


def test_every_part_of_the_asynchronous_admin_is_compared() -> None:
    admin = AsyncAdmin(HttpApi(DEFAULT_URL))
    parts = {name: type(getattr(admin, name)) for name, part in vars(AsyncAdmin).items() if isinstance(part, lazy_part)}
    del parts["delegation_tokens"]  # connections use it, not programs
    del parts["trust"]
    assert {"admin": AsyncAdmin} | parts == {name: asynchronous for name, (_, asynchronous) in ADMINS.items()}


def test_a_second_close_does_nothing(recwarn: pytest.WarningsRecorder) -> None:
    gc.collect()  # Python complains about the garbage of other tests before
    recwarn.clear()
    with connect() as client:
        client.close()
    client.close()
    del client
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_names_are_imported_from_their_modules() -> None:
    tree = syntax_tree(inspect.getsource(headrace.client))
    imports = next(node.body for node in tree.body if isinstance(node, ast.If))
    listed = {
        each.module: tuple(name.name for name in each.names) for each in imports if isinstance(each, ast.ImportFrom)
    }
    assert listed == headrace.client._NAMES


def test_a_name_that_is_not_public_is_missing() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        headrace.client.Nonsense  # type: ignore[attr-defined]  # noqa: B018


LATE_ONLY = """
import sys
from headrace.client import connect
with connect("http://127.0.0.1:1") as client:
    client.admin
print(*sorted(sys.modules))
"""


def test_a_client_loads_its_parts_at_their_first_use() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", LATE_ONLY], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "headrace.client.administration.admin" in loaded
    late = {"headrace.wire", "msgspec", "headrace.client.trust", "headrace.client.writing", "headrace.client.reading"}
    assert not late & set(loaded)


@pytest.mark.parametrize("kind", [headrace.client.Headrace, headrace.client.AsyncHeadrace, AsyncAdmin])
def test_the_check_of_arguments_knows_all_types(kind: type) -> None:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            unwrapped = inspect.unwrap(method)
            parameters = [each for each in inspect.signature(unwrapped).parameters if each != "self"]
            assert None not in [_hint(unwrapped, each) for each in parameters], name


def test_threads_get_the_same_part() -> None:
    admin = AsyncAdmin(HttpApi(DEFAULT_URL))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: admin.delegation_tokens, range(64)))
    assert all(each is admin.delegation_tokens for each in found)


def test_importing_is_light() -> None:
    code = "import sys, headrace.client; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"boto3", "botocore", "pynamodb", "pyspark", "pyarrow", "numpy", "pandas", "aws_lambda_powertools", "moto"}
    assert not heavy & set(loaded)
