"""A plain second reader: the batches of a partition as the bytes in its directory say, and nothing else.

No index, no sidecar, no cache and no view of the engine is asked, so it can judge what the engine serves.
Everything in the directory is read into memory: for tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from stratalog.errors import CorruptionError
from stratalog.format import batch as batches
from stratalog.format.batch import BatchHeader, Stop
from stratalog.fs import FileSystem
from stratalog.log.names import LOG, parse_file
from stratalog.model import Record


class RawBatch(NamedTuple):
    """One batch on disk. ``marker`` is set for the control batches that end a transaction."""

    segment: int
    header: BatchHeader
    records: tuple[Record, ...]
    marker: Literal["commit", "abort"] | None
    data: bytes


def read_raw(
    fs: FileSystem, directory: str, topic: str = "", partition: int = 0, *, gaps: bool = False
) -> list[RawBatch]:
    """Return every batch of every segment, in order; CorruptionError for bytes outside a valid batch.

    ``gaps``: offsets may be missing inside a segment, as compaction leaves them.
    """
    found: list[RawBatch] = []
    expect = -1
    for base, name in sorted(_logs(fs.list_dir(directory))):
        path = f"{directory}/{name}"
        data = fs.read_file(path)
        if base < expect:
            raise CorruptionError(f"segment {base} begins before offset {expect}", path=path, position=0)
        scan = batches.scan(data, expect=None if gaps else base)
        if data and (scan.stop is not Stop.END or scan.end != len(data)):
            raise CorruptionError(f"{scan.stop.value}: {scan.reason}", path=path, position=scan.end)
        for row, header in enumerate(scan):
            records = batches.decode_records(data, scan, row, row + 1, topic=topic, partition=partition)
            marker = batches.decode_control(data, header)[0] if header.is_control else None
            bytes_of = data[header.position : header.position + header.size]
            found.append(RawBatch(base, header, tuple(records), marker, bytes_of))
            expect = header.next_offset
    return found


def committed(raw: Iterable[RawBatch]) -> list[Record]:
    """Return what ``read_committed`` must show of these batches, by the definition and in two passes."""
    raw = list(raw)
    fate: dict[int, bool] = {}  # row -> whether its transaction was committed
    open_rows: dict[int, list[int]] = {}
    for row, batch in enumerate(raw):
        producer = batch.header.producer_id
        if batch.marker is not None:
            for waiting in open_rows.pop(producer, []):
                fate[waiting] = batch.marker == "commit"
        elif batch.header.is_transactional and not batch.header.is_control:
            open_rows.setdefault(producer, []).append(row)
    stable = min((raw[rows[0]].header.base_offset for rows in open_rows.values()), default=2**63)
    return [
        record
        for row, batch in enumerate(raw)
        if fate.get(row, True) and batch.header.base_offset < stable
        for record in batch.records
    ]


def _logs(names: Iterable[str]) -> Iterable[tuple[int, str]]:
    for name in names:
        parsed = parse_file(name)
        if parsed is not None and parsed.kind == LOG and not parsed.suffix:
            yield parsed.base_offset, name
