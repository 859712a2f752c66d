"""`export_topic`: a topic as one file with checksums (see `container`).

Reads what readers may see, beside a program that holds the store. A file appears whole or not at all, a
stream is written front to back. A segment that is damaged is found out here, by its seal or its batches, and
nothing is exported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from stratalog.config import describe
from stratalog.errors import CorruptionError, StorageError
from stratalog.format import txn_index
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import FileSystem
from stratalog.kernel import crc32c
from stratalog.log.context import Clock
from stratalog.log.names import Kind, file_name
from stratalog.log.segment.directory_state import UnsettledError
from stratalog.log.segment.segment import Segment
from stratalog.store.copies import container
from stratalog.store.copies.building import COPY_BYTES
from stratalog.store.copies.container import Manifest, Member, PartitionEntry, SegmentEntry
from stratalog.store.copies.copying import check_part
from stratalog.store.copies.cutting import pieces_before, written_ms
from stratalog.store.copies.registry import BUILDING, CopyEntry, remember
from stratalog.store.copies.reports import ExportReport, Meter, PartitionCopy, Progress
from stratalog.store.copies.source import Source, SourcePartition, open_source
from stratalog.store.paths import Paths, path_of
from stratalog.store.store import Store

EXPORT_TRIES = 10


class _Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


OutFile: TypeAlias = str | os.PathLike[str] | _Writable


class _Piece(NamedTuple):
    """A member and how its bytes are had."""

    member: Member
    chunks: Callable[[], Iterable[bytes | memoryview]]


def export_topic(
    source: Store | Paths,
    topic: str,
    file: OutFile,
    *,
    register: bool = True,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
) -> ExportReport:
    """Write a topic, up to the high watermark of each partition, to a file or to anything with ``write``.

    ``register`` writes the copy down in the source, for `erase` to name it; not in a read-only store.
    """
    with open_source(source, config, fs=fs, clock=clock) as origin:
        parts = origin.partitions([topic])
        named = isinstance(file, str | os.PathLike)
        where = "(stream)"
        if isinstance(file, str | os.PathLike):
            where = file = path_of(origin.context.fs, file, "file to export to")
        entry = CopyEntry(
            id_to_text(new_id()),
            "export",
            where,
            origin.context.clock.now_ms(),
            (topic,),
        )
        if register and not (isinstance(source, Store) and source.read_only):
            remember(origin.context.fs, origin.paths, entry)
        for attempt in range(EXPORT_TRIES if named else 1):
            try:
                if attempt:
                    for part in parts:
                        part.look()
                return _export(origin, parts, file, where, entry.made_ms, progress)
            except (FileNotFoundError, UnsettledError):
                continue
        raise StorageError(
            f"{topic}: its segments were replaced or removed while they were exported; try again when no"
            " cleanup is running"
        )


def _export(
    origin: Source,
    parts: list[SourcePartition],
    file: OutFile,
    where: str,
    made_ms: int,
    progress: Progress | None,
) -> ExportReport:
    entry = parts[0].entry
    pieces: list[_Piece] = []
    rows = [_describe(part, pieces) for part in parts]
    settings = {
        each.name: each.value
        for each in describe(origin.config, entry.effective_overrides())
        if each.source != "default"
    }
    manifest = Manifest(
        entry.name,
        id_to_text(entry.id) if entry.id is not None else id_to_text(new_id()),
        settings,
        tuple(rows),
        tuple(piece.member for piece in pieces),
        made_ms,
    )
    meter = Meter(progress, manifest.total_bytes)
    with _writing(origin.context.fs, file) as write:
        data = container.pack_manifest(manifest)
        size = write(container.tar_header(container.MANIFEST, len(data), made_ms // 1000))
        size += write(data) + write(container.padding(len(data)))
        for piece in pieces:
            size += _write_member(write, piece, meter)
        size += write(container.END)
    copies = tuple(
        PartitionCopy(
            entry.name,
            row.partition,
            row.log_start_offset,
            row.end_offset,
            row.end_offset,
            segments=len(row.segments),
            copied_bytes=sum(
                each.size for each in manifest.members if each.name.startswith(f"{row.partition}/")
            ),
        )
        for row in rows
    )
    return ExportReport(
        where, entry.name, manifest.topic_id, copies, settings, size, len(pieces), crc32c(data), size
    )


def _describe(part: SourcePartition, pieces: list[_Piece]) -> PartitionEntry:
    """What the manifest says of a partition; its members go to ``pieces``."""
    start, end = part.log_start_offset, part.end_offset
    rows: list[SegmentEntry] = []
    segments = part.segments
    check_part(part, start, end)
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else None
        if segment.base_offset >= end:
            break
        if following is not None and following <= start:
            continue
        stop = end if following is None else min(following, end)
        piece = _log_piece(part, segment, stop, whole=stop == following)
        if not piece.member.size:
            continue
        seal = None if segment.is_active else segment.seal
        rows.append(SegmentEntry(segment.base_offset, stop, seal.cleaned if seal is not None else None))
        pieces.append(piece)
        aborted = part.view.aborted(segment.base_offset, stop) if segment.is_active else segment.aborted()
        data = txn_index.pack([txn for txn in aborted if segment.base_offset <= txn.last_offset < stop])
        if data:
            pieces.append(_small_piece(part, segment.base_offset, "txnindex", data))
        if segment.base_offset in part.snapshots:
            path = f"{part.directory}/{file_name(segment.base_offset, 'snapshot')}"
            data = part.context.fs.read_file(path)
            pieces.append(_small_piece(part, segment.base_offset, "snapshot", data))
    return PartitionEntry(part.partition, start, end, tuple(part.leader_epochs()), tuple(rows))


def _log_piece(part: SourcePartition, segment: Segment, stop: int, *, whole: bool) -> _Piece:
    """A log. A sealed one's CRC is known from its seal; any other is read once to find it out."""
    name = container.member_name(part.partition, segment.base_offset, "log")
    seal = None if segment.is_active else segment.seal
    if whole and seal is not None:
        size, crc = seal.size_bytes, seal.crc
        chunks = partial(_raw, segment, size)
    else:
        size = crc = 0
        for data in _checked(segment, stop):
            crc = crc32c(data, crc)
            size += len(data)
        chunks = partial(_checked, segment, stop)
    written = written_ms(segment)
    return _Piece(Member(name, size, crc, -1 if written is None else written), chunks)


