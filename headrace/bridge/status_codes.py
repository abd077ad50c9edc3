"""The error tree as gRPC: a table of the statuses inside replies, and the status of a call.

Most replies of Pravega's controller have a status on which clients act. An error for which an rpc has no such status
becomes the status of the call, which its class names. That status also decides whether clients try again:
INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED and OUT_OF_RANGE are final for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from headrace.bridge import controller_pb2 as pb
from headrace.model import errors

DEADLINE_EXCEEDED = "deadline_exceeded"
UNAUTHENTICATED = "unauthenticated"
"""The code of an UnauthorizedError about the credentials; without it, the error is about what the user may do."""

_CODE_BY_SPECIFIC_CODE = {
    DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
}

_TXN_STATUS_BY_ERROR: Mapping[type[errors.HeadraceError] | str, Message] = {
    "transaction_not_found": pb.TxnStatus(status=pb.TxnStatus.TRANSACTION_NOT_FOUND),
    errors.NotFoundError: pb.TxnStatus(status=pb.TxnStatus.STREAM_NOT_FOUND),
    errors.IllegalStateError: pb.TxnStatus(status=pb.TxnStatus.FAILURE),
}

REPLY_BY_ERROR: dict[str, Mapping[type[errors.HeadraceError] | str, Message]] = {
    "createScope": {
        errors.AlreadyExistsError: pb.CreateScopeStatus(status=pb.CreateScopeStatus.SCOPE_EXISTS),
        "invalid_name": pb.CreateScopeStatus(status=pb.CreateScopeStatus.INVALID_SCOPE_NAME),
    },
    "deleteScope": {
        errors.NotFoundError: pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_FOUND),
        "scope_not_empty": pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_EMPTY),
    },
    "deleteScopeRecursive": {
        errors.NotFoundError: pb.DeleteScopeStatus(status=pb.DeleteScopeStatus.SCOPE_NOT_FOUND),
    },
    "checkScopeExists": {errors.NotFoundError: pb.ExistsResponse(exists=False)},
    "createStream": {
        errors.AlreadyExistsError: pb.CreateStreamStatus(status=pb.CreateStreamStatus.STREAM_EXISTS),
        errors.NotFoundError: pb.CreateStreamStatus(status=pb.CreateStreamStatus.SCOPE_NOT_FOUND),
        "invalid_name": pb.CreateStreamStatus(status=pb.CreateStreamStatus.INVALID_STREAM_NAME),
    },
    "checkStreamExists": {errors.NotFoundError: pb.ExistsResponse(exists=False)},
    "listStreamsInScope": {
        errors.NotFoundError: pb.StreamsInScopeResponse(status=pb.StreamsInScopeResponse.SCOPE_NOT_FOUND)
    },
    "listStreamsInScopeForTag": {
        errors.NotFoundError: pb.StreamsInScopeResponse(status=pb.StreamsInScopeResponse.SCOPE_NOT_FOUND)
    },
    "updateStream": {
        errors.NotFoundError: pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.STREAM_NOT_FOUND),
        errors.SealedError: pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.STREAM_SEALED),
    },
    "truncateStream": {
        errors.NotFoundError: pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.STREAM_NOT_FOUND),
        errors.SealedError: pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.STREAM_SEALED),
    },
    "sealStream": {errors.NotFoundError: pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.STREAM_NOT_FOUND)},
    "deleteStream": {
        errors.NotFoundError: pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_FOUND),
        "stream_not_sealed": pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.STREAM_NOT_SEALED),
    },
    "pingTransaction": {
        "lease_too_large": pb.PingTxnStatus(status=pb.PingTxnStatus.LEASE_TOO_LARGE),
        "max_execution_time_exceeded": pb.PingTxnStatus(status=pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED),
        "transaction_committed": pb.PingTxnStatus(status=pb.PingTxnStatus.COMMITTED),
        "transaction_aborted": pb.PingTxnStatus(status=pb.PingTxnStatus.ABORTED),
    },
    "commitTransaction": _TXN_STATUS_BY_ERROR,
    "abortTransaction": _TXN_STATUS_BY_ERROR,
    "checkTransactionState": {"transaction_not_found": pb.TxnState(state=pb.TxnState.UNKNOWN)},
    "scale": {
        errors.InvalidRequestError: pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED),
        errors.IllegalStateError: pb.ScaleResponse(status=pb.ScaleResponse.PRECONDITION_FAILED),
    },
    "checkScale": {errors.NotFoundError: pb.ScaleStatusResponse(status=pb.ScaleStatusResponse.INVALID_INPUT)},
    "noteTimestampFromWriter": {
        "invalid_time": pb.TimestampResponse(result=pb.TimestampResponse.INVALID_TIME),
        "invalid_position": pb.TimestampResponse(result=pb.TimestampResponse.INVALID_POSITION),
    },
    "removeWriter": {
        "writer_not_found": pb.RemoveWriterResponse(result=pb.RemoveWriterResponse.UNKNOWN_WRITER),
        errors.NotFoundError: pb.RemoveWriterResponse(result=pb.RemoveWriterResponse.STREAM_DOES_NOT_EXIST),
    },
    "listSubscribers": {errors.NotFoundError: pb.SubscribersResponse(status=pb.SubscribersResponse.STREAM_NOT_FOUND)},
    "updateSubscriberStreamCut": {
        errors.NotFoundError: pb.UpdateSubscriberStatus(status=pb.UpdateSubscriberStatus.STREAM_NOT_FOUND),
        "subscriber_not_found": pb.UpdateSubscriberStatus(status=pb.UpdateSubscriberStatus.SUBSCRIBER_NOT_FOUND),
        "stream_cut_not_valid": pb.UpdateSubscriberStatus(status=pb.UpdateSubscriberStatus.STREAM_CUT_NOT_VALID),
        "generation_mismatch": pb.UpdateSubscriberStatus(status=pb.UpdateSubscriberStatus.GENERATION_MISMATCH),
    },
    "createReaderGroup": {
        errors.NotFoundError: pb.CreateReaderGroupResponse(status=pb.CreateReaderGroupResponse.SCOPE_NOT_FOUND),
        "stream_not_found": pb.CreateReaderGroupResponse(status=pb.CreateReaderGroupResponse.FAILURE),
        "invalid_name": pb.CreateReaderGroupResponse(status=pb.CreateReaderGroupResponse.INVALID_RG_NAME),
    },
    "updateReaderGroup": {
        errors.NotFoundError: pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.RG_NOT_FOUND),
        "stream_not_found": pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.FAILURE),
        errors.InvalidRequestError: pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.FAILURE),
        # Java clients read the configuration and try again after INVALID_CONFIG: it means another generation only.
        "reader_group_mismatch": pb.UpdateReaderGroupResponse(status=pb.UpdateReaderGroupResponse.INVALID_CONFIG),
    },
    "getReaderGroupConfig": {
        errors.NotFoundError: pb.ReaderGroupConfigResponse(status=pb.ReaderGroupConfigResponse.RG_NOT_FOUND)
    },
    "deleteReaderGroup": {
        errors.NotFoundError: pb.DeleteReaderGroupStatus(status=pb.DeleteReaderGroupStatus.RG_NOT_FOUND),
        "reader_group_mismatch": pb.DeleteReaderGroupStatus(status=pb.DeleteReaderGroupStatus.RG_NOT_FOUND),
    },
    "createKeyValueTable": {
        errors.AlreadyExistsError: pb.CreateKeyValueTableStatus(status=pb.CreateKeyValueTableStatus.TABLE_EXISTS),
        errors.NotFoundError: pb.CreateKeyValueTableStatus(status=pb.CreateKeyValueTableStatus.SCOPE_NOT_FOUND),
        "invalid_name": pb.CreateKeyValueTableStatus(status=pb.CreateKeyValueTableStatus.INVALID_TABLE_NAME),
    },
    "listKeyValueTablesInScope": {
        errors.NotFoundError: pb.KVTablesInScopeResponse(status=pb.KVTablesInScopeResponse.SCOPE_NOT_FOUND)
    },
    "getKeyValueTableConfiguration": {
        errors.NotFoundError: pb.KeyValueTableConfigResponse(status=pb.KeyValueTableConfigResponse.TABLE_NOT_FOUND)
    },
    "deleteKeyValueTable": {
        errors.NotFoundError: pb.DeleteKVTableStatus(status=pb.DeleteKVTableStatus.TABLE_NOT_FOUND)
    },
    "isSegmentValid": {errors.NotFoundError: pb.SegmentValidityResponse(response=False)},
    "isStreamCutValid": {
        errors.NotFoundError: pb.StreamCutValidityResponse(response=False),
        errors.InvalidRequestError: pb.StreamCutValidityResponse(response=False),
    },
}
"""Replies by rpc, and then by the specific code of the error, or by its class or the nearest parent class."""


def reply_of(rpc: str, error: errors.HeadraceError) -> Message | None:
    """The reply whose status reports the error, or None if the rpc has no such status."""
    reply: Message | None = _nearest(REPLY_BY_ERROR.get(rpc, {}), error)
    return reply


def code_of(error: errors.HeadraceError) -> grpc.StatusCode:
    """The status of a call that ends with the error."""
    return _CODE_BY_SPECIFIC_CODE.get(error.specific_code) or grpc.StatusCode[error.reported_as.grpc_status]


def _nearest(table: Mapping[Any, Any], error: errors.HeadraceError) -> Any:
    if error.specific_code in table:
        return table[error.specific_code]
    return next((table[kind] for kind in type(error).__mro__ if kind in table), None)
