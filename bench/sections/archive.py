"""Segments to an archive and back, beside copying the same files: megabytes of log per second.

An upload is what `store.archive` does: every part put and synced, read back and compared, the manifest put. A
read fetches a whole archived log through blocks and cache, as readers do, from an archive opened anew.
"""

from __future__ import annotations

import os
import shutil
import uuid
from functools import partial
from itertools import count, pairwise
from pathlib import Path

from bench.harness import Case, MismatchError, Sample, Section, Stopwatch, stopwatch, take_turns
from bench.plan import Plan
from bench.records import rows
from bench.sizes import BATCH, RECORD_BYTES
from stratalog.archive import Archive, ArchiveOptions, SegmentUpload, open_archive
from stratalog.fs import RealFileSystem

COLUMNS = (("rate", "MB/s", ",.0f"), ("cpu_rate", "MB per CPU second", ",.0f"))
TOPIC, TOPIC_ID = "bench", uuid.UUID(int=2)
OURS, COPY, SYNCED = "stratalog", "plain copy", "plain copy, synced"
SEGMENT_BYTES = 64 << 20
_numbers = count()


def run(plan: Plan) -> list[Section]:
    plan.say("Archive: upload and read-back")
    with plan.scratch() as path:
        segments = _segments(path / "data", plan.sizes.archive_bytes)
        size = sum(each.size_bytes for each in segments)
        upload = Section(
            "archive-upload", "Segments to an archive in a directory, read back and verified", COLUMNS
        )
        upload.rows = take_turns(
            [
                Case(OURS, partial(_upload, path, segments, size)),
                Case(SYNCED, partial(_copy, path, segments, size, sync=True)),
                Case(COPY, partial(_copy, path, segments, size, sync=False)),
            ],
            plan.repeat,
        )
        upload.notes.append(
            "stratalog puts each part, syncs it, reads it back and compares it before the manifest names it:"
            " at least twice the bytes of a copy."
        )
        upload.equal.append("every object was read back and has the CRC of what was put")
        read = Section("archive-read", "Archived logs read whole, from a cold cache", COLUMNS)
        with _open(path / "archive") as archive:
            archive.partition(TOPIC, TOPIC_ID, 0).upload_all(segments)
        read.rows = take_turns(
            [
                Case(OURS, partial(_read, path / "archive", segments, size)),
                Case("plain read", partial(_read_files, segments, size)),
            ],
            plan.repeat,
        )
        read.equal.append("the bytes of every log are those of its file")
    return [upload, read]


def _segments(path: Path, size: int) -> list[SegmentUpload]:
    """Sealed segments of about ``size`` bytes in all."""
    import stratalog

    records = size // RECORD_BYTES
    with stratalog.open(path, {"log.segment.bytes": min(SEGMENT_BYTES, max(size // 2, 1 << 16))}) as store:
        topic = store.create_topic(TOPIC, config={"key.index.enable": True})
        for start in range(0, records, BATCH):
            made = rows(start, min(start + BATCH, records), records)
            topic.append_many([stratalog.Record(row.value, row.key) for row in made])
        topic.roll()
        bases = [segment.base_offset for segment in topic.segments(0)]
    fs = RealFileSystem()
    return [SegmentUpload.collect(fs, f"{path}/{TOPIC}-0", base, end) for base, end in pairwise(bases)]


def _open(path: Path) -> Archive:
    return open_archive(ArchiveOptions(str(path)), RealFileSystem(), store_id="bench")


def _rate(size: int, watch: Stopwatch) -> Sample:
    megabytes = size / 1e6
    return {"rate": megabytes / max(watch.wall_s, 1e-9), "cpu_rate": megabytes / max(watch.cpu_s, 1e-9)}


def _upload(path: Path, segments: list[SegmentUpload], size: int) -> Sample:
    target = path / f"archive-{next(_numbers)}"
    with _open(target) as archive, stopwatch() as watch:
        for segment in segments:
            archive.partition(TOPIC, TOPIC_ID, 0).upload(segment)
    shutil.rmtree(target)
    return _rate(size, watch)


def _copy(path: Path, segments: list[SegmentUpload], size: int, *, sync: bool) -> Sample:
    target = path / f"copy-{next(_numbers)}"
    target.mkdir()
    with stopwatch() as watch:
        for segment in segments:
            for name in segment.files.values():
                copy = target / Path(name).name
                shutil.copyfile(name, copy)
                if sync:
                    with open(copy, "rb+") as file:
                        os.fsync(file.fileno())
    shutil.rmtree(target)
    return _rate(size, watch)


def _read(path: Path, segments: list[SegmentUpload], size: int) -> Sample:
    found = []
    with _open(path) as archive:
        partition = archive.partition(TOPIC, TOPIC_ID, 0)
        with stopwatch() as watch:
            manifest = partition.manifest(refresh=True)
            for entry in manifest.segments if manifest is not None else ():
                with partition.open_segment(entry).open() as file:
                    buffer = bytearray(1 << 20)
                    at = 0
                    while at < file.size():
                        at += file.pread_into(buffer, at)
                    found.append((at, bytes(buffer[:64])))
    wanted = []
    for segment in segments:
        data = Path(segment.files["log"]).read_bytes()
        tail = data[(len(data) - 1) // (1 << 20) * (1 << 20) :]
        wanted.append((len(data), tail[:64]))
    if [(at, head[: len(tail)]) for (at, head), (_, tail) in zip(found, wanted, strict=True)] != wanted:
        raise MismatchError("an archived log is not its file")
    return _rate(size, watch)


def _read_files(segments: list[SegmentUpload], size: int) -> Sample:
    buffer = bytearray(1 << 20)
    with stopwatch() as watch:
        for segment in segments:
            with open(segment.files["log"], "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return _rate(size, watch)
