"""`import_topic`: an exported topic (see `container`) comes into a store; `check_export` only looks at it.

Every byte and every batch is checked before the topic appears (see `stratalog.store.arriving`): offsets,
settings, timestamps and producers are kept, whatever is derived is made again. Goes through the holder of
the store when there is one. A crash leaves no topic.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from stratalog.config import topic_config
from stratalog.errors import CorruptionError
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import File, FileSystem, RealFileSystem
from stratalog.store.copies import container
from stratalog.store.copies.building import COPY_BYTES, PartitionBuilder, would_expire
from stratalog.store.copies.container import Manifest, Member, PartitionEntry
from stratalog.store.copies.landing import Landing, Target, landing
from stratalog.store.copies.reports import ExportReport, ImportReport, Meter, PartitionCopy, Progress
from stratalog.store.paths import path_of


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


InFile: TypeAlias = str | os.PathLike[str] | _Readable


class _Stream:
    """Bytes of a file or a stream, front to back."""

    def __init__(self, file: File | None, stream: _Readable | None, path: str) -> None:
        self._file = file
        self._stream = stream
        self.path = path
        self.position = 0

    def read(self, size: int) -> bytes:
        if self._file is not None:
            data = self._file.pread(size, self.position)
        else:
            assert self._stream is not None
            data = b""
            while len(data) < size and (more := self._stream.read(size - len(data))):
                data += more
        self.position += len(data)
        return data

    def skip_to(self, position: int) -> None:
        if self._file is not None:
            self.position = position
        while self.position < position and self.read(min(COPY_BYTES, position - self.position)):
            continue


@contextmanager
def _reading(fs: FileSystem, file: InFile) -> Iterator[_Stream]:
    if isinstance(file, str | os.PathLike):
        path = path_of(fs, file, "exported file")
        with fs.open(path) as opened:
            try:
                yield _Stream(opened, None, path)
            except CorruptionError as error:
                raise (error.at(path) if not error.path else error) from error
    else:
        yield _Stream(None, file, "(stream)")


def check_export(
    file: InFile,
    *,
    start_at: int = 0,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> ExportReport:
    """Check an exported file to its last byte; CorruptionError says where it is wrong or ends.

    ``start_at`` goes on with a check that was interrupted: members that end at or before this byte (the
    ``checked_bytes`` of a report, the ``position`` of an error) are not read again.
    """
    with _reading(fs or RealFileSystem(), file) as stream:
        manifest, first = container.read_manifest(stream.read)
        meter = Meter(progress, manifest.total_bytes)
        end = first
        for member, at in container.positions(manifest.members, first):
            end = at + member.blocks
            if end <= start_at:
                stream.skip_to(end)
                meter.done(member.size)
                continue
            for data in container.read_member(stream.read, member, at, COPY_BYTES):
                meter.done(len(data))
        tail = stream.read(len(container.END))
        if tail != container.END:
            raise CorruptionError("the file does not end as it should", position=end)
        return ExportReport(
            stream.path,
            manifest.topic,
            manifest.topic_id,
            _copies(manifest),
            dict(manifest.settings),
            stream.position,
            len(manifest.members),
            manifest.crc,
            stream.position,
        )


def _copies(manifest: Manifest) -> tuple[PartitionCopy, ...]:
    return tuple(
        PartitionCopy(
            manifest.topic,
            row.partition,
            row.log_start_offset,
            row.end_offset,
            row.end_offset,
            segments=len(row.segments),
        )
        for row in manifest.partitions
    )


def import_topic(
    target: Target,
    file: InFile,
    *,
    name: str | None = None,
    settings: Mapping[str, object] | None = None,
    keep_retention: bool = False,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> ImportReport:
    """Bring an exported topic into a store: an open `Store`, an `AdminClient`, or the paths of one.

    ``settings`` go over those it was exported with. When its ``retention.ms`` would delete records at once,
    the topic gets -1 instead and the report says so, unless ``keep_retention``.
    """
    with landing(target, fs) as land, _reading(land.read_fs, file) as stream:
        manifest, first = container.read_manifest(stream.read)
        return _import(
            land, stream, manifest, first, name or manifest.topic, settings, keep_retention, progress
        )


def _import(
    land: Landing,
    stream: _Stream,
    manifest: Manifest,
    first: int,
    name: str,
    settings: Mapping[str, object] | None,
    keep_retention: bool,
    progress: Progress | None,
) -> ImportReport:
    overrides, notes = land.settings(manifest.settings, settings)
    config = topic_config(land.broker, overrides)
    meter = Meter(progress, manifest.total_bytes)
    topic_id = new_id()
    with land.staging(name, len(manifest.partitions)) as staged:
        builders = [
            PartitionBuilder(land.context, directory, name, number, config, meter, topic_id=topic_id)
            for number, directory in enumerate(staged)
        ]
        for member, at in container.positions(manifest.members, first):
            _stage_member(land, builders, stream, member, at, meter)
        copies = []
        for row, builder in zip(manifest.partitions, builders, strict=True):
            copies.append(_finish_partition(builder, row))
        if not keep_retention and any(would_expire(config, copy, land.now_ms()) for copy in copies):
            notes.append(
                f"retention.ms is -1 instead of {config.retention_ms}, which would have deleted records at"
                " once; set it again when they may go"
            )
            overrides["retention.ms"] = "-1"
        land.take_in(name, topic_id, overrides, copies, builders)
    return ImportReport(name, id_to_text(topic_id), overrides, tuple(copies), tuple(notes))


def _stage_member(
    land: Landing, builders: list[PartitionBuilder], stream: _Stream, member: Member, at: int, meter: Meter
) -> None:
    number, _, file = member.name.partition("/")
    builder = builders[int(number)]
    base, kind = int(file[:20]), file[21:]
    chunks = container.read_member(stream.read, member, at, COPY_BYTES)
    if kind == "snapshot":
        builder.add_snapshot(base, b"".join(chunks))
        return
    path, position = f"{builder.directory}/{file}", 0
    with land.context.fs.open(path, "x") as out:
        for data in chunks:
            out.pwrite(data, position)
            position += len(data)
            meter.done(len(data))
        out.sync()
    if member.mtime_ms >= 0:
        land.context.fs.set_mtime_ns(path, member.mtime_ms * 1_000_000)


def _finish_partition(builder: PartitionBuilder, row: PartitionEntry) -> PartitionCopy:
    for at, segment in enumerate(row.segments):
        last = at == len(row.segments) - 1
        builder.take_written(
            segment.base_offset, segment.next_offset, cleaned=segment.cleaned, whole=not last
        )
    return builder.finish(
        end=row.end_offset,
        log_start_offset=row.log_start_offset,
        leader_epochs=row.leader_epochs,
    )
