"""Records of a cluster's topic, read as those of a store are: bounded, merged by time, or as they come.

One consumer reads all partitions without joining a group. Several partitions are merged by timestamp up to
the end that the topic had when the reading began; a partition that is far ahead of the others is paused, so
memory is bounded. Beyond that end, with ``follow``, records come in the order of their arrival.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stratalog.cli.guard import WrongUsage
from stratalog.cli.places.client import ANSWER_S, SLICE_S, Client
from stratalog.errors import OffsetOutOfRangeError, UnknownPartitionError
from stratalog.model import CREATE_TIME, LOG_APPEND_TIME, Record, time_of

if TYPE_CHECKING:
    from stratalog.cli.places.cluster import Cluster
    from stratalog.log.read.reader import SkipDamaged

AHEAD_BYTES = 8 << 20
"""A partition that has more than this waiting for the others is paused until half of it is gone."""
RECORD_BYTES = 200
"""What a record takes besides its key and value, about."""
LOOK_S = 5.0
"""How often a reading that follows looks for new partitions."""
FETCHED = 1000
LOG_APPENDED = 2
"""Kafka's number for a timestamp that the broker gave."""


class ClusterTopic:
    """`TopicReads` of a cluster's topic."""

    def __init__(self, client: Client, cluster: Cluster, name: str, partitions: int) -> None:
        self.name = name
        self._client = client
        self._cluster = cluster
        self._partitions = partitions

    @property
    def partitions(self) -> int:
        return self._partitions

    def log_start_offset(self, partition: int = 0) -> int:
        return self._bounds([partition])[partition][0]

    def high_watermark(self, partition: int = 0, isolation: str = "read_uncommitted") -> int:
        return self._bounds([partition], isolation)[partition][1]

    def get(
        self, key: bytes, partition: int | None = None, *, isolation: str = "read_uncommitted"
    ) -> Record | None:
        """Return the latest record of a key in a partition; every record is looked at."""
        chosen = None if partition is None else [partition]
        found = deque((each for each in self.read(chosen, isolation=isolation) if each.key == key), maxlen=1)
        return found.pop() if found else None

    def history(self, key: bytes, partition: int | None = None) -> Iterator[Record]:
        chosen = None if partition is None else [partition]
        return (record for record in self.read(chosen) if record.key == key)

    def read(
        self,
        partition: list[int] | None = None,
        start: Mapping[int, int] | None = None,
        end: Mapping[int, int] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        isolation: str = "read_uncommitted",
        follow: bool = False,
        skip_damaged: SkipDamaged = False,
    ) -> Iterator[Record]:
        """Return the records of some partitions, or of all; with ``follow`` also of those added later."""
        if skip_damaged:
            raise WrongUsage("--skip-damaged reads the files of a store: use --data")
        chosen = list(range(self._partitions)) if partition is None else partition
        bounds = self._bounds(chosen, isolation)
        starts, ends = dict(start or {}), dict(end or {})
        for each in chosen:
            first, last = bounds[each]
            if each in starts and not first <= starts[each] <= last:
                raise self._out_of_range(each, starts[each], first, last)
        if since is not None:
            open_ = [(self.name, each) for each in chosen if each not in starts]
            for (_, each), found in self._cluster.offsets_for_time(open_, since).items():
                starts[each] = bounds[each][1] if found is None else found
        parts = [
            _Part(
                each, starts.get(each, bounds[each][0]), min(ends.get(each, bounds[each][1]), bounds[each][1])
            )
            for each in chosen
        ]
        added = self._added if follow and partition is None else None
        times = (-(2**63) if since is None else since, 2**63 if until is None else until)
        return Reading(self._client, self, parts, isolation, times, follow=follow).records(added)

    def check(self, patience_s: float) -> None:
        """Raise ClusterError if no broker answers for so long."""
        self._cluster.check(patience_s)

    def out_of_range(self, partition: int, offset: int) -> OffsetOutOfRangeError:
        """Return the error for a position that the log start has passed."""
        return self._out_of_range(partition, offset, *self._bounds([partition])[partition])

    def _out_of_range(self, partition: int, offset: int, first: int, end: int) -> OffsetOutOfRangeError:
        holds = (
            f"the log holds offsets {first}-{end - 1}" if first < end else f"the log is empty at offset {end}"
        )
        text = f"{self.name}-{partition}: offset {offset} is out of range: {holds}"
        return OffsetOutOfRangeError(text, offset=offset, first=first, end=end)

    def _added(self) -> list[int]:
        """Return the partitions that the topic was given since the last look."""
        before, self._partitions = self._partitions, self._cluster.describe_topic(self.name)["partitions"]
        return list(range(before, self._partitions))

    def _bounds(
        self, partitions: Iterable[int], isolation: str = "read_uncommitted"
    ) -> dict[int, tuple[int, int]]:
        wanted = list(partitions)
        found = self._cluster.bounds([(self.name, each) for each in wanted], isolation)
        for each in wanted:
            if (self.name, each) not in found:
                raise UnknownPartitionError(f"topic {self.name} has no partition {each}")
        return {partition: bounds for (_, partition), bounds in found.items()}


@dataclass(slots=True)
class _Part:
    """One partition: where it is read from and up to, and what waits for the other partitions."""

    partition: int
    offset: int
    end: int
    waiting: deque[Record] = field(default_factory=deque)
    waiting_bytes: int = 0
    paused: bool = False
    done: bool = False

    def put(self, record: Record) -> None:
        self.waiting.append(record)
        self.waiting_bytes += _size(record)

    def take(self) -> Record:
        record = self.waiting.popleft()
        self.waiting_bytes -= _size(record)
        return record


