"""A cleaner's work, Kafka's and ours, compared batch by batch on the same range at the same moment.

What a broker's clock said while it cleaned is written into its files: a batch whose tombstones or marker it
met for the first time got that moment plus ``delete.retention.ms`` as its delete horizon.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from stratalog.config import TopicConfig
from stratalog.format.checkpoints import parse_offsets
from stratalog.format.txn_index import AbortedTxn
from stratalog.format.txn_index import parse as parse_txn_index
from stratalog.fs import RealFileSystem
from stratalog.log.clean import CleanReport
from stratalog.log.write.recovery import OpenAs
from stratalog.testing import ManualClock, read_raw
from stratalog.testing.raw import RawBatch
from tests.log.cleaner.support import Log


class Comparable(NamedTuple):
    """What must be equal of one batch; the bytes of a compressed one depend on the compressor."""

    segment: int
    header: tuple[int, ...]
    crc: int | None
    records: tuple[object, ...]
    marker: str | None


def comparable(raw: list[RawBatch]) -> list[Comparable]:
    found = []
    for batch in raw:
        header = batch.header
        size, crc = (0, None) if header.codec else (header.size, header.crc)
        fields = header._replace(position=0, size=size, crc=0, min_timestamp=-1)
        found.append(Comparable(batch.segment, tuple(fields), crc, batch.records, batch.marker))
    return found


def raw_of(directory: Path) -> list[RawBatch]:
    return read_raw(RealFileSystem(), str(directory), "t", 0, gaps=True)


def checkpoint(log_dir: Path, topic: str) -> int:
    """Where the cleaner of a log directory got to in a topic; 0 when it has not been there."""
    data = (log_dir / "cleaner-offset-checkpoint").read_bytes()
    return parse_offsets(data).get((topic, 0), 0) if data else 0


def moment_of(before: list[RawBatch], after: list[RawBatch], delete_retention_ms: int) -> int | None:
    """What the clock said while the one was made into the other; None when nothing tells."""
    fresh = _horizons(after) - _horizons(before)
    assert len(fresh) <= 1, "one round has one moment"
    return fresh.pop() - delete_retention_ms if fresh else None


def _horizons(raw: list[RawBatch]) -> set[int]:
    return {batch.header.base_timestamp for batch in raw if batch.header.has_delete_horizon}


def aborted(directory: Path) -> dict[str, list[AbortedTxn]]:
    """The transaction indexes that are not empty."""
    found = {path.name: list(parse_txn_index(path.read_bytes())) for path in directory.glob("*.txnindex")}
    return {name: txns for name, txns in found.items() if txns}


def clean_copy(
    before: Path, target: Path, config: TopicConfig, first_dirty: int, end: int, now_ms: int, how: OpenAs
) -> tuple[Log, CleanReport]:
    """Our cleaner at work on a copy of another broker's partition."""
    shutil.copytree(before, target)
    log = Log(config, fs=RealFileSystem(), directory=str(target), clock=ManualClock(now_ms), how=how)
    return log, log.clean(first_dirty, end, now_ms=now_ms)


def assert_same(log: Log, after: Path) -> None:
    """The log is what the broker made of it: batches, records, segments, and their indexes."""
    wanted = comparable(raw_of(after))
    assert comparable(log.raw()) == wanted
    assert aborted(Path(log.directory)) == aborted(after)
    for segment in log.writer.local_segments()[:-1]:
        if not any(batch.header.codec for batch in log.raw()):  # positions depend on the compressor
            for kind in ("index", "timeindex"):
                theirs = (after / Path(segment.path(kind)).name).read_bytes()
                assert Path(segment.path(kind)).read_bytes() == theirs, segment.path(kind)
    log.reopen()
    assert comparable(log.raw()) == wanted
