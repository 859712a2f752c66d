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

    One writer may append and cut while others look up: entries are only added behind the others, positions
    first, and a cut replaces both columns in one step.
    """

    __slots__ = ("_columns", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._columns = (array("i"), array("i"))
        """Relative offsets and positions. There are as many entries as offsets."""

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
        index._columns = (offsets, positions)
        return index

    def __len__(self) -> int:
        return len(self._columns[0])

    def __repr__(self) -> str:
        return f"<OffsetIndex base {self.base_offset}, {len(self)} entries>"

    @property
    def size_bytes(self) -> int:
        return len(self) * ENTRY_SIZE

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry for the batch that ends with ``last_offset`` and starts at ``position``."""
        relative = last_offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET or not 0 < position <= MAX_RELATIVE_OFFSET:
            raise InvalidArgumentError(
                f"offset {last_offset} at {position} does not fit an index from {self.base_offset}"
            )
        offsets, positions = self._columns
        if len(positions) > len(offsets):
            del positions[len(offsets) :]  # an append was interrupted half way
        if offsets and (relative <= offsets[-1] or position <= positions[-1]):
            raise InvalidArgumentError(f"offset {last_offset} at {position} is not past {self.last()}")
        # Positions first: a lookup that finds the new offset must find its position.
        positions.append(position)
        offsets.append(relative)

    def extend(self, last_offsets: array[int], positions: array[int]) -> None:
        """Add entries that rise, as a scan of the log gives them."""
        if not last_offsets:
            return
        base = self.base_offset
        self.append(last_offsets[0], positions[0])
        own_offsets, own_positions = self._columns
        if last_offsets[-1] - base > MAX_RELATIVE_OFFSET or positions[-1] > MAX_RELATIVE_OFFSET:
            raise InvalidArgumentError(f"offset {last_offsets[-1]} does not fit an index from {base}")
        own_positions.extend(array("i", positions[1:]))
        own_offsets.extend(array("i", [offset - base for offset in last_offsets[1:]]))

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """(last offset, position) of the last entry at or below ``offset``; None when there is none."""
        offsets, positions = self._columns
        slot = bisect_right(offsets, offset - self.base_offset) - 1
        return (self.base_offset + offsets[slot], positions[slot]) if slot >= 0 else None

    def around(self, offset: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """The last entry at or below ``offset``, and the first above it."""
        base, (offsets, positions) = self.base_offset, self._columns
        slot = bisect_right(offsets, offset - base)
        return (
            (base + offsets[slot - 1], positions[slot - 1]) if slot else None,
            (base + offsets[slot], positions[slot]) if slot < len(offsets) else None,
        )

    def after_position(self, position: int) -> tuple[int, int] | None:
        """The first entry whose batch starts past ``position``: where to go on reading behind damage."""
        offsets, positions = self._columns
        slot = bisect_right(positions, position, 0, len(offsets))
        return (self.base_offset + offsets[slot], positions[slot]) if slot < len(offsets) else None

    def last_before(self, offset: int, position: int) -> tuple[int, int] | None:
        """Return the last entry that lies below ``offset`` and before ``position``; None if there is none."""
        offsets, positions = self._columns
        slot = min(
            bisect_left(offsets, offset - self.base_offset), bisect_left(positions, position, 0, len(offsets))
        )
        return (self.base_offset + offsets[slot - 1], positions[slot - 1]) if slot else None

    def entry(self, i: int) -> tuple[int, int]:
        offsets, positions = self._columns
        return self.base_offset + offsets[i], positions[i]

    def last(self) -> tuple[int, int] | None:
        offsets, positions = self._columns
        entries = len(offsets)
        return (self.base_offset + offsets[entries - 1], positions[entries - 1]) if entries else None

    def truncate(self, log_size: int) -> None:
        """Drop the entries of batches at or past byte ``log_size`` of the log."""
        offsets, positions = self._columns
        keep = bisect_left(positions, log_size, 0, len(offsets))
        self._columns = (offsets[:keep], positions[:keep])

    def to_bytes(self) -> bytes:
        return self.tail_bytes(0)

    def tail_bytes(self, from_entry: int) -> bytes:
        """The bytes of the entries from ``from_entry`` on; they belong at ``from_entry * ENTRY_SIZE``."""
        offsets, positions = self._columns
        offsets = offsets[from_entry:]
        both = array("i", bytes(len(offsets) * ENTRY_SIZE))
        both[0::2] = offsets
        both[1::2] = positions[from_entry : from_entry + len(offsets)]
        if LITTLE_ENDIAN:
            both.byteswap()
        return both.tobytes()
