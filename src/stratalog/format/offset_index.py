"""The offset index: `<base>.index`, from offsets to byte positions, as Kafka writes it.

What lives here: the entries of one index in memory, and their bytes.

    0        4        8
    +--------+--------+
    | offset | place  |   one entry: int32 last offset of a batch less the segment's base offset,
    +--------+--------+   int32 position of that batch in the `.log`; big-endian, both strictly rising

Entries are sparse: one before the batch that takes the bytes since the last entry past
`index.interval.bytes`. Position 0 never has an entry, so an entry of zeros is not one: Kafka preallocates
its active index with zeros, and those are left out on reading. There is no header and no checksum.

After a crash the file may be missing, short, torn inside an entry, zero in places or ahead of the log.
``parse`` refuses whatever can be seen to be wrong; the log is the truth and the index is rebuilt from it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from stratalog.errors import CorruptionError, InvalidArgumentError
from stratalog.format.layout import LITTLE_ENDIAN, Layout, RisingCheck, layout_size, used_bytes

LAYOUT: Layout = (("relativeOffset", "int32", 4), ("position", "int32", 4))
ENTRY_SIZE = layout_size(LAYOUT)
MAX_RELATIVE_OFFSET = (1 << 31) - 1

_RISING = RisingCheck(LAYOUT, strict=("relativeOffset", "position"))


class OffsetIndex:
    """The entries of one segment's offset index, in order.

    One writer may append while others look up. Cutting is for a writer that readers are kept away from.
    """

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    @classmethod
    def parse(cls, data: bytes | bytearray | memoryview, base_offset: int, log_size: int) -> OffsetIndex:
        """The index in ``data``, checked against itself and against the size of its log."""
        index = cls(base_offset)
        used = used_bytes(data, ENTRY_SIZE, "offset index")
        if not used:
            return index
        entries = memoryview(data)[:used]
        bad = _RISING.first_bad(entries)
        if bad >= 0:
            raise CorruptionError(
                f"entry {bad} does not rise from the one before it", position=bad * ENTRY_SIZE
            )
        both = array("i")
        both.frombytes(entries)
        if LITTLE_ENDIAN:
            both.byteswap()
        offsets, positions = both[0::2], both[1::2]
        if positions[0] == 0:
            raise CorruptionError("the first entry points to byte 0, which is never indexed", position=0)
        if positions[-1] >= log_size:
            raise CorruptionError(
                f"points to byte {positions[-1]} of a log of {log_size}", position=used - ENTRY_SIZE
            )
        index._offsets, index._positions = offsets, positions
        return index

    def __len__(self) -> int:
        return len(self._offsets)

    def __repr__(self) -> str:
        return f"<OffsetIndex base {self.base_offset}, {len(self)} entries>"

    @property
    def size_bytes(self) -> int:
        return len(self._offsets) * ENTRY_SIZE

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry for the batch that ends with ``last_offset`` and starts at ``position``."""
        relative = last_offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET or not 0 < position <= MAX_RELATIVE_OFFSET:
            raise InvalidArgumentError(
                f"offset {last_offset} at {position} does not fit an index from {self.base_offset}"
            )
        if self._offsets and (relative <= self._offsets[-1] or position <= self._positions[-1]):
            raise InvalidArgumentError(f"offset {last_offset} at {position} is not past {self.last()}")
        # Positions first: a lookup that finds the new offset must find its position.
        self._positions.append(position)
        self._offsets.append(relative)

    def extend(self, last_offsets: array[int], positions: array[int]) -> None:
        """Add entries that rise, as a scan of the log gives them."""
        if not last_offsets:
            return
        base = self.base_offset
        self.append(last_offsets[0], positions[0])
        if last_offsets[-1] - base > MAX_RELATIVE_OFFSET or positions[-1] > MAX_RELATIVE_OFFSET:
            raise InvalidArgumentError(f"offset {last_offsets[-1]} does not fit an index from {base}")
        self._positions.extend(array("i", positions[1:]))
        self._offsets.extend(array("i", [offset - base for offset in last_offsets[1:]]))

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """(last offset, position) of the last entry at or below ``offset``; None when there is none."""
        slot = bisect_right(self._offsets, offset - self.base_offset) - 1
        return self.entry(slot) if slot >= 0 else None

    def around(self, offset: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """The last entry at or below ``offset``, and the first above it."""
        slot = bisect_right(self._offsets, offset - self.base_offset)
        return (
            self.entry(slot - 1) if slot else None,
            self.entry(slot) if slot < len(self._offsets) else None,
        )

    def after_position(self, position: int) -> tuple[int, int] | None:
        """The first entry whose batch starts past ``position``: where to go on reading behind damage."""
        slot = bisect_right(self._positions, position, 0, len(self._offsets))
        return self.entry(slot) if slot < len(self._offsets) else None

    def entry(self, i: int) -> tuple[int, int]:
        return self.base_offset + self._offsets[i], self._positions[i]

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self._offsets) - 1) if self._offsets else None

    def truncate(self, log_size: int) -> None:
        """Drop the entries of batches at or past byte ``log_size`` of the log."""
        keep = bisect_left(self._positions, log_size)
        del self._offsets[keep:]
        del self._positions[keep:]

    def to_bytes(self) -> bytes:
        return self.tail_bytes(0)

    def tail_bytes(self, from_entry: int) -> bytes:
        """The bytes of the entries from ``from_entry`` on; they belong at ``from_entry * ENTRY_SIZE``."""
        offsets = self._offsets[from_entry:]
        both = array("i", bytes(len(offsets) * ENTRY_SIZE))
        both[0::2] = offsets
        both[1::2] = self._positions[from_entry : from_entry + len(offsets)]
        if LITTLE_ENDIAN:
            both.byteswap()
        return both.tobytes()
