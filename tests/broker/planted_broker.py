"""A broker with a bug, for `test_broker_campaign`: STRATALOG_PLANTED names it.

This runs as the process of a `ProcessBroker`. Each bug is one that a broker has had, somewhere. It is planted
beside the code that it replaces, so the code itself knows nothing of it.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stratalog.broker import produce, server
from stratalog.broker.server import Request
from stratalog.log.write.produce import BatchesAppended
from stratalog.store import Topic
from stratalog.store.groups.offsets import GroupOffsets
from stratalog.testing import brokers

HEADER = struct.Struct(">qi")
EVERY = 20


def acknowledged_before_written(_: Path) -> None:
    """Batches are acknowledged, and every so often one of them is not written after all."""
    real, count = Topic.append_batches, itertools.count(1)

    def append(self: Topic, partition: int, data: Any, **options: Any) -> BatchesAppended:
        if next(count) % EVERY:
            return real(self, partition, data, **options)
        end = self.high_watermark(partition)
        return BatchesAppended(partition, end, end, -1)

    Topic.append_batches = append  # type: ignore[method-assign]


def dropped_on_roll(_: Path) -> None:
    """The first batch of a new segment is nowhere to be read."""
    real = Topic.fetch

    def fetch(self: Topic, partition: int, offset: int, *rest: Any, **options: Any) -> Any:
        found = real(self, partition, offset, *rest, **options)
        first = offset > 0 and any(each.base_offset == offset for each in self.segments(partition))
        if not first or found.file is None or found.length < 61:
            return found
        head = os.pread(found.file.fileno(), 27, found.position)
        last = HEADER.unpack_from(head)[0] + int.from_bytes(head[23:27], "big")
        found.release()
        return real(self, partition, last + 1, *rest, **options)

    Topic.fetch = fetch  # type: ignore[method-assign]


def offset_given_twice(_: Path) -> None:
    """Every so often an answer names the offset of the record before."""
    real, count = Topic.append_batches, itertools.count(1)

    def append(self: Topic, *arguments: Any, **options: Any) -> BatchesAppended:
        placed = real(self, *arguments, **options)
        if next(count) % EVERY or not placed.base_offset:
            return placed
        return placed._replace(base_offset=placed.base_offset - 1)

    Topic.append_batches = append  # type: ignore[method-assign]


def duplicate_answered_wrong(_: Path) -> None:
    """A batch that is there already is answered with the end of the log."""
    real = Topic.append_batches

    def append(self: Topic, partition: int, *arguments: Any, **options: Any) -> BatchesAppended:
        placed = real(self, partition, *arguments, **options)
        if not placed.duplicate:
            return placed
        return placed._replace(base_offset=self.high_watermark(partition))

    Topic.append_batches = append  # type: ignore[method-assign]


def commit_forgotten(_: Path) -> None:
    """Every third commit of a group is acknowledged and not kept."""
    real, count = GroupOffsets.topic_to_write, itertools.count(1)

    class Nothing:
        def __init__(self, topic: Topic) -> None:
            self._topic = topic

        def __getattr__(self, name: str) -> Any:
            return getattr(self._topic, name)

        def append_many(self, rows: Any, **_: Any) -> None:
            del rows

        def append_batches(self, partition: int, data: Any, **_: Any) -> BatchesAppended:
            return BatchesAppended(partition, 0, 0, -1)

    def topic_to_write(self: GroupOffsets) -> Any:
        found = real(self)
        return found if next(count) % 3 else Nothing(found)

    GroupOffsets.topic_to_write = topic_to_write  # type: ignore[method-assign]


def high_watermark_beyond_the_data(_: Path) -> None:
    """The end of a log is told to be three records further on."""
    handle, low = server.HANDLERS["ListOffsets"]

    def list_offsets(request: Request) -> None:
        real = request.answer

        class Beyond(Request):
            __slots__ = ()

            def answer(self, value: Any, version: int | None = None) -> None:
                asked = {
                    (topic.name, part.partition_index): part.timestamp
                    for topic in request.body.topics
                    for part in topic.partitions
                }
                topics = [
                    topic._replace(
                        partitions=[
                            part._replace(offset=part.offset + 3)
                            if asked[topic.name, part.partition_index] == -1
                            else part
                            for part in topic.partitions
                        ]
                    )
                    for topic in value.topics
                ]
                real(value._replace(topics=topics), version)

        made = Beyond.__new__(Beyond)
        for name in Request.__slots__:
            setattr(made, name, getattr(request, name))
        handle(made)

    server.HANDLERS["ListOffsets"] = (list_offsets, low)


def recovery_cuts_too_much(directory: Path) -> None:
    """After a crash the last batch of every log is cut off, although it is whole."""
    if not directory.exists() or (directory / ".kafka_cleanshutdown").exists():
        return
    for partition in directory.iterdir():
        logs = sorted(partition.glob("*.log")) if partition.is_dir() else []
        if not logs or partition.name.startswith("_"):
            continue
        data, at, last = logs[-1].read_bytes(), 0, -1
        while at + HEADER.size <= len(data):
            size = HEADER.size + HEADER.unpack_from(data, at)[1]
            if at + size > len(data):
                break
            at, last = at + size, at
        if last >= 0:
            os.truncate(logs[-1], last)


def aborted_forgotten(_: Path) -> None:
    """Readers of committed records are not told which transactions were aborted."""
    real = Topic.fetch

    def fetch(self: Topic, *arguments: Any, **options: Any) -> Any:
        found = real(self, *arguments, **options)
        found.aborted = []
        return found

    Topic.fetch = fetch  # type: ignore[method-assign]


def stable_offset_ignored(_: Path) -> None:
    """Readers of committed records get everything, also of transactions that are open."""
    real = Topic.fetch

    def fetch(self: Topic, partition: int, offset: int, max_bytes: int, _: str, **options: Any) -> Any:
        return real(self, partition, offset, max_bytes, "read_uncommitted", **options)

    Topic.fetch = fetch  # type: ignore[method-assign, assignment]


def marker_lost(_: Path) -> None:
    """Every so often a commit is acknowledged and one of its partitions gets no marker."""
    real, count = Topic.end_transaction, itertools.count(1)

    def end_transaction(self: Topic, *arguments: Any, commit: bool, **options: Any) -> Any:
        if commit and not self.name.startswith("_") and not next(count) % EVERY:
            return None
        return real(self, *arguments, commit=commit, **options)

    Topic.end_transaction = end_transaction  # type: ignore[method-assign]


PLANTED: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        acknowledged_before_written,
        dropped_on_roll,
        offset_given_twice,
        duplicate_answered_wrong,
        commit_forgotten,
        high_watermark_beyond_the_data,
        recovery_cuts_too_much,
        aborted_forgotten,
        stable_offset_ignored,
        marker_lost,
    )
}


def produce_by_the_table(request: Request) -> None:
    """Answer as the broker does where its shortcut does not fit: the bugs are planted below this."""
    produce.produce(request)


if __name__ == "__main__":
    server.HANDLERS["Produce"] = (produce_by_the_table, server.HANDLERS["Produce"][1])
    PLANTED[os.environ["STRATALOG_PLANTED"]](Path(json.loads(sys.argv[1])["directory"]))
    brokers.main(sys.argv[1])