class Reading:
    """One consumer and its partitions."""

    def __init__(
        self,
        client: Client,
        topic: ClusterTopic,
        parts: list[_Part],
        isolation: str,
        times: tuple[int, int],
        *,
        follow: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._parts = {part.partition: part for part in parts}
        self._isolation = isolation
        self._since, self._until = times
        self._follow = follow
        for part in parts:
            part.done = part.offset >= part.end

    def records(self, added: Any = None) -> Iterator[Record]:
        """Yield the records; ``added`` tells which partitions are new."""
        read = [part for part in self._parts.values() if self._follow or not part.done]
        if not read:
            return
        consumer = self._client.make(
            self._client.kafka.Consumer,
            {
                "group.id": "stratalog-read",  # librdkafka asks for one; nothing joins it or commits
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "isolation.level": self._isolation,
                "fetch.wait.max.ms": 100,
            },
        )
        try:
            consumer.assign([self._place(part.partition, part.offset) for part in read])
            yield from self._merged(consumer)
            if self._follow:
                yield from self._arriving(consumer, added)
        finally:
            consumer.close()

    def _merged(self, consumer: Any) -> Iterator[Record]:
        """Yield what there was at the beginning, merged by time."""
        heads: list[tuple[int, int]] = []
        empty = {part.partition for part in self._parts.values() if not part.done}
        while empty or heads:
            if empty:
                self._fetch(consumer)
                for each in list(empty):
                    part = self._parts[each]
                    if part.waiting:
                        heapq.heappush(heads, (time_of(part.waiting[0]), each))
                    if part.waiting or part.done:
                        empty.discard(each)
                continue
            _, each = heapq.heappop(heads)
            part = self._parts[each]
            yield part.take()
            if part.paused and part.waiting_bytes < AHEAD_BYTES // 2 and not part.done:
                part.paused = False
                consumer.resume([self._place(each)])
            if part.waiting:
                heapq.heappush(heads, (time_of(part.waiting[0]), each))
            elif not part.done:
                empty.add(each)
        for part in self._parts.values():  # what came behind the end meanwhile
            yield from part.waiting

    def _fetch(self, consumer: Any) -> None:
        """Wait until something arrives, and put it into the partitions."""
        for message in self._consume(consumer):
            part = self._parts[message.partition()]
            if message.error() is not None:
                part.done = True  # the end of the partition
            elif message.offset() >= part.end and not self._follow:
                part.done = True
            else:
                record = _record(message)
                if self._since <= time_of(record) < self._until:
                    part.put(record)
                part.done = part.done or message.offset() + 1 >= part.end
            enough = part.waiting_bytes > AHEAD_BYTES or (part.done and not self._follow)
            if enough and not part.paused:
                part.paused = True
                consumer.pause([self._place(part.partition)])

    def _arriving(self, consumer: Any, added: Any) -> Iterator[Record]:
        paused = [self._place(part.partition) for part in self._parts.values() if part.paused]
        if paused:
            consumer.resume(paused)
        looked_s = time.monotonic()
        while True:
            for message in self._consume(consumer, patient=True):
                if message.error() is None and time_of(record := _record(message)) >= self._since:
                    yield record
            if added is not None and time.monotonic() - looked_s >= LOOK_S:
                new = added()
                if new:
                    consumer.incremental_assign([self._place(each, 0) for each in new])
                looked_s = time.monotonic()

    def _consume(self, consumer: Any, *, patient: bool = False) -> list[Any]:
        """Return what arrived, records and ends; a ``patient`` reader waits only while a broker is there.

        The others get an error when nothing arrived for `ANSWER_S`: there was something to come.
        """
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            first = consumer.poll(SLICE_S)  # `consume` alone would wait until it has them all
            found = [] if first is None else [first, *consumer.consume(FETCHED, 0)]
            kept = [each for each in found if each.error() is None or self._is_end(each)]
            if kept:
                self._client.answered()
                return kept
            if self._client.looks_down:
                self._topic.check(ANSWER_S)
            if patient:
                return []
            if time.monotonic() >= deadline_s:
                raise self._client.silent()

    def _is_end(self, message: Any) -> bool:
        """Return True for the end of a partition; raise what is an error of the reading."""
        error = message.error()
        name = error.name()
        if name == "_PARTITION_EOF":
            return True
        if name == "_AUTO_OFFSET_RESET" and message.partition() in self._parts:
            raise self._topic.out_of_range(message.partition(), message.offset())
        if "GROUP" in name or "COORD" in name or error.retriable():
            return False  # no group is used; what can be tried again is, by librdkafka
        raise self._client.ours(error, f"topic {self._topic.name}")

    def _place(self, partition: int, offset: int | None = None) -> Any:
        place = self._client.kafka.TopicPartition
        return place(self._topic.name, partition, *(() if offset is None else (offset,)))


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        message.value(),
        message.key(),
        tuple(message.headers() or ()),
        timestamp if kind else None,
        message.offset(),
        message.partition(),
        LOG_APPEND_TIME if kind == LOG_APPENDED else CREATE_TIME,
        message.topic(),
    )


def _size(record: Record) -> int:
    return RECORD_BYTES + len(record.value or b"") + len(record.key or b"")
