"""Taking a whole log file in as a segment: offsets are patched into it, and it gets its name by rename.

The file lies on the same disk and holds record batches with whatever offsets. Offset and leader epoch lie
outside a batch's CRC, so giving it new ones touches sixteen bytes of each batch; everything derived
(`Sidecars`) comes from one pass over the result, which also checks every byte of it.

Crash policy: before the rename the log does not know of the file, and patching it again is harmless; the
rename is one step; after it recovery finds a segment like any other and derives what is missing beside it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from stratalog.errors import CorruptionError
from stratalog.format.batch import HEADER_SIZE
from stratalog.fs import File
from stratalog.log.scanning import scan_file
from stratalog.log.sidecars import Sidecars

if TYPE_CHECKING:
    from stratalog.log.writer import PartitionWriter

_PLACE = struct.Struct(">qii")  # base offset, length, leader epoch
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LEAST_LENGTH = HEADER_SIZE - 12


def adopt(writer: PartitionWriter, source: str) -> int:
    """Append the file ``source`` as a segment of its own, durable on return; its base offset.

    The work is done before the partition is locked, for the offset it will most likely get; only when
    somebody appended meanwhile it is done again, and appends wait for it.
    """
    base = writer.next_offset
    made, end = _prepare(writer, source, base)
    writer.flush()
    with writer.lock:
        writer.make_usable()
        if writer.next_offset != base:
            base = writer.next_offset
            made, end = _prepare(writer, source, base)
        writer.adopt_segment(source, made, end)
    writer.acknowledge(end, True)
    return base


def _prepare(writer: PartitionWriter, source: str, base: int) -> tuple[Sidecars, int]:
    """Give the batches of ``source`` the offsets from ``base`` on; what is derived from it, and its end."""
    config = writer.config
    made = Sidecars(base, config.index_interval_bytes, keyed=config.key_index_enable)
    with writer.context.fs.open(source, "w") as file:
        end = _patch(file, base, writer.leader_epoch)
        file.sync()
        for at, data, scan in scan_file(file, 0, file.size(), check_crc=True, expect=base):
            made.add(at, data, scan)
        if made.size_bytes != file.size():
            raise CorruptionError("no whole batch", path=source, position=made.size_bytes)
    return made, end


def _patch(file: File, base: int, leader_epoch: int) -> int:
    """Set offset and leader epoch of every batch, going by their lengths; the offset after the last."""
    position, offset, size = 0, base, file.size()
    while position < size:
        head = file.pread(HEADER_SIZE, position)
        if len(head) < HEADER_SIZE:
            raise CorruptionError("half a batch header", path=file.path, position=position)
        length = _PLACE.unpack_from(head)[1]
        delta = _LAST_OFFSET_DELTA.unpack_from(head, 23)[0]
        if length < _LEAST_LENGTH or delta < 0 or position + 12 + length > size:
            raise CorruptionError("not a batch", path=file.path, position=position)
        place = _PLACE.pack(offset, length, leader_epoch)
        if head[: _PLACE.size] != place:
            file.pwrite(place, position)
        offset += delta + 1
        position += 12 + length
    return offset
