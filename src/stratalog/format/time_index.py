"""The time index: `<base>.timeindex`, from timestamps to offsets, as Kafka writes it.

What lives here: the entries of one time index in memory, and their bytes.

    0                 8        12
    +-----------------+--------+
    | timestamp       | offset |   one entry: int64 largest timestamp so far (ms), int32 last offset of
    +-----------------+--------+   the batch that holds it, less the segment's base offset; big-endian

An entry (t, o) promises that every record with a timestamp above t has an offset above o. One is added
with each offset index entry, when the largest timestamp has grown, and a last one for the maximum when
the segment is closed or rolled. There is no header and no checksum; Kafka preallocates its active time
index with zeros, which are left out on reading.

After a crash the file may be missing, short, torn inside an entry, zero in places or ahead of the log.
``parse`` refuses whatever can be seen to be wrong; the log is the truth and the index is rebuilt from it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from stratalog.errors import CorruptionError, InvalidArgumentError
from stratalog.format.layout import LITTLE_ENDIAN, Layout, RisingCheck, layout_size, used_bytes

LAYOUT: Layout = (("timestamp", "int64", 8), ("relativeOffset", "int32", 4))
ENTRY_SIZE = layout_size(LAYOUT)
MAX_RELATIVE_OFFSET = (1 << 31) - 1

_RISING = RisingCheck(LAYOUT, strict=("timestamp",))


class TimeIndex:
    """The entries of one segment's time index, in order.

    One writer may append and cut while others look up: entries are only added behind the others, offsets
    first, and a cut replaces both columns in one step.
    """

    __slots__ = ("_columns", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._columns = (array("q"), array("i"))
        """Timestamps and relative offsets. There are as many entries as timestamps."""

    @classmethod
    def parse(
        cls, data: bytes | bytearray | memoryview, base_offset: int, next_offset: int | None = None
    ) -> TimeIndex:
        """The index in ``data``; ``next_offset``, where known, is the end its offsets must stay below."""
        index = cls(base_offset)
        used = used_bytes(data, ENTRY_SIZE, "time index")
        if not used and len(data) == ENTRY_SIZE:
            # One entry of zeros alone is no preallocation: it is timestamp 0 on the first offset.
            used = ENTRY_SIZE
        if not used:
            return index
        entries = memoryview(data)[:used]
        bad = _RISING.first_bad(entries)
        if bad >= 0:
            raise CorruptionError(
                f"entry {bad} does not rise from the one before it", position=bad * ENTRY_SIZE
            )
        words = array("i")
        words.frombytes(entries)
        halves = array("i", bytes(used // ENTRY_SIZE * 8))
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
        timestamps, offsets = array("q", halves.tobytes()), words[2::3]
        if LITTLE_ENDIAN:
            timestamps.byteswap()
            offsets.byteswap()
        if next_offset is not None and base_offset + offsets[-1] >= next_offset:
            raise CorruptionError(
                f"points to offset {base_offset + offsets[-1]} of a segment that ends before {next_offset}",
                position=used - ENTRY_SIZE,
            )
        index._columns = (timestamps, offsets)
        return index

    def __len__(self) -> int:
        return len(self._columns[0])

    def __repr__(self) -> str:
        return f"<TimeIndex base {self.base_offset}, {len(self)} entries>"

    @property
    def size_bytes(self) -> int:
        return len(self) * ENTRY_SIZE

    def maybe_append(self, timestamp: int, offset: int) -> bool:
        """Add an entry when ``timestamp`` is above the last one; True when it was added."""
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise InvalidArgumentError(f"offset {offset} does not fit an index from {self.base_offset}")
        timestamps, offsets = self._columns
        if len(offsets) > len(timestamps):
            del offsets[len(timestamps) :]  # an append was interrupted half way
        before = -1
        if timestamps:
            before = timestamps[-1]
            if relative < offsets[-1] or timestamp < before:
                raise InvalidArgumentError(f"({timestamp}, {offset}) goes back behind {self.last()}")
        if timestamp <= before:
            return False
        # Offsets first: a lookup that finds the new timestamp must find its offset.
        offsets.append(relative)
        timestamps.append(timestamp)
        return True

    def extend(self, timestamps: array[int], offsets: array[int]) -> None:
        """`maybe_append` for each in turn; they never fall, as a scan of the log gives them."""
        last = self.last()
        before = -1 if last is None else last[0]
        for timestamp, offset in zip(timestamps, offsets, strict=True):
            if timestamp > before:
                self.maybe_append(timestamp, offset)
                before = timestamp

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry at or below ``timestamp``; None when there is none."""
        timestamps, offsets = self._columns
        slot = bisect_right(timestamps, timestamp) - 1
        return (timestamps[slot], self.base_offset + offsets[slot]) if slot >= 0 else None

    def entry(self, i: int) -> tuple[int, int]:
        timestamps, offsets = self._columns
        return timestamps[i], self.base_offset + offsets[i]

    def last(self) -> tuple[int, int] | None:
        timestamps, offsets = self._columns
        entries = len(timestamps)
        return (timestamps[entries - 1], self.base_offset + offsets[entries - 1]) if entries else None

    def truncate(self, end_offset: int) -> None:
        """Drop the entries of offsets at or past ``end_offset``."""
        timestamps, offsets = self._columns
        keep = bisect_left(offsets, end_offset - self.base_offset, 0, len(timestamps))
        self._columns = (timestamps[:keep], offsets[:keep])

    def to_bytes(self) -> bytes:
        return self.tail_bytes(0)

    def tail_bytes(self, from_entry: int) -> bytes:
        """The bytes of the entries from ``from_entry`` on; they belong at ``from_entry * ENTRY_SIZE``."""
        timestamps, offsets = self._columns
        timestamps = timestamps[from_entry:]
        offsets = offsets[from_entry : from_entry + len(timestamps)]
        if LITTLE_ENDIAN:
            timestamps.byteswap()
            offsets.byteswap()
        halves = array("i", timestamps.tobytes())
        words = array("i", bytes(len(offsets) * ENTRY_SIZE))
        words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], offsets
        return words.tobytes()
