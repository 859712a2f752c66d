"""The key index: `<base>.keyindex`, from the hash of a key to the offsets of its records.

What lives here: making the bytes of one, and looking into one through a read function without loading it.
All integers are big-endian.

    +---------------------------------------------------------------+
    | header, 48 bytes: magic "STRAKEYS", version, flags, entry     |
    | count, the segment's base offset, size and CRC-32C of the     |
    | `.log` it was made from, CRC-32C of the header                |
    +---------------------------------------------------------------+
    | page, 4096 bytes: 341 entries, then the page's CRC-32C        |
    +---------------------------------------------------------------+
    | ... the last page holds what is left over, then its CRC       |
    +---------------------------------------------------------------+

    entry, 12 bytes: XXH64 of the key with seed 0 (uint64), offset less the base offset (uint32)

Entries rise by (hash, offset), so bytes compare as the entries do. A page's CRC starts from the header's
CRC and the page's number: a page of another file or place is as wrong as a flipped bit. Hashes are spread
evenly, so the page of a hash is guessed from its value: one read, mostly. Two keys may share a hash: the
reader of the record compares the key.

The file is written whole, after the segment is sealed. A crash may leave it missing, short or failing its
CRCs, and a rewritten segment leaves it bound to another size or CRC: then it is made again from the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from stratalog.errors import CorruptionError, InvalidArgumentError, UnsupportedFormat
from stratalog.format.layout import LITTLE_ENDIAN, Layout, layout_size, make_struct
from stratalog.kernel import crc32c

MAGIC = b"STRAKEYS"
VERSION = 1
LAYOUT: Layout = (
    ("magic", "bytes", 8),
    ("version", "uint16", 2),
    ("flags", "uint16", 2),
    ("count", "uint64", 8),
    ("baseOffset", "int64", 8),
    ("logSize", "int64", 8),
    ("logCrc", "uint32", 4),
    ("reserved", "bytes", 4),
    ("headerCrc", "uint32", 4),
)
ENTRY_LAYOUT: Layout = (("keyHash", "uint64", 8), ("relativeOffset", "uint32", 4))
PAGE_CRC_LAYOUT: Layout = (("pageCrc", "uint32", 4),)
PAGE_SIZE = 4096
ENTRY_SIZE = layout_size(ENTRY_LAYOUT)
ENTRIES_PER_PAGE = (PAGE_SIZE - layout_size(PAGE_CRC_LAYOUT)) // ENTRY_SIZE

_HEADER = make_struct(LAYOUT)
_HEADER_BODY = make_struct(LAYOUT[:-1])
_SEED = make_struct((("headerCrc", "uint32", 4), ("page", "uint32", 4)))
_U32 = make_struct(PAGE_CRC_LAYOUT)
HEADER_SIZE = _HEADER.size
_HASHES = 1 << 64
# Guesses by value before the search falls back to halving, which cannot be led astray.
_GUESSES = 4
_ARROW_SORT_ROWS = 1 << 14  # below this, importing pyarrow costs more than it saves


def file_size(count: int) -> int:
    """Return the size in bytes of a key index with ``count`` entries."""
    pages = -(-count // ENTRIES_PER_PAGE)
    return HEADER_SIZE + count * ENTRY_SIZE + pages * _U32.size


def pack(hashes: array[int], offsets: array[int], base_offset: int, log_size: int, log_crc: int) -> bytes:
    """Pack a segment's key index from ``hashes`` (array 'Q') and ``offsets`` (array 'q') in log order."""
    count = len(hashes)
    if count != len(offsets):
        raise InvalidArgumentError(f"{count} hashes for {len(offsets)} offsets")
    body = _HEADER_BODY.pack(MAGIC, VERSION, 0, count, base_offset, log_size, log_crc, bytes(4))
    header_crc = crc32c(body)
    parts = [body, _U32.pack(header_crc)]
    entries = memoryview(_sorted_entries(hashes, offsets, base_offset))
    step = ENTRIES_PER_PAGE * ENTRY_SIZE
    for page, start in enumerate(range(0, len(entries), step)):
        content = entries[start : start + step]
        parts.append(content)  # type: ignore[arg-type]  # join takes any buffer
        parts.append(_U32.pack(crc32c(content, _page_seed(header_crc, page))))
    return b"".join(parts)