def _small_piece(part: SourcePartition, base_offset: int, kind: Kind, data: bytes) -> _Piece:
    name = container.member_name(part.partition, base_offset, kind)
    return _Piece(Member(name, len(data), crc32c(data)), partial(iter, [data]))


def _checked(segment: Segment, stop: int) -> Iterator[memoryview]:
    for data, _ in pieces_before(segment, stop):
        yield data


def _raw(segment: Segment, size: int) -> Iterator[memoryview]:
    with segment.open_log() as file:
        at = 0
        while at < size:
            data = file.pread(min(COPY_BYTES, size - at), at)
            if not data:
                return
            yield memoryview(data)
            at += len(data)


def _write_member(write: Callable[[bytes | memoryview], int], piece: _Piece, meter: Meter) -> int:
    member = piece.member
    size = write(container.tar_header(member.name, member.size, max(member.mtime_ms, 0) // 1000))
    done = crc = 0
    for data in piece.chunks():
        done += write(data)
        crc = crc32c(data, crc)
        meter.done(len(data))
    if (done, crc) != (member.size, member.crc):
        raise CorruptionError(
            "its bytes are not those its seal speaks of; `stratalog verify` says more, and `stratalog repair`"
            " can give up what is damaged",
            path=member.name,
            position=0,
        )
    return size + done + write(container.padding(member.size))


@contextmanager
def _writing(fs: FileSystem, file: OutFile) -> Iterator[Callable[[bytes | memoryview], int]]:
    """Write front to back; a named file is synced and gets its name at the end."""
    if not isinstance(file, str | os.PathLike):
        stream = file

        def to_stream(data: bytes | memoryview) -> int:
            stream.write(bytes(data))
            return len(data)

        yield to_stream
        return
    path = os.fspath(file)
    building, at = path + BUILDING, 0
    fs.make_dir(os.path.dirname(path) or ".")
    with fs.open(building, "a") as out:
        out.truncate(0)

        def to_file(data: bytes | memoryview) -> int:
            nonlocal at
            out.pwrite(data, at)
            at += len(data)
            return len(data)

        try:
            yield to_file
            out.sync()
            fs.rename(building, path)
            fs.sync_dir(os.path.dirname(path) or ".")
        except BaseException:
            with suppress(FileNotFoundError, StorageError):
                fs.remove(building)
            raise
