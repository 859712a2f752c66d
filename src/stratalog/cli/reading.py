"""Which records ``stratalog read`` prints: from where to where, of which key, in which order."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stratalog.cli.positions import Position
from stratalog.model import Record

if TYPE_CHECKING:
    from stratalog.log.read.reader import SkipDamaged
    from stratalog.store import Topic

POLL_S = 0.1
READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class Reading:
    """What was asked for. Times are half-open and looked at record by record: they may be out of order."""

    topic: Topic
    partitions: list[int]
    start: Position
    end: Position
    isolation: str
    skip_damaged: SkipDamaged = False

    def records(self) -> Iterator[Record]:
        """Everything between the two positions, several partitions merged by time."""
        return self._merged([self._run(partition) for partition in self.partitions])

    def of_key(self, key: bytes, *, last: bool) -> Iterator[Record]:
        """Yield every record of a key, oldest first; only the newest of them with ``last``."""
        whole = self.start.kind == "earliest" and self.end.kind == "latest"
        if last and whole and not self.skip_damaged:  # stops at the first one found from the end
            found = [self.topic.get(key, each, isolation=self.isolation) for each in self.partitions]
            return iter(sorted((each for each in found if each is not None), key=_time)[-1:])
        merged = self._merged([self._history(key, partition) for partition in self.partitions])
        return iter(deque(merged, maxlen=1)) if last else merged

    def follow(self) -> Iterator[Record]:
        """What is there from the start position on, merged by time, then what comes, as it comes."""
        at = {partition: self.first(partition) for partition in self.partitions}
        if len(at) == 1:
            ((partition, offset),) = at.items()
            yield from self._timely(self._read(partition, offset, None, follow=True))
            return
        while True:
            runs = []
            for partition, offset in at.items():
                end = self.topic.high_watermark(partition, self.isolation)
                if end > offset:
                    runs.append(self._read(partition, offset, end))
                    at[partition] = end
            if runs:
                yield from self._timely(self._merged(runs))
            else:
                time.sleep(POLL_S)

    def first(self, partition: int) -> int:
        """The offset a partition is read from."""
        position = self.start
        if position.kind == "offset":
            return position.value  # as it is: outside the log it must be an error with the valid range
        first, end = self._bounds(partition)
        if position.kind == "latest":
            return end
        if position.kind == "tail":
            return max(first, end - position.value)
        if position.kind == "time":
            found = self.topic.offset_for_time(partition, position.value, isolation=self.isolation)
            return end if found is None else found
        return first

    def stop(self, partition: int) -> int:
        """The offset a partition is read up to; a time stops nothing, it filters."""
        position = self.end
        first, end = self._bounds(partition)
        if position.kind == "offset":
            return min(position.value, end)
        if position.kind == "earliest":
            return first
        if position.kind == "tail":
            return max(first, end - position.value)
        return end

    def _bounds(self, partition: int) -> tuple[int, int]:
        return self.topic.log_start_offset(partition), self.topic.high_watermark(partition, self.isolation)

    def _run(self, partition: int) -> Iterator[Record]:
        first, stop = self.first(partition), self.stop(partition)
        if first >= stop and self.start.kind != "offset":
            return iter(())
        if self.end.kind == "time" and first < stop and not self.skip_damaged:
            return self._scan(partition, first, stop)
        return self._timely(self._read(partition, first, max(first, stop)))

    def _history(self, key: bytes, partition: int) -> Iterator[Record]:
        first, stop = self.first(partition), self.stop(partition)
        if self.isolation == READ_COMMITTED:  # the key index knows nothing of transactions
            found: Iterable[Record] = (r for r in self._run(partition) if r.key == key)
        else:
            found = (r for r in self.topic.history(key, partition) if first <= r.offset < stop)
        return self._timely(found)

    def _read(self, partition: int, start: int, end: int | None, *, follow: bool = False) -> Iterator[Record]:
        return self.topic.read(
            partition,
            start,
            end,
            isolation=self.isolation,
            follow=follow,
            skip_damaged=self.skip_damaged,
        )

    def _scan(self, partition: int, first: int, stop: int) -> Iterator[Record]:
        """By way of Arrow, which leaves out whole segments that lie outside the times."""
        reader = self.topic.scan(
            [partition],
            start=first,
            end=stop,
            since=self.start.value if self.start.kind == "time" else None,
            until=self.end.value,
            isolation=self.isolation,
        )
        for batch in reader:
            for row in _rows(batch):
                yield Record(*row, self.topic.name)

    def _timely(self, records: Iterable[Record]) -> Iterator[Record]:
        since = self.start.value if self.start.kind == "time" else None
        until = self.end.value if self.end.kind == "time" else None
        if since is None and until is None:
            return iter(records)
        low, high = (-(2**63) if since is None else since), (2**63 if until is None else until)
        return (record for record in records if low <= _time(record) < high)

    def _merged(self, runs: list[Iterator[Record]]) -> Iterator[Record]:
        return runs[0] if len(runs) == 1 else heapq.merge(*runs, key=_time)


def _time(record: Record) -> int:
    return -1 if record.timestamp is None else record.timestamp


def _rows(batch: Any) -> Iterator[tuple[Any, Any, Any, Any, Any, Any, Any]]:
    """The columns of ``scan`` in the order of ``Record``."""
    import pyarrow as pa

    column = batch.column
    stamps = column("timestamp").cast(pa.int64()).to_pylist()
    headers = ([(h["key"], h["value"]) for h in row or ()] for row in column("headers").to_pylist())
    return zip(
        column("value").to_pylist(),
        column("key").to_pylist(),
        headers,
        stamps,
        column("offset").to_pylist(),
        column("partition").to_pylist(),
        column("timestampType").to_pylist(),
        strict=True,
    )
