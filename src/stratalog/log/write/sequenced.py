"""Appends that a producer numbers, so that one that is repeated is written once.

Every record takes one sequence. A batch carries the producer's id, its epoch and the sequence of its first
record, all inside its CRC: they are in the log exactly when the records are. The partition remembers each
producer's last sequence (`ProducerState`); older ones are looked for in the headers of the log.

A producer that has a name has an id made of it, the same in every store and after every crash, in a range of
its own. The partition never forgets such an id, however long it is idle.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import DuplicateSequenceError, InvalidArgumentError, OutOfOrderSequenceError
from stratalog.log.segment.segment import scan_file
from stratalog.log.write.producers import FIRST_NAMED_ID, MAX_SEQUENCE, ProducerBatch, increment_sequence
from stratalog.model import AppendedRange

if TYPE_CHECKING:
    from stratalog.log.write.writer import PartitionWriter

MAX_LOOKS = 5
"""So often the list of segments is read again when one is replaced during a search."""


class Source(NamedTuple):
    """Who appends, and the sequence of the first record. A name is set for a caller's own numbers."""

    producer_id: int
    epoch: int
    sequence: int
    transactional: bool = False
    name: str = ""

    @classmethod
    def named(cls, name: str, sequence: int) -> Source:
        return cls(named_id(name), 0, sequence, name=name)

    def batch(self, done: int, first: int, count: int, timestamp: int) -> ProducerBatch:
        """Return the facts of the next batch, after ``done`` records."""
        return ProducerBatch(
            self.producer_id,
            self.epoch,
            increment_sequence(self.sequence, done),
            increment_sequence(self.sequence, done + count - 1),
            first,
            first + count - 1,
            timestamp,
            self.transactional,
        )


def named_id(name: str) -> int:
    """Return the producer id of a name: 61 bits of its hash, above `FIRST_NAMED_ID`."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return FIRST_NAMED_ID + int.from_bytes(digest, "big") % FIRST_NAMED_ID


def already(writer: PartitionWriter, source: Source, total: int) -> int:
    """Return how many of a named producer's records are in the log. Under the partition's lock."""
    if source.sequence + total - 1 > MAX_SEQUENCE:
        raise InvalidArgumentError(
            f"sequence {source.sequence} and {total} records go past {MAX_SEQUENCE}, the last sequence;"
            " continue under another producer name"
        )
    last = writer.producers.last_sequence(source.producer_id)
    if last < 0:
        return 0
    if source.sequence > last + 1:
        raise OutOfOrderSequenceError(
            f"{writer.topic}-{writer.partition}: producer {source.name!r} sent sequence"
            f" {source.sequence}; expected {last + 1}, because its last is {last}",
            expected=last + 1,
        )
    return min(last + 1 - source.sequence, total)


def find(writer: PartitionWriter, source: Source, count: int) -> list[AppendedRange]:
    """Return where the records of ``count`` sequences are; DuplicateSequenceError when that is not known."""
    first, last = source.sequence, source.sequence + count - 1
    with writer.lock:
        newest = writer.producers.last_batch(source.producer_id)
    if newest is not None and first >= newest.base_sequence:
        return [AppendedRange(writer.partition, newest.first_offset + first - newest.base_sequence, count)]
    for _ in range(MAX_LOOKS):
        try:
            found = _search(writer, source.producer_id, first, last)
            break
        except FileNotFoundError:
            writer.refresh()
    else:
        found = []
    if sum(each.count for each in found) < count:
        known = writer.producers.last_sequence(source.producer_id)
        shown = f"sequence {first} is" if count == 1 else f"sequences {first} to {last} are"
        raise DuplicateSequenceError(
            f"{writer.topic}-{writer.partition}: producer {source.name!r} is already at sequence {known}, and"
            f" {shown} not found in the local log any more; nothing was written. Continue with sequence"
            f" {known + 1}",
            last_sequence=known,
        )
    return found


def _search(writer: PartitionWriter, producer_id: int, first: int, last: int) -> list[AppendedRange]:
    """Return the ranges of a producer's sequences, newest segment first until all are found."""
    ranges: list[AppendedRange] = []
    wanted = last - first + 1
    for segment in reversed(writer.local_segments()):
        here = []
        with segment.open_log() as file:
            for _, _, scan in scan_file(file, 0, segment.size):
                for header in scan if scan.has_producers else ():
                    if header.producer_id != producer_id or header.is_control:
                        continue
                    low, high = max(header.base_sequence, first), min(header.last_sequence, last)
                    if low <= high:
                        offset = header.base_offset + low - header.base_sequence
                        here.append(AppendedRange(writer.partition, offset, high - low + 1))
                        wanted -= high - low + 1
        ranges = here + ranges
        if wanted <= 0:
            break
    return joined(ranges)


def joined(ranges: list[AppendedRange]) -> list[AppendedRange]:
    """Return ranges in order, those that follow each other made one."""
    made: list[AppendedRange] = []
    for each in ranges:
        if made and made[-1].offset + made[-1].count == each.offset:
            made[-1] = AppendedRange(each.partition, made[-1].offset, made[-1].count + each.count)
        else:
            made.append(each)
    return made
