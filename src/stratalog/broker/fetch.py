"""Fetch: whole batches from the segments' files to the socket, at once or when there are enough.

A request that finds less than it wants waits for the ends of its partitions, not in a thread: each of them
wakes it once, and a timer ends it. Segments in the archive are read off the loop. There are no sessions:
every answer has session id 0, which tells a client to send all its partitions each time.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code, code_of
from stratalog.broker.loop import Timer
from stratalog.broker.metadata import find_topic
from stratalog.errors import StratalogError
from stratalog.log.read.fetch import Fetched
from stratalog.log.read.list_offsets import OffsetSpec
from stratalog.log.write.log_end import Completion, End
from stratalog.store.topic import Topic

if TYPE_CHECKING:
    from stratalog.broker.server import Request

COMMITTED = 1
Answers = list[tuple[Any, list[Any]]]
"""For each topic of a request, what its partitions answer."""


class _FileRange:
    """What was fetched, with how much of it is still to be sent."""

    __slots__ = ("_found", "length", "position")

    def __init__(self, found: Fetched) -> None:
        self._found = found
        self.position = found.position
        self.length = found.length

    def fileno(self) -> int:
        file = self._found.file
        assert file is not None
        return file.fileno()

    def release(self) -> None:
        self._found.release()


def fetch(request: Request) -> None:
    """Answer with batches, or wait for them."""
    body = request.body
    if body.session_epoch > 0:
        request.answer(request.response(error_code=Code.FETCH_SESSION_ID_NOT_FOUND))
        return
    wait_s = max(0, body.max_wait_ms) / 1000
    _Fetch(request, time.monotonic() + wait_s).look()


class _Fetch:
    """One request until it is answered."""

    def __init__(self, request: Request, deadline_s: float) -> None:
        self._request = request
        self._deadline_s = deadline_s
        self._timer: Timer | None = None
        self._waits: list[Completion] = []
        self._looking = False
        self._done = False

    def look(self) -> None:
        """Look at every partition; answer when that is enough or the time is up."""
        if self._done or self._looking:
            return
        self._stop_waiting()
        if not self._request.connection.open:
            self._done = True
            return
        if any(self._is_archived(topic, part) for topic, part in self._partitions()):
            self._looking = True
            self._request.off_loop(self._read, self._read_elsewhere)
            return
        self._judge(*self._read())

    def _partitions(self) -> list[tuple[Any, Any]]:
        return [(topic, part) for topic in self._request.body.topics for part in topic.partitions]

    def _find(self, topic: Any) -> Topic | None:
        return find_topic(self._request, topic.topic, topic.topic_id)

    def _is_archived(self, topic: Any, part: Any) -> bool:
        found = self._find(topic)
        if found is None or not found.config.remote_storage_enable:
            return False
        try:
            local = found.list_offset(part.partition, OffsetSpec.EARLIEST_LOCAL)
        except (StratalogError, OSError):
            return False  # named by the fetch itself
        return local is not None and part.fetch_offset < local.offset

    def _read_elsewhere(self, found: tuple[Answers, int, bool] | BaseException) -> None:
        self._looking = False
        if isinstance(found, BaseException):
            self._done = True
            self._request.answer(self._request.response(error_code=code_of(found)))
        else:
            self._judge(*found)

    def _read(self) -> tuple[Answers, int, bool]:
        """Fetch from every partition; return the answers, their bytes, and whether one failed."""
        body = self._request.body
        most = self._request.broker.limits.fetch_max_bytes
        left, total, failed = max(0, min(body.max_bytes, most)), 0, False
        answers: Answers = []
        for topic in body.topics:
            parts: list[Any] = []
            answers.append((topic, parts))
            found = self._find(topic)
            for part in topic.partitions:
                made = self._one(found, part, min(left, max(0, part.partition_max_bytes)), total == 0)
                size = 0 if made.records is None else _size(made.records)
                left, total = max(0, left - size), total + size
                failed = failed or made.error_code != Code.NONE
                parts.append(made)
        return answers, total, failed

    def _one(self, topic: Topic | None, part: Any, max_bytes: int, first: bool) -> Any:
        request = self._request
        made = request.response.struct("PartitionData")
        if topic is None:
            unknown = Code.UNKNOWN_TOPIC_ID if request.version >= 13 else Code.UNKNOWN_TOPIC_OR_PARTITION
            return made(partition_index=part.partition, error_code=unknown, high_watermark=-1, records=b"")
        committed = request.body.isolation_level == COMMITTED
        try:
            found = topic.fetch(
                part.partition,
                part.fetch_offset,
                max_bytes,
                "read_committed" if committed else "read_uncommitted",
                minimum_one=first,
            )
        except (StratalogError, OSError) as error:
            return made(
                partition_index=part.partition,
                error_code=code_of(error),
                high_watermark=-1,
                records=b"",
            )
        aborted = request.response.struct("AbortedTransaction")
        return made(
            partition_index=part.partition,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            aborted_transactions=(
                [
                    aborted(producer_id=each.producer_id, first_offset=each.first_offset)
                    for each in found.aborted
                ]
                if committed
                else None
            ),
            records=found.data if found.file is None else _FileRange(found),
        )

    def _judge(self, answers: Answers, total: int, failed: bool) -> None:
        left_s = self._deadline_s - time.monotonic()
        enough = failed or left_s <= 0 or total >= self._request.body.min_bytes
        # A client that left while this was read elsewhere waits for nothing: what it would get is released.
        if not enough and self._request.connection.open and self._wait(left_s, answers):
            for _, parts in answers:
                for part in parts:
                    if isinstance(part.records, _FileRange):
                        part.records.release()
            return
        self._done = True
        made = self._request.response
        topic = made.struct("FetchableTopicResponse")
        self._request.answer(
            made(
                responses=[
                    topic(topic=data.topic, topic_id=data.topic_id, partitions=parts)
                    for data, parts in answers
                ]
            )
        )

    def _wait(self, left_s: float, seen: Answers) -> bool:
        """Look again when a partition has more than was seen, or the time is up; False if one cannot wait."""
        committed = self._request.body.isolation_level == COMMITTED
        end: End = "last_stable_offset" if committed else "high_watermark"
        try:
            for topic, parts in seen:
                found = self._find(topic)
                if found is None:
                    self._stop_waiting()
                    return False
                for wanted, part in zip(topic.partitions, parts, strict=True):
                    reached = part.last_stable_offset if committed else part.high_watermark
                    wait = found.when(wanted.partition, end, max(reached, wanted.fetch_offset) + 1)
                    self._waits.append(wait)
                    wait.add_callback(lambda _: self._request.soon(self.look))
        except (StratalogError, OSError):
            self._stop_waiting()
            return False
        loop = self._request.broker.loop
        self._timer = loop.call_later(left_s, partial(self._request.soon, self.look))
        self._request.connection.abandoned = self._stop_waiting
        return True

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for wait in self._waits:
            wait.cancel()
        self._waits.clear()


def _size(records: Any) -> int:
    return records.length if isinstance(records, _FileRange) else len(records)
