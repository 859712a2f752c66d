"""Adopting a whole log file as a segment: offsets are patched into it, and a rename gives it its name.

The file lies on the same disk and holds record batches with any offsets. No CRC covers offset and leader
epoch, so setting them touches sixteen bytes of each batch; everything derived (`Sidecars`) comes from one
pass over the result, which also checks every byte of it.

Crash policy: before the rename the file is no part of the log, and patching it again is harmless; the rename
is one step; after it recovery finds a segment like any other and derives what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format import producer_snapshot
from stratalog.format.batch import HEADER_SIZE
from stratalog.fs import File
from stratalog.log.names import LOG, SEGMENT_KINDS, SNAPSHOT, file_name
from stratalog.log.segment.segment import Segment, owner_of, scan_file
from stratalog.log.segment.sidecars import Sidecars

if TYPE_CHECKING:
    from stratalog.log.write.writer import PartitionWriter


def adopt(writer: PartitionWriter, source: str) -> int:
    """Append the file ``source`` as a segment of its own, durable on return; return its base offset.

    The file is prepared for the next offset without a lock; if something was appended meanwhile, it is
    prepared again while appends wait.
    """
    sidecars, end = _prepare(writer, source, writer.next_offset)
    base = writer.hold_appends(lambda: _take_in(writer, source, sidecars, end))
    writer.acknowledge(writer.next_offset, True)
    return base


def _take_in(writer: PartitionWriter, source: str, sidecars: Sidecars, end: int) -> int:
    """Make ``source``, which is synced, the next segment by rename; return its base offset.

    Inside `hold_appends`. Everything before must be durable first: recovery cuts at the first gap, and would
    cut this off. All files are written beside ``source``, so that nothing but renames can fail once the log
    has its name.
    """
    with writer.lock:
        if writer.active.size:
            writer.begin_segment(writer.next_offset)
    writer.flush()
    old, fs = writer.active, writer.context.fs
    base = old.base_offset
    if sidecars.base_offset != base:
        sidecars, end = _prepare(writer, source, base)
    moves: dict[str, str] = {}
    for kind in SEGMENT_KINDS[1:]:
        data = sidecars.pack(kind)
        if data is not None:
            fs.write_file(f"{source}.{kind}", data, sync=True)
            moves[f"{source}.{kind}"] = old.path(kind)
    for kind, data in ((SNAPSHOT, producer_snapshot.pack(writer.producers.to_entries())), (LOG, b"")):
        fs.write_file(f"{source}.{kind}", data, sync=True)
        moves[f"{source}.{kind}"] = f"{writer.directory}/{file_name(end, kind)}"
    old.ledger.in_doubt = True
    old.release_file()
    writer.context.handles.forget(old.path())
    fs.rename(source, old.path())
    for path, target in moves.items():
        fs.rename(path, target)
    fs.sync_dir(writer.directory)
    fs.sync_dir(source.rpartition("/")[0])
    writer.context.handles.forget(old.path())
    writer.context.cache.forget(old.serial)
    with writer.lock:
        adopted = Segment(writer.location, base, size=sidecars.size_bytes, next_offset=end)
        new = writer.next_segment(end)
        writer.syncer.sealed(adopted)
        writer.segment_list.local = (*writer.segment_list.local[:-1], adopted, new)
        if not writer.acks_wait:
            writer.advance(end)
        writer.active = new
    if writer.on_roll is not None:
        writer.on_roll()
    return base


def _prepare(writer: PartitionWriter, source: str, base: int) -> tuple[Sidecars, int]:
    """Give the batches of ``source`` offsets from ``base`` on; return its sidecars and its end."""
    config = writer.config
    owner = owner_of(writer.context.fs, writer.directory, writer.partition)
    made = Sidecars(base, config.index_interval_bytes, keyed=config.key_index_enable, owner=owner)
    with writer.context.fs.open(source, "w") as file:
        end = _patch(file, base, writer.leader_epoch)
        file.sync()
        for at, data, scan in scan_file(file, 0, file.size(), check_crc=True, expect=base):
            made.add(at, data, scan)
        if made.size_bytes != file.size():
            raise CorruptionError("no whole batch", path=source, position=made.size_bytes)
    return made, end


def _patch(file: File, base: int, leader_epoch: int) -> int:
    """Set offset and leader epoch of every batch, one by one; return the offset after the last."""
    position, offset, size = 0, base, file.size()
    while position < size:
        head = file.pread(HEADER_SIZE, position)
        found = batches.peek(head)
        if found is None or position + found.size > size:
            raise CorruptionError("not a whole batch", path=file.path, position=position)
        place = batches.place(head, offset, leader_epoch)
        if head[: len(place)] != place:
            file.pwrite(place, position)
        offset += found.last_offset - found.base_offset + 1
        position += found.size
    return offset
