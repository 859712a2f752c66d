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

    One writer may append while others look up. Cutting is for a writer that readers are kept away from.
    """

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

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
        index._timestamps, index._offsets = timestamps, offsets
        return index

    def __len__(self) -> int:
        return len(self._timestamps)

    def __repr__(self) -> str:
        return f"<TimeIndex base {self.base_offset}, {len(self)} entries>"

    @property
    def size_bytes(self) -> int:
        return len(self._timestamps) * ENTRY_SIZE

    def maybe_append(self, timestamp: int, offset: int) -> bool:
        """Add an entry when ``timestamp`` is above the last one; True when it was added."""
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET:
            raise InvalidArgumentError(f"offset {offset} does not fit an index from {self.base_offset}")
        before = -1
        if self._timestamps:
            before = self._timestamps[-1]
            if relative < self._offsets[-1] or timestamp < before:
                raise InvalidArgumentError(f"({timestamp}, {offset}) goes back behind {self.last()}")
        if timestamp <= before:
            return False
        # Offsets first: a lookup that finds the new timestamp must find its offset.
        self._offsets.append(relative)
        self._timestamps.append(timestamp)
        return True

    def extend(self, timestamps: array[int], offsets: array[int]) -> None:
        """`maybe_append` for each in turn; they never fall, as a scan of the log gives them."""
        before = self._timestamps[-1] if self._timestamps else -1
        for timestamp, offset in zip(timestamps, offsets, strict=True):
            if timestamp > before:
                self.maybe_append(timestamp, offset)
                before = timestamp

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry at or below ``timestamp``; None when there is none."""
        slot = bisect_right(self._timestamps, timestamp) - 1
        return self.entry(slot) if slot >= 0 else None

    def entry(self, i: int) -> tuple[int, int]:
        return self._timestamps[i], self.base_offset + self._offsets[i]

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self._timestamps) - 1) if self._timestamps else None

    def truncate(self, end_offset: int) -> None:
        """Drop the entries of offsets at or past ``end_offset``."""
        keep = bisect_left(self._offsets, end_offset - self.base_offset)
        del self._timestamps[keep:]
        del self._offsets[keep:]

    def to_bytes(self) -> bytes:
        return self.tail_bytes(0)

    def tail_bytes(self, from_entry: int) -> bytes:
        """The bytes of the entries from ``from_entry`` on; they belong at ``from_entry * ENTRY_SIZE``."""
        timestamps = self._timestamps[from_entry:]
        offsets = self._offsets[from_entry : from_entry + len(timestamps)]
        if LITTLE_ENDIAN:
            timestamps.byteswap()
            offsets.byteswap()
        halves = array("i", timestamps.tobytes())
        words = array("i", bytes(len(offsets) * ENTRY_SIZE))
        words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], offsets
        return words.tobytes()
