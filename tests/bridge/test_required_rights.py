"""The table of rights: complete, and no looser than Pravega's where that matters."""

from __future__ import annotations

import pytest
from google.protobuf.message_factory import GetMessageClass

from headrace.bridge import controller_pb2 as pb
from headrace.bridge.authentication import LISTS, TOKEN_REPLIES
from headrace.bridge.required_rights import REQUIRED_RIGHTS, Right
from headrace.bridge.server import SERVICE
from headrace.model.access import Access

RPCS = [method.name for method in SERVICE.methods]
STREAM = pb.StreamInfo(scope="s", stream="t")
GROUP = pb.StreamInfo(scope="s", stream="_RGg")
MARK = pb.StreamInfo(scope="s", stream="_MARKt")
TABLE = pb.StreamInfo(scope="s", stream="t_kvtable")
OF_STREAM, OF_TABLE, OF_GROUP = (
    f"prn::/scope:s/{kind}" for kind in ("stream:t", "key-value-table:t", "reader-group:t")
)


def test_every_rpc_has_its_rights():
    assert sorted(REQUIRED_RIGHTS) == sorted(RPCS)


@pytest.mark.parametrize("rpc", RPCS)
def test_rights_of_an_empty_request_can_be_told(rpc: str):
    request = GetMessageClass(SERVICE.methods_by_name[rpc].input_type)()
    for right in REQUIRED_RIGHTS[rpc](request):
        assert right.access in (Access.READ, Access.READ_UPDATE)
        assert right.resources


def test_every_reply_with_a_token_gets_one():
    with_token = [method.name for method in SERVICE.methods if "delegationToken" in method.output_type.fields_by_name]
    assert sorted(TOKEN_REPLIES) == sorted(with_token)


def test_every_reply_with_pages_is_filtered():
    with_pages = [method.name for method in SERVICE.methods if "continuationToken" in method.output_type.fields_by_name]
    assert sorted(LISTS) == sorted(with_pages)
    for rpc, found in LISTS.items():
        assert found.field in SERVICE.methods_by_name[rpc].output_type.fields_by_name


def test_only_the_list_of_bridges_needs_no_right():
    empty = {rpc: GetMessageClass(SERVICE.methods_by_name[rpc].input_type)() for rpc in RPCS}
    assert [rpc for rpc in RPCS if not list(REQUIRED_RIGHTS[rpc](empty[rpc]))] == ["getControllerServerList"]


@pytest.mark.parametrize(
    "rpc",
    [
        "createScope",
        "deleteScope",
        "deleteScopeRecursive",
        "createStream",
        "updateStream",
        "truncateStream",
        "sealStream",
        "deleteStream",
        "scale",
        "createTransaction",
        "pingTransaction",
        "commitTransaction",
        "abortTransaction",
        "listSubscribers",
        "updateSubscriberStreamCut",
        "noteTimestampFromWriter",
        "removeWriter",
        "createKeyValueTable",
        "deleteKeyValueTable",
    ],
)
def test_changes_need_read_update(rpc: str):
    request = GetMessageClass(SERVICE.methods_by_name[rpc].input_type)()
    assert [right.access for right in REQUIRED_RIGHTS[rpc](request)] == [Access.READ_UPDATE]


@pytest.mark.parametrize(
    ("rpc", "request_message", "expected"),
    [
        ("createScope", pb.ScopeInfo(scope="s"), [Right(Access.READ_UPDATE, ("prn::/",))]),
        ("checkScopeExists", pb.ScopeInfo(scope="s"), [Right(Access.READ, ("prn::/scope:s",))]),
        ("createStream", pb.StreamConfig(streamInfo=STREAM), [Right(Access.READ_UPDATE, ("prn::/scope:s",))]),
        ("sealStream", STREAM, [Right(Access.READ_UPDATE, (OF_STREAM,))]),
        ("getSegments", pb.GetSegmentsRequest(streamInfo=MARK), [Right(Access.READ, (OF_STREAM,))]),
        ("getCurrentSegments", GROUP, [Right(Access.READ, ("prn::/scope:s/reader-group:g",))]),
        ("getURI", pb.SegmentId(streamInfo=STREAM), [Right(Access.READ, (OF_STREAM, OF_TABLE))]),
        ("getURI", pb.SegmentId(streamInfo=TABLE), [Right(Access.READ, (OF_TABLE, OF_GROUP))]),
        ("getDelegationToken", GROUP, [Right(Access.READ, ("prn::/scope:s/reader-group:g",))]),
        ("deleteKeyValueTable", pb.KeyValueTableInfo(scope="s", kvtName="t"), [Right(Access.READ_UPDATE, (OF_TABLE,))]),
        (
            "createReaderGroup",
            pb.ReaderGroupConfiguration(
                scope="s", readerGroupName="g", startingStreamCuts=[pb.StreamCut(streamInfo=STREAM)]
            ),
            [Right(Access.READ, ("prn::/scope:s",)), Right(Access.READ, (OF_STREAM,))],
        ),
    ],
)
def test_rights_of_a_request(rpc: str, request_message: object, expected: list[Right]):
    assert list(REQUIRED_RIGHTS[rpc](request_message)) == expected
