"""A topic as one file: `export_topic` writes it, `check_export` checks it, `import_topic` brings it in.

The file is a plain tar archive, its manifest first:

    stratalog-topic.json                    the contents, with the CRC-32C of every other member
    0/00000000000000000000.log              partition 0, its segments in order, each followed by its
    0/00000000000000000000.txnindex           index of aborted transactions if it has one
    0/00000000000000000000.snapshot         the producers' state at the start of a segment
    0/00000000000000004711.log
    1/00000000000000000000.log
    …                                       and two blocks of zeros, as every tar ends

The manifest is JSON with one line behind it, `crc32c: 7bff9b32`, over every byte before that line; it names
every member with size and CRC-32C, in the order in which they follow. So the file can be written to a pipe
and read from one, every byte is checked by one that was checked before it, and the manifest alone tells where
each member begins: an interrupted check continues there. Everything else of a partition (indexes, seals,
keys) is derived from the logs again.

An export reads what readers may see, beside a program that holds the store. A named file appears whole or not
at all. If a segment is damaged, by its seal or its batches, nothing is exported. An import checks every byte
and every batch before the topic appears (see `topic_import`); offsets, settings, timestamps and producers are
kept. A crash leaves no topic. A file cut short is a CorruptionError that names the position.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from stratalog.config import describe, topic_config
from stratalog.errors import (
    CorruptionError,
    InvalidArgumentError,
    StorageError,
    UnsupportedFormat,
)
from stratalog.format import checked_json, txn_index
from stratalog.format.metadata import id_to_text, new_id
from stratalog.fs import File, FileSystem, RealFileSystem
from stratalog.kernel import crc32c
from stratalog.log.context import Clock, PartitionLocation
from stratalog.log.names import MAX_OFFSET, MAX_TOPIC_LENGTH, Kind, file_name
from stratalog.log.segment.segment import Segment
from stratalog.store.copies.building import (
    COPY_BYTES,
    Meter,
    PartitionBuilder,
    PartitionCopy,
    Progress,
    Report,
)
from stratalog.store.copies.clones import BUILDING, kept_if_made, remember
from stratalog.store.copies.cutting import pieces_before, written_ms
from stratalog.store.copies.source import Part, Source, open_source, retry_when_changed
from stratalog.store.paths import Paths, path_of
from stratalog.store.store import Store
from stratalog.store.topic_import import ImportInto, ImportTarget, open_target

EXPORT_TRIES = 10
MANIFEST = "stratalog-topic.json"
FORMAT = "stratalog-topic"
VERSION = 1
BLOCK = 512
MAX_MANIFEST_BYTES = 256 << 20
MEMBER_KINDS: tuple[Kind, ...] = ("log", "txnindex", "snapshot")

_MAX_MEMBER = 8**11 - 1
_MAX_NUMBER = 2**31 - 1

Read = Callable[[int], bytes]
"""Read a number of bytes of a stream; fewer only at its end."""


class Member(NamedTuple):
    """One file of a partition. ``mtime_ms`` is when a log was last written, -1 if unknown."""

    name: str
    size: int
    crc: int
    mtime_ms: int = -1

    @property
    def blocks(self) -> int:
        """Its bytes in the file, header included."""
        return BLOCK + -(-self.size // BLOCK) * BLOCK


class SegmentRow(NamedTuple):
    """One segment. ``cleaned`` comes from its seal; None without one."""

    base_offset: int
    next_offset: int
    cleaned: bool | None


class PartitionRow(NamedTuple):
    partition: int
    log_start_offset: int
    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    segments: tuple[SegmentRow, ...]


@dataclass(frozen=True, slots=True)
class TopicFileManifest:
    """What the file holds."""

    topic: str
    topic_id: str
    settings: dict[str, str]
    partitions: tuple[PartitionRow, ...]
    members: tuple[Member, ...]
    made_ms: int = 0
    crc: int = field(default=0, compare=False)

    @property
    def total_bytes(self) -> int:
        return sum(member.size for member in self.members)


@dataclass(frozen=True, slots=True)
class ExportReport(Report):
    """What `export_topic` wrote, or `check_export` read."""

    file: str
    topic: str
    topic_id: str
    partitions: tuple[PartitionCopy, ...]
    settings: dict[str, str]
    size_bytes: int
    members: int
    manifest_crc: int
    checked_bytes: int = 0
    """`check_export`: up to this byte the file is right; a check can continue from there."""


@dataclass(frozen=True, slots=True)
class ImportReport(Report):
    """A topic that `import_topic` or `adopt` brought in."""

    topic: str
    topic_id: str
    settings: dict[str, str]
    partitions: tuple[PartitionCopy, ...]
    notes: tuple[str, ...] = ()
    dry_run: bool = False


def member_name(partition: int, base_offset: int, kind: Kind) -> str:
    return f"{partition}/{file_name(base_offset, kind)}"


# -- the manifest


def pack_manifest(manifest: TopicFileManifest) -> bytes:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "topic": manifest.topic,
        "topic_id": manifest.topic_id,
        "made_ms": manifest.made_ms,
        "settings": manifest.settings,
        "partitions": [each._asdict() for each in manifest.partitions],
        "members": [[m.name, m.size, f"{m.crc:08x}", m.mtime_ms] for m in manifest.members],
    }
    return checked_json.pack(content, indent=1)


def parse_manifest(data: bytes) -> TopicFileManifest:
    """Parse a manifest and check every name and number in it."""
    try:
        fields = checked_json.Fields(checked_json.parse(data, "the manifest"), "the manifest")
        if fields.take("format", None) != FORMAT:
            raise CorruptionError("not an exported topic")
        version = fields.take("version", None)
        if version != VERSION:
            raise UnsupportedFormat(f"an exported topic of version {version!r}")
        manifest = TopicFileManifest(
            fields.text("topic", MAX_TOPIC_LENGTH),
            fields.text("topic_id", 22),
            fields.strings("settings"),
            tuple(_partition(each) for each in fields.items("partitions")),
            tuple(_member(fields, row) for row in fields.rows("members", 4)),
            fields.count("made_ms"),
            crc32c(data),
        )
        _check(manifest, fields)
    except CorruptionError as error:
        raise error.at("", BLOCK) from None
    return manifest


def _partition(value: object) -> PartitionRow:
    fields = checked_json.Fields(value, "a partition of the manifest")
    return PartitionRow(
        fields.count("partition", _MAX_NUMBER),
        fields.count("log_start_offset", MAX_OFFSET),
        fields.count("end_offset", MAX_OFFSET),
        tuple(
            (fields.as_count(epoch, "an epoch", _MAX_NUMBER), fields.as_count(start, "an epoch's start"))
            for epoch, start in fields.rows("leader_epochs", 2)
        ),
        tuple(
            SegmentRow(
                fields.as_count(base, "a base offset"),
                fields.as_count(end, "a next offset", MAX_OFFSET),
                fields.as_flag(cleaned, "the mark of a cleaned segment"),
            )
            for base, end, cleaned in fields.rows("segments", 3)
        ),
    )


def _member(fields: checked_json.Fields, row: list[object]) -> Member:
    name, size, crc, mtime_ms = row
    return Member(
        fields.as_text(name, "a member", 100),
        fields.as_count(size, "a member's size", _MAX_MEMBER),
        fields.as_crc(crc),
        -1 if mtime_ms == -1 else fields.as_count(mtime_ms, "a member's time"),
    )


def _check(manifest: TopicFileManifest, fields: checked_json.Fields) -> None:
    """Raise CorruptionError unless segments rise and the members are theirs, the logs in order."""
    if [each.partition for each in manifest.partitions] != [*range(len(manifest.partitions) or 1)]:
        fields.fail("its partitions are not numbered from 0")
    logs, known = [], set()
    for part in manifest.partitions:
        at = -1
        for segment in part.segments:
            if not at <= segment.base_offset < segment.next_offset <= part.end_offset:
                fields.fail(f"segment {segment.base_offset} of partition {part.partition} does not follow")
            at = segment.next_offset
            names = [member_name(part.partition, segment.base_offset, kind) for kind in MEMBER_KINDS]
            logs.append(names[0])
            known.update(names)
        if part.log_start_offset > part.end_offset:
            fields.fail("a log start offset after the end")
    given = [member.name for member in manifest.members]
    if not known.issuperset(given) or len(set(given)) != len(given):
        fields.fail("a member is not a file of a segment, or occurs twice")
    if [name for name in given if name.endswith(".log")] != logs:
        fields.fail("the logs are not those of the segments, in order")


# -- tar


def tar_header(name: str, size: int, mtime_s: int = 0) -> bytes:
    """Return the block before a member, in POSIX format (ustar)."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, mtime_s
    return info.tobuf(tarfile.USTAR_FORMAT)


