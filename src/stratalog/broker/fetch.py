"""Fetch: whole batches from the segments' files to the socket, at once or when there are enough.

A request that finds less than it wants waits for the ends of its partitions, not in a thread: each of them
wakes it once, and a timer ends it. Segments in the archive are read off the loop. What a client fetches is
kept between its requests (`stratalog.broker.sessions`): a long poll of thousands of idle partitions looks at
none of them.

Topics are looked up by id from version 13 on. The id alone names the log, so that no name can belong to
another id: INCONSISTENT_TOPIC_ID, which Kafka answers in that case, cannot occur.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.broker.codes import Code
from stratalog.broker.loop import Timer
from stratalog.broker.metadata import find_topic, wrong_epoch
from stratalog.broker.sessions import INITIAL, FetchedPartition, Session
from stratalog.errors import StratalogError
from stratalog.log.read.fetch import Fetched
from stratalog.log.read.list_offsets import OffsetSpec
from stratalog.log.write.log_end import End
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.topic import Topic

if TYPE_CHECKING:
    from stratalog.broker.server import Request

_UNKNOWN = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID)
BY_ID = 13
"""The first version with topic ids."""
MAX_FILES = 100
"""How many files an answer keeps open until its client has read it; what other partitions have is copied."""
MAX_COPIED = 4096
"""How much is copied of each of them. One that has a larger batch is left for the next request."""
Answers = list[tuple[FetchedPartition, Any]]
"""What each partition that was looked at answers."""


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
    now_s = time.monotonic()
    session = request.broker.sessions.begin(request.body, by_id=request.version >= BY_ID, now_s=now_s)
    if isinstance(session, Code):
        request.answer(request.response(error_code=session))
        return
    _Fetch(request, session, now_s + max(0, request.body.max_wait_ms) / 1000).look()


class _Fetch:
    """One request until it is answered."""

    def __init__(self, request: Request, session: Session, deadline_s: float) -> None:
        self._request = request
        self._session = session
        self._deadline_s = deadline_s
        self._full = not session.id
        """Every partition is answered, not only those with news."""
        self._parts: list[FetchedPartition] = []
        """Those that are being looked at."""
        self._timer: Timer | None = None
        self._looking = False
        self._done = False

    def look(self) -> None:
        """Look at every partition that may have news; answer when that is enough or the time is up."""
        if self._done or self._looking:
            return
        self._stop_waiting()
        if not self._request.connection.open:
            self._left()
            return
        self._session.hear()
        self._parts = list(self._session.ready.values())
        if any(self._is_archived(part) for part in self._parts):
            self._looking = True
            self._request.off_loop(self._read, self._read_elsewhere)
            return
        self._judge(*self._read())

    def _find(self, part: FetchedPartition) -> Topic | None:
        return find_topic(self._request, part.name, part.topic_id)

    def _is_archived(self, part: FetchedPartition) -> bool:
        found = self._find(part)
        if found is None:
            return False
        view = self._request.broker.store.partitions.registry.view(found.name, part.number)
        if not isinstance(view, PartitionWriter) or not view.config.remote_storage_enable:
            return False
        try:
            local = found.list_offset(part.number, OffsetSpec.EARLIEST_LOCAL)
        except (StratalogError, OSError):
            return False  # named by the fetch itself
        return local is not None and part.offset < local.offset

    def _read_elsewhere(self, found: tuple[Answers, int, bool] | BaseException) -> None:
        self._looking = False
        if isinstance(found, BaseException):
            self._done = True
            self._request.answer(self._request.response(error_code=self._request.code_of(found)))
        else:
            self._judge(*found)

    def _read(self) -> tuple[Answers, int, bool]:
        """Fetch from every partition; return the answers, their bytes, and whether to wait for no more."""
        most = self._request.broker.limits.fetch_max_bytes
        if self._looking:  # archived segments are answered from memory
            most = min(most, self._request.broker.queued.left)
        left, total, enough, files = max(0, min(self._request.body.max_bytes, most)), 0, False, 0
        answers: Answers = []
        for part in self._parts:
            made = self._one(part, min(left, max(0, part.max_bytes)), total == 0, files >= MAX_FILES)
            size = _size(made.records)
            left, total = max(0, left - size), total + size
            files += isinstance(made.records, _FileRange)
            enough = enough or made.error_code != Code.NONE or files >= MAX_FILES
            answers.append((part, made))
        return answers, total, enough

    def _one(self, part: FetchedPartition, max_bytes: int, first: bool, copied: bool) -> Any:
        request = self._request
        made = request.response.struct("PartitionData")
        topic = self._find(part)
        if topic is None:
            return self._failed(
                part, Code.UNKNOWN_TOPIC_ID if self._session.by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
            )
        committed = self._session.committed
        try:
            code = wrong_epoch(request, topic.name, part.number, part.leader_epoch)
            if code:
                return self._failed(part, code)
            found = topic.fetch(
                part.number,
                part.offset,
                min(max_bytes, MAX_COPIED) if copied else max_bytes,
                "read_committed" if committed else "read_uncommitted",
                minimum_one=first,
            )
            records: Any = found.data if found.file is None else _FileRange(found)
            if copied:
                with found:
                    records = found.read()
        except (StratalogError, OSError) as error:
            return self._failed(part, request.code_of(error))
        aborted = request.response.struct("AbortedTransaction")
        return made(
            partition_index=part.number,
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
            records=records,
        )

    def _failed(self, part: FetchedPartition, code: Code) -> Any:
        return self._request.response.struct("PartitionData")(
            partition_index=part.number,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=() if code in _UNKNOWN else None,
            records=b"",
        )

    def _judge(self, answers: Answers, total: int, enough: bool) -> None:
        left_s = self._deadline_s - time.monotonic()
        enough = enough or left_s <= 0 or total >= self._request.body.min_bytes or not self._session.parts
        if not self._request.connection.open:  # it left while this was read elsewhere
            self._left()
        elif enough or not self._wait(left_s, answers):
            self._answer(answers)
            return
        for _, data in answers:
            if isinstance(data.records, _FileRange):
                data.records.release()

    def _answer(self, answers: Answers) -> None:
        self._done = True
        request, session = self._request, self._session
        made = request.response
        topic = made.struct("FetchableTopicResponse")
        if request.body.session_epoch == INITIAL:
            request.broker.sessions.keep(session, request.connection)
        told: dict[Any, list[Any]] = {}
        for part, data in answers:
            size, ends = _size(data.records), (data.high_watermark, data.log_start_offset)
            if self._full or size or data.error_code or ends != part.told:
                told.setdefault(part.key[0], []).append(data)
                part.told = ends
            if not session.id or part.key not in session.ready:
                continue
            if size:
                session.ready[part.key] = session.ready.pop(part.key)  # each has its turn
            elif not data.error_code and part.offset >= self._end(data):
                del session.ready[part.key]
                if not self._watch(part, data):
                    session.ready[part.key] = part
        if not session.id:
            session.close()
        request.answer(
            made(
                session_id=session.id,
                responses=[
                    topic(
                        topic="" if session.by_id else place,
                        topic_id=place if session.by_id else bytes(16),
                        partitions=parts,
                    )
                    for place, parts in told.items()
                ],
            )
        )

    def _end(self, data: Any) -> int:
        """Return how far the client may read."""
        found: int = data.last_stable_offset if self._session.committed else data.high_watermark
        return found

    def _watch(self, part: FetchedPartition, data: Any) -> bool:
        """Have the session told when a partition has more than was seen; False if it cannot be."""
        end: End = "last_stable_offset" if self._session.committed else "high_watermark"
        offset = max(self._end(data), part.offset) + 1
        watch = part.watch
        if watch is not None and not watch.done and (watch.end, watch.offset) == (end, offset):
            return True
        part.unwatch()
        topic = self._find(part)
        if topic is None:
            return False
        try:
            part.watch = topic.when(part.number, end, offset)
        except (StratalogError, OSError):
            return False
        part.watch.add_callback(partial(self._session.tell, part))
        return True

    def _wait(self, left_s: float, seen: Answers) -> bool:
        """Look again when a partition has more than was seen, or the time is up; False if one cannot wait."""
        if not all(self._watch(part, data) for part, data in seen):
            return False
        request = self._request
        self._timer = request.broker.loop.call_later(left_s, partial(request.now, self.look))
        self._session.waiting = partial(request.now, self.look)
        self._session.give_up = self._give_up
        request.connection.abandoned = self._left
        return True

    def _give_up(self) -> None:
        self._deadline_s = 0
        self._request.now(self.look)

    def _left(self) -> None:
        """Wait for nothing more: the client left."""
        self._done = True
        self._stop_waiting()
        if not self._session.id:
            self._session.close()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._session.waiting = self._session.give_up = None


def _size(records: Any) -> int:
    return records.length if isinstance(records, _FileRange) else len(records)