def _page_seed(header_crc: int, page: int) -> int:
    return crc32c(_SEED.pack(header_crc, page))


def _sorted_entries(hashes: array[int], offsets: array[int], base_offset: int) -> bytes:
    """Return all entries in order. Ten million of them must be sorted outside the interpreter."""
    count = len(hashes)
    low, high = min(offsets, default=base_offset), max(offsets, default=base_offset)
    if low < base_offset or high - base_offset >= 1 << 31:
        raise InvalidArgumentError(f"offsets {low} to {high} in a segment from {base_offset}")
    if count < _ARROW_SORT_ROWS:
        entries = sorted(
            (hash64 << 32) | (offset - base_offset) for hash64, offset in zip(hashes, offsets, strict=True)
        )
        return b"".join([entry.to_bytes(ENTRY_SIZE, "big") for entry in entries])
    import pyarrow as pa
    import pyarrow.compute as pc

    hash_column = pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(hashes)])
    offset_column = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(offsets)])
    order = pc.sort_indices(
        pa.table({"hash": hash_column, "offset": offset_column}),
        sort_keys=[("hash", "ascending"), ("offset", "ascending")],
    )
    relative = pc.subtract(offset_column, base_offset).cast(pa.uint32())
    high_low, rest = array("Q"), array("I")
    # What take() makes is new: no nulls, no offset, only padding behind the values.
    high_low.frombytes(memoryview(pc.take(hash_column, order).buffers()[1])[: count * 8])
    rest.frombytes(memoryview(pc.take(relative, order).buffers()[1])[: count * 4])
    if LITTLE_ENDIAN:
        high_low.byteswap()
        rest.byteswap()
    halves = array("I", high_low.tobytes())
    words = array("I", bytes(count * ENTRY_SIZE))
    words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], rest
    return words.tobytes()