def parse_header(block: bytes, position: int) -> tuple[str, int]:
    """Return name and size of the member that follows; CorruptionError at ``position`` if it is no header."""
    if len(block) < BLOCK:
        raise CorruptionError(
            f"the file ends here; {BLOCK - len(block)} bytes are missing", position=position
        )
    try:
        stated = int(block[148:156].rstrip(b"\0 ") or b"0", 8)
        actual = sum(block) - sum(block[148:156]) + 8 * 32
        if stated != actual or block[257:262] != b"ustar":
            raise ValueError("checksum")
        return block[:100].rstrip(b"\0").decode(), int(block[124:136].rstrip(b"\0 "), 8)
    except ValueError:
        raise CorruptionError("not the header of a member", position=position) from None


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def read_manifest(read: Read, path: str = "the stream") -> tuple[TopicFileManifest, int]:
    """Read the manifest at the beginning of a stream; return it and where the first member begins."""
    block = read(BLOCK)
    ours = MANIFEST.encode()
    if block[:100].rstrip(b"\0") not in (ours, ours[: len(block)]) and block[257:262] != b"ustar":
        raise InvalidArgumentError(f"{path} is not an exported topic, as `stratalog export` makes them")
    name, size = parse_header(block, 0)
    if name != MANIFEST or size > MAX_MANIFEST_BYTES:
        raise CorruptionError("not an exported topic: it does not begin with its manifest", position=0)
    data = read(size)
    if len(data) < size:
        raise CorruptionError("the file ends inside its manifest", position=BLOCK + len(data))
    read(len(padding(size)))
    return parse_manifest(data), BLOCK + size + len(padding(size))


