"""Produce requests of one partition without tables: half of what a small request costs beside its I/O.

The kernel reads such a request in place and makes its answer. What is in between is the same append as
everywhere; what was refused is answered by `produce`, and so is every request that the kernel does not know:
several partitions, transactions, unknown topics.

Small requests that are ready in one turn of the loop wait for its end: those of a partition are one append
then, with one write, and the answers go out together, so that clients are not woken for each. No client waits
for a request that is not there yet.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from stratalog.broker import produce
from stratalog.broker.connection import Connection
from stratalog.broker.metadata import INTERNAL
from stratalog.errors import StorageError, StratalogError
from stratalog.kernel import parse_produce, produce_answer
from stratalog.log.write.produce import BatchesAppended
from stratalog.store.topic import Topic

if TYPE_CHECKING:
    from stratalog.broker.server import Broker, Request

Outcome = BatchesAppended | StratalogError | OSError
Answer = tuple[bytes, ...]
PRODUCE = 0
BY_ID = 13
"""From this version on requests have a topic's id in place of its name."""
SMALL = 4096
"""Up to so many bytes of batches a request may share an append: they are copied once more for it."""
LARGE = 64 << 10
"""A request that waits for the disk is kept whole up to this, in case that its sync fails."""
TOGETHER = 256
"""At most so many requests are one append: what is refused of one is checked again for each."""


class _Produce(NamedTuple):
    """A request of one partition, as the kernel reads it."""

    connection: Connection
    frame: memoryview
    version: int
    correlation: int
    acks: int
    name: bytes
    partition: int
    start: int
    end: int
    records: int


_new_tuple = tuple.__new__  # a named tuple's own costs a Python call


class Shortcut:
    """Answers the requests that it knows, in the loop's thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._api = broker.apis[PRODUCE]
        self._loop = broker.loop
        self._registry = broker.store.partitions.registry
        self._state = self._registry.state
        self._topics: dict[tuple[bool, bytes], Topic] = {}
        """By name or id, as long as the store's topics are these."""
        self._waiting: dict[tuple[Topic, int], list[_Produce]] = {}

    def take(self, connection: Connection, frame: memoryview) -> bool:
        """Answer a request, now or as the turn ends; False, with nothing done, if it is not one of these."""
        found = parse_produce(frame)
        if found is None or self._broker.apis[PRODUCE] is not self._api:  # another handler took its place
            return False
        version, _, acks, name, number, start, end, records = found
        if self._registry.state is not self._state:
            self._topics.clear()
            self._state = self._registry.state
        topic = self._topics.get((version >= BY_ID, name)) or self._find(version >= BY_ID, name)
        if topic is None:
            return False
        waits = self._loop.crowded and records and acks and end - start <= SMALL
        if waits:
            frame = memoryview(bytearray(frame))  # the connection's buffer is not its own for so long
        request = _new_tuple(_Produce, (connection, frame, *found))
        if waits:
            if not self._waiting:
                self._loop.at_end_of_turn(self._append_waiting)
            self._waiting.setdefault((topic, number), []).append(request)
            return True
        answer = self._append(request, topic)
        if answer is not None:
            connection.answer(answer)
        return True

    def _find(self, by_id: bool, name: bytes) -> Topic | None:
        if by_id:
            entry = self._registry.topic_by_id(uuid.UUID(bytes=name))
        else:
            entry = self._registry.topic(name.decode("ascii"))
        if entry is None or entry.name in INTERNAL:
            return None
        topic = self._topics[by_id, name] = self._broker.store.topic(entry.name)
        return topic

    def _append_waiting(self) -> None:
        """Append what waits, partition by partition, then send the answers."""
        waiting, self._waiting = self._waiting, {}
        answers: list[tuple[Connection, Answer]] = []
        for (topic, _), requests in waiting.items():
            for at in range(0, len(requests), TOGETHER):
                self._loop.attempt(self._append_together, requests[at : at + TOGETHER], topic, answers)
        for connection, answer in answers:
            try:
                connection.answer(answer)
            except Exception:  # noqa: BLE001 - as in the loop: that of one connection is not the others'
                self._loop.report()

    def _append_together(
        self, requests: list[_Produce], topic: Topic, answers: list[tuple[Connection, Answer]]
    ) -> None:
        """Append the batches of several requests of a partition at once.

        What is wrong with one batch is found before anything is written: then each is appended by itself.
        After a failed write the number of written records is unknown, and every client gets that error.
        """
        try:
            placed: Outcome | None = None
            if len(requests) > 1:
                data = bytearray().join([each.frame[each.start : each.end] for each in requests])
                placed = _append(topic, requests[0].partition, data)
            if isinstance(placed, BatchesAppended):
                self._placed_together(requests, topic, placed, answers)
                return
            for each in requests:
                if isinstance(placed, StorageError | OSError):
                    self._refused(each, topic, placed)
                elif (answer := self._append(each, topic)) is not None:
                    answers.append((each.connection, answer))
        except Exception:
            for each in requests:
                each.connection.close("an unexpected error")
            raise

    def _placed_together(
        self,
        requests: list[_Produce],
        topic: Topic,
        placed: BatchesAppended,
        answers: list[tuple[Connection, Answer]],
    ) -> None:
        base_offset, stamp, start = placed.base_offset, placed.timestamp, placed.log_start_offset
        for each in requests:
            end = base_offset + each.records
            if placed.flush_due:
                self._placed(each, topic, placed, base_offset, end)
            else:  # `_placed` without its call
                connection, _, version, correlation, _, name, number, *_ = each
                made = produce_answer(version, correlation, name, number, base_offset, stamp, start)
                answers.append((connection, (made,)))
            base_offset = end

    def _append(self, request: _Produce, topic: Topic) -> Answer | None:
        """Append the batches of one request; return its answer, or None if it has it or will have it."""
        placed = _append(topic, request.partition, request.frame[request.start : request.end])
        if not isinstance(placed, BatchesAppended):
            self._refused(request, topic, placed)
            return None
        if placed.flush_due and len(request.frame) > LARGE:
            produce.answer_one(self._decoded(request), topic, placed)
            return None
        return self._placed(request, topic, placed, placed.base_offset, placed.last_offset + 1)

    def _placed(
        self, request: _Produce, topic: Topic, placed: BatchesAppended, base_offset: int, end: int
    ) -> Answer | None:
        answer: Answer = ()
        if request.acks:
            where = base_offset, placed.timestamp, placed.log_start_offset
            version, correlation = request.version, request.correlation
            answer = (produce_answer(version, correlation, request.name, request.partition, *where),)
        if not placed.flush_due:
            return answer
        waiter = None
        if request.acks:
            kept = request._replace(frame=memoryview(bytearray(request.frame)))
            waiter = partial(self._synced, kept, topic, answer)
        self._broker.syncs.add(topic, request.partition, end, waiter)
        return None if request.acks else answer

    def _synced(self, request: _Produce, topic: Topic, answer: Answer, error: BaseException | None) -> None:
        if error is None:
            request.connection.answer(answer)
        else:
            self._refused(request, topic, error)

    def _refused(self, request: _Produce, topic: Topic, error: BaseException) -> None:
        """Answer as the plain way does."""
        produce.answer_one(self._decoded(request), topic, error)

    def _decoded(self, request: _Produce) -> Request:
        api = self._broker.apis[PRODUCE]
        return self._broker.request(request.connection, api, request.version, request.frame)


def _append(topic: Topic, number: int, data: memoryview | bytearray) -> Outcome:
    try:
        return topic.append_batches(number, data, wait=False)
    except (StratalogError, OSError) as error:
        return error
