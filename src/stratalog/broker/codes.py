"""Errors: Kafka's codes for clients, and lines in the log for an operator.

What goes wrong again and again is in the log once in a while: a full disk fails thousands of requests. The
first of a kind is logged at once; while more come, the last one and their number every ten seconds.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Hashable
from functools import partial

from stratalog import errors
from stratalog.broker.loop import EventLoop

QUIET_S = 10.0
AGAIN_S = 0.5
"""How long clients wait for the news that a write of their group failed: some try again at once, for ever."""
MAX_KINDS = 1000
"""Kinds that are counted at the same time; those beyond are not logged."""

_log = logging.getLogger("stratalog.broker")


class Code(enum.IntEnum):
    """Kafka's names and numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


_CODES: tuple[tuple[type[BaseException], Code], ...] = (
    (errors.UnknownTopicError, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.UnknownPartitionError, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.OffsetOutOfRangeError, Code.OFFSET_OUT_OF_RANGE),
    (errors.TopicExistsError, Code.TOPIC_ALREADY_EXISTS),
    (errors.InvalidTopicError, Code.INVALID_TOPIC_EXCEPTION),
    (errors.ConfigError, Code.INVALID_CONFIG),
    (errors.RecordTooLargeError, Code.MESSAGE_TOO_LARGE),
    (errors.InvalidRecordError, Code.INVALID_RECORD),
    (errors.UnsupportedCodecError, Code.UNSUPPORTED_COMPRESSION_TYPE),
    (errors.OutOfOrderSequenceError, Code.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.DuplicateSequenceError, Code.DUPLICATE_SEQUENCE_NUMBER),
    (errors.InvalidProducerEpochError, Code.INVALID_PRODUCER_EPOCH),
    (errors.InvalidProducerIdMappingError, Code.INVALID_PRODUCER_ID_MAPPING),
    (errors.InvalidTxnStateError, Code.INVALID_TXN_STATE),
    (errors.InvalidArgumentError, Code.INVALID_REQUEST),
    (errors.ClosedError, Code.NOT_LEADER_OR_FOLLOWER),
    (errors.FormatError, Code.CORRUPT_MESSAGE),
    (errors.StorageError, Code.KAFKA_STORAGE_ERROR),
    (errors.ReadOnlyError, Code.KAFKA_STORAGE_ERROR),
    (errors.ArchiveError, Code.KAFKA_STORAGE_ERROR),
    (OSError, Code.KAFKA_STORAGE_ERROR),
)


def code_of(error: BaseException) -> Code:
    """Return Kafka's code for an error; the first kind in the table that fits."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return Code.UNKNOWN_SERVER_ERROR


class _Kind:
    """What was not logged yet of one kind of trouble."""

    __slots__ = ("count", "text")

    def __init__(self) -> None:
        self.count = 0
        self.text = ""


class Troubles:
    """The troubles of one broker."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._kinds: dict[Hashable, _Kind] = {}

    def tell_soon(self, kind: Hashable, text: str) -> None:
        """Do as `tell`; any thread may call it."""
        self._loop.call_soon(partial(self.tell, kind, text))

    def tell(self, kind: Hashable, text: str) -> None:
        """Log a trouble, or count it; in the loop's thread."""
        known = self._kinds.get(kind)
        if known is not None:
            known.count += 1
            known.text = text
        elif len(self._kinds) < MAX_KINDS:
            self._kinds[kind] = _Kind()
            self._loop.call_later(QUIET_S, partial(self._again, kind))
            _log.warning("%s", text)

    def _again(self, kind: Hashable) -> None:
        known = self._kinds.pop(kind)
        if known.count:
            self._kinds[kind] = _Kind()
            self._loop.call_later(QUIET_S, partial(self._again, kind))
            _log.warning("%s (%d times in %g s)", known.text, known.count, QUIET_S)
