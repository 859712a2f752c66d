"""Produce: batches into the log, acknowledged as the client and the topic ask."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker import transactions
from stratalog.broker.codes import Code
from stratalog.broker.metadata import INTERNAL, find_topic
from stratalog.errors import StratalogError
from stratalog.format import batch as batches
from stratalog.log.write.produce import BatchesAppended
from stratalog.store.topic import Topic

if TYPE_CHECKING:
    from stratalog.broker.server import Request

MAGIC_AT, MAGIC = 16, 2
"""Where a batch has its format, and the one that every request here has."""


def produce(request: Request) -> None:
    """Append to every partition first, then wait once for those whose topic wants them on disk."""
    body = request.body
    if body.acks not in (-1, 0, 1):
        _refuse(request, Code.INVALID_REQUIRED_ACKS)
        return
    if body.transactional_id is None:
        _append_all(request)
        return

    def admitted(error: BaseException | None) -> None:
        if error is None:
            _append_all(request)
        else:
            _refuse(request, transactions.produce_code(error, request.version))

    transactions.admit(request, admitted)


def _append_all(request: Request) -> None:
    answer = _Answer(request)
    for topic in request.body.topic_data:
        answer.add_topic(topic)
    answer.finish()


def answer_one(request: Request, topic: Topic, outcome: BatchesAppended | BaseException) -> None:
    """Answer a request of one partition whose batches were appended, or refused, before."""
    answer = _Answer(request)
    [data] = request.body.topic_data
    answer.add_outcome(data, topic, outcome)
    answer.finish()


class _Answer:
    """The answer of one request, sent when the last partition is durable enough."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._parts: list[tuple[Any, list[Any]]] = []
        self._left = 1  # the request itself, until `finish`

    def add_topic(self, data: Any) -> None:
        parts: list[Any] = []
        self._parts.append((data, parts))
        for part in data.partition_data:
            parts.append(self._append(data, part, parts, len(parts)))

    def add_outcome(self, data: Any, topic: Topic, outcome: BatchesAppended | BaseException) -> None:
        [part] = data.partition_data
        parts: list[Any] = []
        self._parts.append((data, parts))
        if isinstance(outcome, BaseException):
            parts.append(self._refused(part, outcome))
        else:
            parts.append(self._placed(topic, part.index, outcome, parts, 0))

    def finish(self) -> None:
        self._left -= 1
        if self._left:
            return
        request, made = self._request, self._request.response
        if request.body.acks == 0:
            failed = [part for _, parts in self._parts for part in parts if part.error_code]
            if failed:  # the only way to tell a client that asks for no answer
                request.connection.close(
                    f"a produce without acknowledgement failed: {failed[0].error_message}"
                )
            else:
                request.no_answer()
            return
        topic = made.struct("TopicProduceResponse")
        request.answer(
            made(
                responses=[
                    topic(name=data.name, topic_id=data.topic_id, partition_responses=parts)
                    for data, parts in self._parts
                ]
            )
        )

    def _append(self, data: Any, part: Any, parts: list[Any], at: int) -> Any:
        request = self._request
        made = request.response.struct("PartitionProduceResponse")
        try:
            topic = find_topic(request, data.name, data.topic_id)
            if topic is None:
                unknown = Code.UNKNOWN_TOPIC_ID if request.version >= 13 else Code.UNKNOWN_TOPIC_OR_PARTITION
                return made(index=part.index, error_code=unknown, base_offset=-1)
            if part.records is None:
                return made(index=part.index, error_code=Code.INVALID_RECORD, base_offset=-1)
            if topic.name in INTERNAL:
                return made(index=part.index, error_code=Code.INVALID_TOPIC_EXCEPTION, base_offset=-1)
            guard = None
            if request.body.transactional_id is not None:
                place = (topic.name, part.index)
                guard = partial(
                    request.broker.store.transactions.check_batch, request.body.transactional_id, place
                )
            elif batches.has_transactional(part.records):  # it would never be ended
                refused = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                return made(index=part.index, error_code=refused, base_offset=-1)
            placed = topic.append_batches(part.index, part.records, wait=False, guard=guard)
            return self._placed(topic, part.index, placed, parts, at)
        except (StratalogError, OSError) as error:
            return self._refused(part, error)

    def _refused(self, part: Any, error: BaseException) -> Any:
        failed = self._failed(part.index, error)
        magic = part.records[MAGIC_AT : MAGIC_AT + 1]
        if failed.error_code == Code.CORRUPT_MESSAGE and len(magic) and magic[0] < MAGIC:
            failed = failed._replace(error_code=Code.INVALID_RECORD)
        return failed

    def _placed(self, topic: Topic, index: int, placed: BatchesAppended, parts: list[Any], at: int) -> Any:
        request = self._request
        if placed.flush_due:  # readers see it from then on, also if no client waits
            waiter = None
            if request.body.acks:
                self._left += 1
                waiter = partial(self._synced, parts, at)
            request.broker.syncs.add(topic, index, placed.last_offset + 1, waiter)
        return request.response.struct("PartitionProduceResponse")(
            index=index,
            base_offset=placed.base_offset,
            log_append_time_ms=placed.timestamp,
            log_start_offset=placed.log_start_offset,
        )

    def _failed(self, index: int, error: BaseException) -> Any:
        response = self._request.response
        made, bad = response.struct("PartitionProduceResponse"), response.struct("BatchIndexAndErrorMessage")
        records, plain = [], self._request.body.transactional_id is None
        code = self._request.code_of(error)
        if getattr(error, "record_index", -1) >= 0:
            records = [bad(batch_index=error.record_index, batch_index_error_message=str(error))]  # type: ignore[attr-defined]
        return made(
            index=index,
            error_code=code if plain else transactions.produce_code(error, self._request.version),
            base_offset=-1,
            record_errors=records,
            error_message=str(error),
        )

    def _synced(self, parts: list[Any], at: int, error: BaseException | None) -> None:
        if error is not None:
            parts[at] = self._failed(parts[at].index, error)
        self._request.now(self.finish)


def _refuse(request: Request, code: Code) -> None:
    made = request.response
    topic, part = made.struct("TopicProduceResponse"), made.struct("PartitionProduceResponse")
    if not request.body.acks:
        request.no_answer()
        return
    request.answer(
        made(
            responses=[
                topic(
                    name=data.name,
                    topic_id=data.topic_id,
                    partition_responses=[
                        part(index=each.index, error_code=code, base_offset=-1)
                        for each in data.partition_data
                    ],
                )
                for data in request.body.topic_data
            ]
        )
    )