def read_member(read: Read, member: Member, position: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the bytes of the next member of a stream; check their CRC at the end."""
    name, size = parse_header(read(BLOCK), position)
    if (name, size) != (member.name, member.size):
        raise CorruptionError(
            f"{name} of {size} bytes where the manifest has {member.name} of {member.size}", position=position
        )
    crc, left = 0, size
    while left:
        data = read(min(chunk_bytes, left))
        if not data:
            raise CorruptionError(
                f"the file ends inside {name}, {left} bytes before its end",
                position=position + BLOCK + size - left,
            )
        crc = crc32c(data, crc)
        left -= len(data)
        yield data
    if crc != member.crc:
        raise CorruptionError(
            f"{name}: CRC {crc:08x} of its bytes is not the manifest's {member.crc:08x}", position=position
        )
    read(len(padding(size)))


def positions(members: Iterable[Member], first: int) -> Iterator[tuple[Member, int]]:
    """Yield each member and where its header begins."""
    at = first
    for member in members:
        yield member, at
        at += member.blocks


# -- exporting


class _Writable(Protocol):
    def write(self, data: bytes, /) -> object: ...


OutFile: TypeAlias = str | os.PathLike[str] | _Writable
_Write: TypeAlias = Callable[[bytes | memoryview], int]


class _Piece(NamedTuple):
    """A member and how to read its bytes."""

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
        parts = origin.parts(topic)
        named = isinstance(file, str | os.PathLike)
        where = "(stream)"
        if isinstance(file, str | os.PathLike):
            where = file = path_of(origin.context.fs, file, "file to export to")
        made_ms = origin.context.clock.now_ms()
        recorded: AbstractContextManager[None] = nullcontext()
        if register and not (isinstance(source, Store) and source.read_only):
            fs = origin.context.fs
            entry, _ = remember(fs, origin.paths, "export", where, [topic], made_ms)
            if named:  # what went into a stream may be anywhere
                recorded = kept_if_made(fs, origin.paths, entry)

        def export(again: bool) -> ExportReport:
            for part in parts if again else ():
                part.look()
            return _export(origin, parts, file, where, made_ms, progress)

        with recorded:
            return retry_when_changed(topic, EXPORT_TRIES if named else 1, export)


def _export(
    origin: Source, parts: list[Part], file: OutFile, where: str, made_ms: int, progress: Progress | None
) -> ExportReport:
    entry = parts[0].entry
    pieces: list[_Piece] = []
    rows = [_describe(part, pieces) for part in parts]
    settings = {
        each.name: each.value
        for each in describe(origin.config, entry.effective_overrides())
        if each.source != "default"
    }
    members = tuple(piece.member for piece in pieces)
    topic_id = id_to_text(entry.id or new_id())
    manifest = TopicFileManifest(entry.name, topic_id, settings, tuple(rows), members, made_ms)
    meter = Meter(progress, manifest.total_bytes)
    data = pack_manifest(manifest)
    with _writing(origin.context.fs, file) as write:
        size = write(tar_header(MANIFEST, len(data), made_ms // 1000))
        size += write(data) + write(padding(len(data)))
        for piece in pieces:
            size += _write_member(write, piece, meter)
        size += write(END)
    copied = {
        row.partition: sum(each.size for each in members if each.name.startswith(f"{row.partition}/"))
        for row in rows
    }
    return _report(manifest, crc32c(data), where, size, copied)


def _report(
    manifest: TopicFileManifest, crc: int, where: str, size_bytes: int, copied: Mapping[int, int]
) -> ExportReport:
    copies = tuple(
        PartitionCopy(
            manifest.topic,
            row.partition,
            row.log_start_offset,
            row.end_offset,
            row.end_offset,
            segments=len(row.segments),
            copied_bytes=copied.get(row.partition, 0),
        )
        for row in manifest.partitions
    )
    return ExportReport(
        where,
        manifest.topic,
        manifest.topic_id,
        copies,
        dict(manifest.settings),
        size_bytes,
        len(manifest.members),
        crc,
        size_bytes,
    )


def _describe(part: Part, pieces: list[_Piece]) -> PartitionRow:
    """Return the row of a partition; its members are added to ``pieces``."""
    start, end = part.log_start_offset, part.end_offset
    rows: list[SegmentRow] = []
    for segment, stop, whole in part.segments_below(end):
        base, seal = segment.base_offset, None if segment.is_active else segment.seal
        piece = _log_piece(part, segment, stop, whole=whole)
        if not piece.member.size:
            continue
        rows.append(SegmentRow(base, stop, seal.cleaned if seal is not None else None))
        pieces.append(piece)
        aborted = part.view.aborted(base, stop) if segment.is_active else segment.aborted()
        data = txn_index.pack([txn for txn in aborted if base <= txn.last_offset < stop])
        if data:
            pieces.append(_small_piece(part, base, "txnindex", data))
        if base in part.snapshots:
            data = part.context.fs.read_file(f"{part.directory}/{file_name(base, 'snapshot')}")
            pieces.append(_small_piece(part, base, "snapshot", data))
    return PartitionRow(part.partition, start, end, tuple(part.leader_epochs()), tuple(rows))


def _log_piece(part: Part, segment: Segment, stop: int, *, whole: bool) -> _Piece:
    """Return a log as a member. The CRC of a sealed one is in its seal; any other is read to compute it."""
    seal = None if segment.is_active else segment.seal
    chunks: Callable[[], Iterable[memoryview]]
    if whole and seal is not None:
        size, crc = seal.size_bytes, seal.crc
        chunks = partial(_raw, segment, size)
    else:
        size = crc = 0
        chunks = partial(_checked, segment, stop)
        for data in chunks():
            crc = crc32c(data, crc)
            size += len(data)
    written = written_ms(segment)
    name = member_name(part.partition, segment.base_offset, "log")
    return _Piece(Member(name, size, crc, -1 if written is None else written), chunks)


def _small_piece(part: Part, base_offset: int, kind: Kind, data: bytes) -> _Piece:
    name = member_name(part.partition, base_offset, kind)
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


def _write_member(write: _Write, piece: _Piece, meter: Meter) -> int:
    member = piece.member
    size = write(tar_header(member.name, member.size, max(member.mtime_ms, 0) // 1000))
    done = crc = 0
    for data in piece.chunks():
        done += write(data)
        crc = crc32c(data, crc)
        meter.done(len(data))
    if (done, crc) != (member.size, member.crc):
        raise CorruptionError(
            "its bytes do not match its seal; `stratalog verify` shows what is damaged, and `stratalog"
            " repair` can drop it",
            path=member.name,
            position=0,
        )
    return size + done + write(padding(member.size))


@contextmanager
def _writing(fs: FileSystem, file: OutFile) -> Iterator[_Write]:
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


# -- importing


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
    if not isinstance(file, str | os.PathLike):
        yield _Stream(None, file, "(stream)")
        return
    path = path_of(fs, file, "exported file")
    with fs.open(path) as opened:
        try:
            yield _Stream(opened, None, path)
        except CorruptionError as error:
            raise (error.at(path) if not error.path else error) from error


def check_export(
    file: InFile,
    *,
    start_at: int = 0,
    progress: Progress | None = None,
    fs: FileSystem | None = None,
) -> ExportReport:
    """Check an exported file to its last byte; CorruptionError tells where it is wrong or ends.

    ``start_at`` continues a check that was interrupted: members that end at or before this byte (the
    ``checked_bytes`` of a report, the ``position`` of an error) are not read again.
    """
    with _reading(fs or RealFileSystem(), file) as stream:
        manifest, first = read_manifest(stream.read, stream.path)
        meter = Meter(progress, manifest.total_bytes)
        end = first
        for member, at in positions(manifest.members, first):
            end = at + member.blocks
            if end <= start_at:
                stream.skip_to(end)
                meter.done(member.size)
                continue
            for data in read_member(stream.read, member, at, COPY_BYTES):
                meter.done(len(data))
        if stream.read(len(END)) != END:
            raise CorruptionError("the file does not end with two blocks of zeros", position=end)
        return _report(manifest, manifest.crc, stream.path, stream.position, {})


def import_topic(
    target: ImportInto,
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
    with open_target(target, fs) as into, _reading(into.context.fs, file) as stream:
        manifest, first = read_manifest(stream.read, stream.path)
        name, topic_id = name or manifest.topic, new_id()
        overrides, notes = into.settings(manifest.settings, settings)
        config = topic_config(into.broker, overrides)
        meter = Meter(progress, manifest.total_bytes)
        with into.staging(name, len(manifest.partitions)) as staged:
            builders = [
                PartitionBuilder(
                    PartitionLocation(into.context, directory, name, number), config, meter, topic_id
                )
                for number, directory in enumerate(staged)
            ]
            for member, at in positions(manifest.members, first):
                _stage_member(into, builders, stream, member, at)
            copies = [
                _finish_partition(builder, row)
                for row, builder in zip(manifest.partitions, builders, strict=True)
            ]
            now_ms = into.context.clock.now_ms()
            if not keep_retention and any(copy.would_expire(config, now_ms) for copy in copies):
                notes.append(
                    f"retention.ms is -1 instead of {config.retention_ms}, which would have deleted records"
                    " at once; set it again when they may go"
                )
                overrides["retention.ms"] = "-1"
            into.take_in(name, topic_id, overrides, copies, builders)
    return ImportReport(name, id_to_text(topic_id), overrides, tuple(copies), tuple(notes))


def _stage_member(
    into: ImportTarget, builders: list[PartitionBuilder], stream: _Stream, member: Member, at: int
) -> None:
    number, _, file = member.name.partition("/")
    builder, fs = builders[int(number)], into.context.fs
    base, kind = int(file[:20]), file[21:]
    chunks = read_member(stream.read, member, at, COPY_BYTES)
    if kind == "snapshot":
        builder.add_snapshot(base, b"".join(chunks))
        return
    path, position = f"{builder.directory}/{file}", 0
    with fs.open(path, "x") as out:
        for data in chunks:
            out.pwrite(data, position)
            position += len(data)
            builder.meter.done(len(data))
        out.sync()
    if member.mtime_ms >= 0:
        fs.set_mtime_ns(path, member.mtime_ms * 1_000_000)


def _finish_partition(builder: PartitionBuilder, row: PartitionRow) -> PartitionCopy:
    for each in row.segments:
        whole = each is not row.segments[-1]
        builder.take_written(each.base_offset, each.next_offset, cleaned=each.cleaned, whole=whole)
    return builder.finish(
        end=row.end_offset, log_start_offset=row.log_start_offset, leader_epochs=row.leader_epochs
    )