class KeyIndexReader:
    """Looks keys up in a key index through ``pread(size, offset)``.

    Only the header is kept; a lookup reads the pages it needs and checks each. CorruptionError is raised
    for a page that fails, UnsupportedFormat for another version.
    """

    __slots__ = ("_header_crc", "_pages", "_pread", "base_offset", "count", "log_crc", "log_size")

    def __init__(self, pread: Callable[[int, int], bytes], size: int) -> None:
        self._pread = pread
        self.count: int
        self.base_offset: int
        self.log_size: int
        self.log_crc: int
        header = pread(HEADER_SIZE, 0) if size >= HEADER_SIZE else b""
        if len(header) != HEADER_SIZE:
            raise CorruptionError(f"key index of {size} bytes", position=0)
        (
            magic,
            version,
            flags,
            self.count,
            self.base_offset,
            self.log_size,
            self.log_crc,
            _,
            self._header_crc,
        ) = _HEADER.unpack(header)
        if magic != MAGIC:
            raise CorruptionError(f"not a key index: {magic!r}", position=0)
        if self._header_crc != crc32c(header[:-4]):
            raise CorruptionError("the CRC of the header does not match", position=HEADER_SIZE - 4)
        if version != VERSION or flags:
            raise UnsupportedFormat(f"key index of version {version}, flags {flags:#x}")
        if size != file_size(self.count):
            raise CorruptionError(
                f"{self.count} entries in a key index of {size} bytes", position=HEADER_SIZE
            )
        self._pages = -(-self.count // ENTRIES_PER_PAGE)

    def matches(self, log_size: int, log_crc: int) -> bool:
        """Was this index made from a log of that size and CRC?"""
        return self.log_size == log_size and self.log_crc == log_crc

    def lookup(self, key_hash: int) -> list[int]:
        """Return the offsets of all records whose key may have this hash, ascending."""
        found = list(self.newest_first(key_hash))
        found.reverse()
        return found

    def newest_first(self, key_hash: int) -> Iterator[int]:
        """Yield the same offsets descending; read only the pages that the caller uses."""
        target = key_hash.to_bytes(8, "big")
        page, entries = self._last_page_with(key_hash, target)
        while page >= 0:
            slot = _count_up_to(entries, target) - 1
            while slot >= 0 and entries[slot * ENTRY_SIZE : slot * ENTRY_SIZE + 8] == target:
                yield self.base_offset + _U32.unpack_from(entries, slot * ENTRY_SIZE + 8)[0]
                slot -= 1
            if slot >= 0:
                return
            page -= 1
            if page >= 0:
                entries = self._page(page)

    def in_offset_order(self) -> tuple[array[int], array[int]]:
        """Return every entry as it was packed: hashes (array 'Q') and offsets (array 'q') in log order."""
        words = array("I", b"".join(self._page(page) for page in range(self._pages)))
        halves = array("I", bytes(self.count * 8))
        halves[0::2], halves[1::2], relative = words[0::3], words[1::3], words[2::3]
        hashes = array("Q", halves.tobytes())
        if LITTLE_ENDIAN:
            hashes.byteswap()
            relative.byteswap()
        offsets = array("q", relative)
        if self.base_offset:
            offsets = array("q", [self.base_offset + each for each in relative])
        return _by_offset(hashes, offsets)

    def verify(self) -> None:
        """Read and check every page, and that entries rise across all of them."""
        before = b""
        for page in range(self._pages):
            entries = self._page(page)
            for start in range(0, len(entries), ENTRY_SIZE):
                entry = entries[start : start + ENTRY_SIZE]
                if entry <= before:
                    raise CorruptionError(
                        "an entry does not rise", position=self._page_position(page) + start
                    )
                before = entry

    def _last_page_with(self, key_hash: int, target: bytes) -> tuple[int, bytes]:
        """Return the last page whose first hash is at or below the target; page -1 if there is none."""
        low, high = 0, self._pages - 1
        best, best_entries = -1, b""
        low_hash, high_hash = 0, _HASHES
        guesses = 0
        while low <= high:
            if guesses < _GUESSES and high_hash > low_hash:
                middle = low + (high - low + 1) * (key_hash - low_hash) // (high_hash - low_hash)
                middle = min(max(middle, low), high)
            else:
                middle = (low + high) // 2
            guesses += 1
            entries = self._page(middle)
            if entries[:8] <= target:
                best, best_entries = middle, entries
                if entries[-ENTRY_SIZE : 8 - ENTRY_SIZE] > target:
                    break
                low = middle + 1
                low_hash = int.from_bytes(entries[-ENTRY_SIZE : 8 - ENTRY_SIZE], "big")
            else:
                high = middle - 1
                high_hash = int.from_bytes(entries[:8], "big")
        return best, best_entries

    def _page_position(self, page: int) -> int:
        return HEADER_SIZE + page * PAGE_SIZE

    def _page(self, page: int) -> bytes:
        """Read and check the entries of one page."""
        position = self._page_position(page)
        size = min(ENTRIES_PER_PAGE, self.count - page * ENTRIES_PER_PAGE) * ENTRY_SIZE
        data = self._pread(size + 4, position)
        if len(data) != size + 4:
            raise CorruptionError(f"page {page} is short", position=position + len(data))
        if _U32.unpack_from(data, size)[0] != crc32c(data[:size], _page_seed(self._header_crc, page)):
            raise CorruptionError(f"the CRC of page {page} does not match", position=position)
        return data[:size]


def _by_offset(hashes: array[int], offsets: array[int]) -> tuple[array[int], array[int]]:
    count = len(offsets)
    if count < _ARROW_SORT_ROWS:
        order = sorted(range(count), key=offsets.__getitem__)
        return array("Q", map(hashes.__getitem__, order)), array("q", map(offsets.__getitem__, order))
    import pyarrow as pa
    import pyarrow.compute as pc

    offset_column = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(offsets)])
    hash_column = pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(hashes)])
    order = pc.array_sort_indices(offset_column)
    sorted_hashes, sorted_offsets = array("Q"), array("q")
    sorted_hashes.frombytes(memoryview(hash_column.take(order).buffers()[1])[: 8 * count])
    sorted_offsets.frombytes(memoryview(offset_column.take(order).buffers()[1])[: 8 * count])
    return sorted_hashes, sorted_offsets


def _count_up_to(entries: bytes, target: bytes) -> int:
    """Count the entries of a page with a hash at or below ``target``."""
    low, high = 0, len(entries) // ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        if entries[middle * ENTRY_SIZE : middle * ENTRY_SIZE + 8] <= target:
            low = middle + 1
        else:
            high = middle
    return low
