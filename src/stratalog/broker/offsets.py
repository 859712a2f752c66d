"""Where a log begins and ends: ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code
from stratalog.broker.metadata import INTERNAL, wrong_epoch
from stratalog.errors import StratalogError
from stratalog.log.read.list_offsets import OffsetSpec

if TYPE_CHECKING:
    from stratalog.broker.server import Request

COMMITTED = 1
NEVER = 2**15
SINCE = {
    OffsetSpec.LATEST: 0,
    OffsetSpec.EARLIEST: 0,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
}
"""From which version on a request may name each special offset."""


def list_offsets(request: Request) -> None:
    """Find offsets by time, or by what they are: the first, the last, that of the largest timestamp."""
    made = request.response
    topic, part = made.struct("ListOffsetsTopicResponse"), made.struct("ListOffsetsPartitionResponse")
    isolation = "read_committed" if request.body.isolation_level == COMMITTED else "read_uncommitted"

    def find(name: str, each: Any) -> Any:
        if each.timestamp < 0 and request.version < SINCE.get(each.timestamp, NEVER):
            return failed(each, Code.UNSUPPORTED_VERSION)
        topic = request.broker.store.topic(name)
        code = wrong_epoch(request, name, each.partition_index, each.current_leader_epoch)
        if code:
            return failed(each, code)
        found = topic.list_offset(each.partition_index, each.timestamp, isolation=isolation)
        if found is None:
            return part(partition_index=each.partition_index, offset=-1)
        return part(
            partition_index=each.partition_index,
            offset=found.offset,
            timestamp=found.timestamp,
            leader_epoch=found.leader_epoch,
        )

    def failed(each: Any, code: Code) -> Any:
        return part(partition_index=each.partition_index, error_code=code, offset=-1)

    _for_each_partition(
        request,
        [(each.name, each.partitions) for each in request.body.topics],
        find,
        failed,
        lambda found: made(topics=[topic(name=name, partitions=parts) for name, parts in found]),
    )


def offset_for_leader_epoch(request: Request) -> None:
    """Tell where leader epochs end."""
    made = request.response
    topic, part = made.struct("OffsetForLeaderTopicResult"), made.struct("EpochEndOffset")

    def find(name: str, each: Any) -> Any:
        topic = request.broker.store.topic(name)
        code = wrong_epoch(request, name, each.partition, each.current_leader_epoch)
        if code:
            return failed(each, code)
        found = topic.end_of_epoch(each.partition, each.leader_epoch)
        return part(partition=each.partition, leader_epoch=found.epoch, end_offset=found.end_offset)

    def failed(each: Any, code: Code) -> Any:
        return part(partition=each.partition, error_code=code)

    _for_each_partition(
        request,
        [(each.topic, each.partitions) for each in request.body.topics],
        find,
        failed,
        lambda found: made(topics=[topic(topic=name, partitions=parts) for name, parts in found]),
    )


def delete_records(request: Request) -> None:
    """Move the log start offset of partitions up."""
    made = request.response
    topic, part = made.struct("DeleteRecordsTopicResult"), made.struct("DeleteRecordsPartitionResult")

    def delete(name: str, each: Any) -> Any:
        found = request.broker.store.topic(name)
        if name in INTERNAL:  # whatever its policy: the coordinators read it from the start
            return failed(each, Code.INVALID_TOPIC_EXCEPTION)
        if found.config.cleanup_policy == {"compact"}:
            return failed(each, Code.POLICY_VIOLATION)
        if each.offset < -1 or each.offset > found.high_watermark(each.partition_index):
            return failed(each, Code.OFFSET_OUT_OF_RANGE)
        return part(
            partition_index=each.partition_index,
            low_watermark=found.delete_records(each.partition_index, each.offset),
        )

    def failed(each: Any, code: Code) -> Any:
        return part(partition_index=each.partition_index, low_watermark=-1, error_code=code)

    _for_each_partition(
        request,
        [(each.name, each.partitions) for each in request.body.topics],
        delete,
        failed,
        lambda found: made(topics=[topic(name=name, partitions=parts) for name, parts in found]),
    )


Found = list[tuple[str, list[Any]]]


def _for_each_partition(
    request: Request,
    wanted: list[tuple[str, tuple[Any, ...]]],
    act: Callable[[str, Any], Any],
    failed: Callable[[Any, Code], Any],
    answer: Callable[[Found], Any],
) -> None:
    """Do something for each partition off the loop: it may read the disk or an archive."""

    def one(name: str, each: Any) -> Any:
        try:
            return act(name, each)
        except (StratalogError, OSError) as error:
            return failed(each, request.code_of(error))

    def work() -> Found:
        return [(name, [one(name, each) for each in parts]) for name, parts in wanted]

    def then(found: Found | BaseException) -> None:
        if isinstance(found, BaseException):
            code = request.code_of(found)
            found = [(name, [failed(each, code) for each in parts]) for name, parts in wanted]
        request.answer(answer(found))

    request.off_loop(work, then)
