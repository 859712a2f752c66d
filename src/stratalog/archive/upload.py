"""Putting one segment into the archive: every object, then every object read back and compared.

A log goes up in parts of 16 MiB, one put each: memory stays bounded, a part is there wholly or not at all,
nothing is left that a listing would not show, and an upload that was cut short goes on where it stopped.
Nothing here touches the manifest: until that names the objects, they may be swept.

The local log must be what its seal says before it may be archived: rot must not be copied over the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from stratalog.archive.manifest import KINDS, StoredObject
from stratalog.archive.objects import Objects
from stratalog.errors import ArchiveError, CorruptionError, FormatError
from stratalog.format.seal import Seal
from stratalog.format.seal import parse as parse_seal
from stratalog.fs import FileSystem
from stratalog.kernel import crc32c, crc32c_combine

PART_BYTES = 16 << 20

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) now and then."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SegmentUpload:
    """The files of a sealed segment on disk."""

    base_offset: int
    next_offset: int
    files: Mapping[str, str]
    """Path by kind (see `manifest.KINDS`); at least the log."""
    size_bytes: int
    seal: Seal | None
    modified_ms: int | None = None

    @classmethod
    def collect(
        cls, fs: FileSystem, directory: str, base_offset: int, next_offset: int, suffix: str = ""
    ) -> SegmentUpload:
        """Find the files of a segment in a directory; FileNotFoundError when it has no log."""
        files: dict[str, str] = {}
        stat = None
        for kind in KINDS:
            offset = next_offset if kind == "snapshot" else base_offset
            path = f"{directory}/{offset:020d}.{kind}{'' if kind == 'snapshot' else suffix}"
            if kind == "log":
                stat = fs.stat(path)
            elif not fs.exists(path):
                continue
            files[kind] = path
        assert stat is not None
        seal = _read_seal(fs, files.get("seal"), stat.size)
        return cls(base_offset, next_offset, files, stat.size, seal, stat.mtime_ns // 1_000_000)


def _read_seal(fs: FileSystem, path: str | None, size: int) -> Seal | None:
    if path is None:
        return None
    try:
        seal = parse_seal(fs.read_file(path))
    except FormatError:
        return None
    return seal if seal.size_bytes == size else None


class Uploaded(NamedTuple):
    """The archived objects, and the CRC of the log that was read."""

    objects: tuple[StoredObject, ...]
    log_crc: int


class _Piece(NamedTuple):
    name: str
    path: str
    start: int
    size: int


def upload(
    objects: Objects,
    fs: FileSystem,
    prefix: str,
    segment: SegmentUpload,
    pool: ThreadPoolExecutor,
    *,
    present: Mapping[str, int],
    part_bytes: int = PART_BYTES,
    progress: Progress | None = None,
) -> Uploaded:
    """Put every object below ``prefix`` and read all of them back. CorruptionError when the log is damaged.

    ``present``: objects of an earlier try, with their sizes; those of the right size are only read back, and
    put again when they differ.
    """
    pieces = _pieces(fs, segment, part_bytes)
    total, done = 2 * sum(piece.size for piece in pieces), 0

    def put(piece: _Piece) -> StoredObject:
        data = _read(fs, piece)
        if present.get(piece.name) != piece.size:
            objects.put(f"{prefix}/{piece.name}", data)
        return StoredObject(piece.name, piece.size, crc32c(data))

    def check(pair: tuple[_Piece, StoredObject]) -> None:
        piece, stored = pair
        try:
            read_back(objects, prefix, stored)
        except (ArchiveError, FileNotFoundError, CorruptionError):
            if piece.name not in present:
                raise
            objects.put(f"{prefix}/{piece.name}", _read(fs, piece))
            read_back(objects, prefix, stored)

    stored: list[StoredObject] = []
    for each in _in_parallel(pool, put, pieces):
        stored.append(each)
        done += each.size
        if progress is not None:
            progress(done, total)
    log_crc = whole_crc(each for each in stored if each.kind == "log")
    seal = segment.seal
    if seal is not None and (seal.size_bytes, seal.crc) != (segment.size_bytes, log_crc):
        raise CorruptionError(
            f"its CRC is {log_crc:08x}, its seal says {seal.crc:08x}; a damaged segment is not archived",
            path=segment.files["log"],
            position=0,
        )
    for piece, _ in zip(
        pieces, _in_parallel(pool, check, list(zip(pieces, stored, strict=True))), strict=True
    ):
        done += piece.size
        if progress is not None:
            progress(done, total)
    return Uploaded(tuple(stored), log_crc)


def read_back(objects: Objects, prefix: str, stored: StoredObject) -> bytes:
    """Return the object as the archive has it; CorruptionError when its size or CRC is another."""
    key = f"{prefix}/{stored.name}"
    data = objects.get(key).data
    if len(data) != stored.size or crc32c(data) != stored.crc:
        raise CorruptionError(
            f"{len(data)} bytes with CRC {crc32c(data):08x} were read back, {stored.size} with"
            f" {stored.crc:08x} were put",
            path=objects.url_of(key),
        )
    return data


def whole_crc(parts: Iterable[StoredObject]) -> int:
    """Combine the CRCs of a log's parts."""
    crc = 0
    for part in parts:
        crc = crc32c_combine(crc, part.crc, part.size)
    return crc


def _pieces(fs: FileSystem, segment: SegmentUpload, part_bytes: int) -> list[_Piece]:
    pieces = []
    log = segment.files["log"]
    for number, start in enumerate(range(0, segment.size_bytes, part_bytes)):
        size = min(part_bytes, segment.size_bytes - start)
        pieces.append(_Piece(f"log.{number:05d}", log, start, size))
    for kind in KINDS[1:]:
        path = segment.files.get(kind)
        if path is not None:
            pieces.append(_Piece(kind, path, 0, fs.stat(path).size))
    return pieces


def _read(fs: FileSystem, piece: _Piece) -> bytes:
    with fs.open(piece.path) as file:
        data = file.pread(piece.size, piece.start)
    if len(data) != piece.size:
        raise CorruptionError(
            f"ends at byte {piece.start + len(data)}", path=piece.path, position=piece.start + len(data)
        )
    return data


def _in_parallel(pool: ThreadPoolExecutor, do: Callable[[T], R], items: list[T]) -> Iterable[R]:
    """Yield the results in order; after a failure start no more, and wait for those under way."""
    futures = [pool.submit(do, item) for item in items]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        for future in futures:
            if not future.cancelled():
                future.exception()
