"""Response codes of RocketMQ, and the one table from errors to them.

Invariants: codes are those of the published protocol (enum `Code`). Do not change: on the wire. The
most specific class decides; a test walks every error class through `code_of`. What clients retry is
5xxxx and 40800; 429xx they report at once.
"""

from __future__ import annotations

import re
from typing import Any, Final

from headrace import errors
from headrace.broker.services.tenant_view import OF_ALL, TenantView
from headrace.errors import HeadraceError, Rejected

OK: Final = 20000
MULTIPLE_RESULTS: Final = 30000
BAD_REQUEST: Final = 40000
ILLEGAL_TOPIC: Final = 40002
ILLEGAL_CONSUMER_GROUP: Final = 40003
ILLEGAL_MESSAGE_TAG: Final = 40004
ILLEGAL_MESSAGE_KEY: Final = 40005
ILLEGAL_MESSAGE_GROUP: Final = 40006
ILLEGAL_MESSAGE_PROPERTY_KEY: Final = 40007
INVALID_TRANSACTION_ID: Final = 40008
ILLEGAL_MESSAGE_ID: Final = 40009
ILLEGAL_FILTER_EXPRESSION: Final = 40010
ILLEGAL_INVISIBLE_TIME: Final = 40011
ILLEGAL_DELIVERY_TIME: Final = 40012
INVALID_RECEIPT_HANDLE: Final = 40013
MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: Final = 40014
UNRECOGNIZED_CLIENT_TYPE: Final = 40015
MESSAGE_CORRUPTED: Final = 40016
CLIENT_ID_REQUIRED: Final = 40017
ILLEGAL_POLLING_TIME: Final = 40018
ILLEGAL_OFFSET: Final = 40019
ILLEGAL_LITE_TOPIC: Final = 40020
UNAUTHORIZED: Final = 40100
FORBIDDEN: Final = 40300
NOT_FOUND: Final = 40400
MESSAGE_NOT_FOUND: Final = 40401
TOPIC_NOT_FOUND: Final = 40402
CONSUMER_GROUP_NOT_FOUND: Final = 40403
OFFSET_NOT_FOUND: Final = 40404
MESSAGE_BODY_TOO_LARGE: Final = 41301
MESSAGE_BODY_EMPTY: Final = 41302
PRECONDITION_FAILED: Final = 42800
TOO_MANY_REQUESTS: Final = 42900
LITE_TOPIC_QUOTA_EXCEEDED: Final = 42901
LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Final = 42902
MESSAGE_PROPERTIES_TOO_LARGE: Final = 43101
INTERNAL_ERROR: Final = 50000
INTERNAL_SERVER_ERROR: Final = 50001
HA_NOT_AVAILABLE: Final = 50002
UNSUPPORTED: Final = 50500

SUCCESS: Final = "OK"


class Refused(Rejected):
    """A request is refused with this code, which only this protocol has."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


_CODES: Final[dict[type[HeadraceError], int]] = {
    HeadraceError: INTERNAL_SERVER_ERROR,
    errors.Retriable: INTERNAL_SERVER_ERROR,
    errors.Rejected: BAD_REQUEST,
    errors.Fenced: HA_NOT_AVAILABLE,
    errors.Fatal: INTERNAL_ERROR,
    errors.AuthenticationFailed: UNAUTHORIZED,
    errors.Unauthorized: FORBIDDEN,
    errors.DiskFull: FORBIDDEN,  # final, as for Kafka clients: retries would hide it for minutes
    errors.OffsetOutOfRange: ILLEGAL_OFFSET,
    errors.BatchCorrupt: MESSAGE_CORRUPTED,
    errors.BatchTooLarge: MESSAGE_BODY_TOO_LARGE,
    errors.RecordInvalid: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    errors.LiteTopicsFull: LITE_TOPIC_QUOTA_EXCEEDED,
    errors.TopicUnknown: TOPIC_NOT_FOUND,
    errors.TopicIdUnknown: TOPIC_NOT_FOUND,
    errors.TopicNameInvalid: ILLEGAL_TOPIC,
    errors.NotOwner: HA_NOT_AVAILABLE,
    errors.BrokerUnreachable: HA_NOT_AVAILABLE,
    errors.PolicyViolation: FORBIDDEN,
    errors.GroupIdInvalid: ILLEGAL_CONSUMER_GROUP,
    errors.GroupUnknown: CONSUMER_GROUP_NOT_FOUND,
    errors.GroupKindMismatch: ILLEGAL_CONSUMER_GROUP,
    errors.GroupNotEmpty: PRECONDITION_FAILED,
    errors.RecordStateInvalid: PRECONDITION_FAILED,
    errors.DeliverySettled: INVALID_RECEIPT_HANDLE,
    errors.DeliveryFinished: INVALID_RECEIPT_HANDLE,
    errors.DeliveryUnknown: INVALID_RECEIPT_HANDLE,
    errors.DeliveryLost: INVALID_RECEIPT_HANDLE,
    errors.ReceiptInvalid: INVALID_RECEIPT_HANDLE,
    errors.ConfigInvalid: BAD_REQUEST,
    errors.QuotaExceeded: TOO_MANY_REQUESTS,
}
_PATH: Final = re.compile(r"(?<![\w/:.])(?:/[\w.+@~-]+){2,}")
MESSAGE_LENGTH_MAX: Final = 1_000


def code_of(error: HeadraceError) -> int:
    """The code of an error."""
    if isinstance(error, Refused):
        return error.code
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    raise AssertionError("HeadraceError is in the table")


def set_status(status: Any, error: HeadraceError | None, view: TenantView = OF_ALL) -> None:
    """Fill in a Status, for a client with this view. Where files lie on the broker's machine is for
    its log alone."""
    if error is None:
        status.code, status.message = OK, SUCCESS
    else:
        status.code = code_of(error)
        status.message = _PATH.sub("(a path)", view.text(str(error)))[:MESSAGE_LENGTH_MAX]
