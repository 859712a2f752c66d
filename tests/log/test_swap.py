"""Segments are swapped while they are read, by threads and by another process: nobody may notice."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.errors import CorruptionError, OffsetOutOfRangeError, StratalogError
from stratalog.format import batch as batches
from stratalog.fs import MemoryFileSystem
from stratalog.log.clean.swap import swap_in
from stratalog.log.names import CLEANED, DELETED, SWAP
from stratalog.log.read.chunks import read_chunks
from stratalog.log.read.reader import read_records
from stratalog.log.segment.segment import Segment, Start
from stratalog.log.write.writer import PartitionWriter
from stratalog.store.store import Store
from stratalog.testing import FailingFileSystem, Fault, ManualClock, read_raw
from tests.log import swap_script
from tests.log.swap_script import ABORTED, key_of, read_all_ways

SETTINGS = {
    "segment.records": 17,
    "index.interval.bytes": 100,
    "key.index.enable": True,
    "retention.ms": -1,
    "file.delete.delay.ms": 20,
    "message.timestamp.before.max.ms": 2**63 - 1,
}


SWAPS = 2000 if os.environ.get("STRATALOG_CRASH") == "full" else 50


def grow(topic: stratalog.Topic, end: int) -> None:
    """Append up to an offset what `swap_script` says must be there."""
    producer = 7
    while (offset := topic.log_end_offset()) < end:
        if offset % 10 in ABORTED:
            records = [Record(b"%d" % at, key_of(at), (), at) for at in (offset, offset + 1)]
            encoded, _ = batches.encode_records(
                records,
                options=batches.BatchOptions(
                    base_offset=0,
                    leader_epoch=-1,
                    now_ms=0,
                    max_bytes=1 << 20,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=offset // 10 * 2,
                    transactional=True,
                ),
            )
            topic.append_batches(0, bytes(encoded.data))
            topic.end_transaction(0, producer_id=producer, producer_epoch=0, commit=False)
        else:
            topic.append(b"%d" % offset, key_of(offset), (), offset)


def writer_of(store: Store) -> PartitionWriter:
    writer = store.partitions.registry.view("t", 0)
    assert isinstance(writer, PartitionWriter)
    return writer


def rewritten(writer: PartitionWriter, olds: Sequence[Segment], *, drop: bool) -> Segment:
    """One new segment for ``olds`` under ``.cleaned``, less what is superseded if told so."""
    context, first = writer.context, olds[0]
    parts = []
    for old in olds:
        data = context.fs.read_file(old.path())
        parts += [
            data[header.position : header.position + header.size]
            for header in batches.scan(data)
            if not (drop and header.base_offset % 10 == 3 and not header.is_control)
        ]
    data = b"".join(parts)
    new = Segment(writer.location, first.base_offset, size=len(data), suffix=CLEANED)
    context.fs.write_file(new.path(), data, sync=True)
    made = new.derive(100, keyed=True)
    made.aborted += [txn for old in olds for txn in old.aborted()]
    made.seal = replace(made.seal, contiguous=False, cleaned=True)
    made.write(new)
    new.forget()
    return new


def files_of(writer: PartitionWriter) -> list[str]:
    return sorted(writer.context.fs.list_dir(writer.directory))


@contextmanager
def reading(topic: stratalog.Topic, threads: int) -> Iterator[Callable[[], int]]:
    """Threads that read all the time; leaving the block ends them and raises what they found wrong."""
    ended, errors, turns = threading.Event(), [], [0] * threads

    def read(number: int) -> None:
        try:
            while not ended.is_set():
                read_all_ways(topic, turns[number] * threads + number)
                turns[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    workers = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield lambda: -1 if errors else sum(turns)
    finally:
        ended.set()
        for worker in workers:
            worker.join()
    if errors:
        raise errors[0]


@contextmanager
def reading_beside(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that reads all the time."""
    child = subprocess.Popen(
        [sys.executable, swap_script.__file__, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    yield child
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert int(out) > 0


def swap_some(writer: PartitionWriter, rng: random.Random) -> bool:
    sealed = writer.local_segments()[:-1]
    size = rng.choice([1, 1, 1, 2])
    at = rng.randrange(len(sealed) - size + 1)
    olds = sealed[at : at + size]
    return swap_in(writer, olds, [rewritten(writer, olds, drop=rng.random() < 0.3)])


@pytest.mark.timeout(120)
def test_readers_never_notice_a_swap(tmp_path: Path) -> None:
    rng = random.Random(4)
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("t", config=SETTINGS)
        grow(topic, 300)
        writer = writer_of(store)
        with reading_beside(tmp_path / "log") as beside, reading(topic, 2) as turns:
            swaps = 0
            while (swaps < SWAPS or turns() < 20) and turns() >= 0 and beside.poll() is None:
                assert swap_some(writer, rng)
                swaps += 1
                if swaps % 5 == 0:
                    grow(topic, topic.log_end_offset() + 20)
    assert [
        name for name in (tmp_path / "log" / "t-0").iterdir() if name.suffix in (CLEANED, SWAP, DELETED)
    ] == []
    with stratalog.open(tmp_path / "log") as store:
        read_all_ways(store.topic("t"), 0)
        assert stratalog.verify(store).ok


@pytest.mark.timeout(120)
def test_readers_never_notice_a_deletion(tmp_path: Path) -> None:
    """The same for retention: the head goes while everybody reads; a reader it overtakes is told so."""
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("t", config={**SETTINGS, "retention.segments": 12})
        grow(topic, 300)
        with reading_from_the_end(topic, tmp_path / "log") as turns:
            until = time.monotonic() + 4
            while (
                time.monotonic() < until or turns() < 10 or topic.log_start_offset() <= 300
            ) and turns() >= 0:
                grow(topic, topic.log_end_offset() + 20)
                store.retain()
        assert topic.log_start_offset() > 300
        assert len(topic.segments()) <= 14


@contextmanager
def unless_overtaken() -> Iterator[None]:
    """A reader that the log start passes is told which offsets went."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        if error.offset >= error.first:
            raise


@contextmanager
def reading_from_the_end(topic: stratalog.Topic, path: Path) -> Iterator[Callable[[], int]]:
    """Readers in this process and of a store of their own; above the start nothing is missing."""
    ended, errors, turns = threading.Event(), [], [0, 0, 0]

    def seen(door: str, offsets: list[int], start: int, end: int) -> None:
        """A reader that was not overtaken saw everything from the start on."""
        swap_script.check(door, offsets, 0, 0)
        swap_script.check(door, [offset for offset in offsets if offset >= start], start, end)

    def read(number: int, source: stratalog.Topic) -> None:
        try:
            while not ended.is_set():
                end = source.high_watermark()
                with unless_overtaken():
                    records = list(source.read())
                    for record in records:
                        swap_script.check_record("read", record)
                    seen("read", [record.offset for record in records], source.log_start_offset(), end)
                source.get(b"k1")
                source.offset_for_time(0, end)
                list(source.history(b"k2"))
                assert source.segments()[-1].next_offset >= end
                with unless_overtaken():
                    shown = source.scan([0], ["offset"]).read_all().to_pydict()["offset"]
                    seen("scan", shown, source.log_start_offset(), end)
                turns[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    with stratalog.open(path, read_only=True) as beside:
        sources = [topic, topic, beside.topic("t")]
        workers = [threading.Thread(target=read, args=each) for each in enumerate(sources)]
        for worker in workers:
            worker.start()
        try:
            yield lambda: -1 if errors else min(turns)
        finally:
            ended.set()
            for worker in workers:
                worker.join()
    if errors:
        raise errors[0]


# -- one swap, looked at closely ---------------------------------------------------------------------------


def small_store(fs: FailingFileSystem | MemoryFileSystem | None = None) -> tuple[Store, PartitionWriter]:
    clock = ManualClock()
    store = stratalog.open(
        "/data/log", fs=fs or MemoryFileSystem(clock=clock.now_ns), clock=clock, background=False
    )
    grow(store.create_topic("t", config=SETTINGS), 100)
    return store, writer_of(store)


def offsets(writer: PartitionWriter) -> list[int]:
    return [record.offset for record in read_records(writer)]


def test_an_old_segment_held_across_a_swap() -> None:
    """The object speaks of files that are no longer there: it never shows anything that is not so."""
    store, writer = small_store()
    olds = writer.local_segments()[:3]
    half_read = read_records(writer)
    began = [next(half_read) for _ in range(9)]
    chunks = read_chunks(olds[1], Start(0, None), first_size=100, full_size=100)
    first = next(chunks).scan.last_offset
    merged = rewritten(writer, olds, drop=True)
    assert swap_in(writer, olds, [merged])
    assert all(writer.replaced(old) for old in olds)
    assert not writer.replaced(merged)
    assert merged.path().endswith(".log")
    rest = list(half_read)
    assert [r.offset for r in began + rest] == sorted({r.offset for r in began + rest})
    for record in rest:
        swap_script.check_record("read", record)
    # What was open stays open: the deleted file is read to its end.
    assert [chunk.scan.last_offset for chunk in chunks][-1] == olds[2].base_offset - 1 > first
    for old in olds:
        try:
            found = [header for chunk in read_chunks(old, Start(0, None)) for header in chunk.scan]
        except (CorruptionError, FileNotFoundError):
            continue
        assert all(old.base_offset <= header.base_offset for header in found)
    end = olds[2].next_offset or 0
    assert (
        offsets(writer)
        == [at for at in range(102) if at % 10 != 8 and (at >= end or at % 10 != 3)][: len(offsets(writer))]
    )
    assert offsets(writer)[-1] == writer.next_offset - 1
    store.close()


def test_a_run_that_is_no_longer_there_is_not_replaced() -> None:
    store, writer = small_store()
    olds = writer.local_segments()[:2]
    new = rewritten(writer, olds, drop=False)
    before = [name for name in files_of(writer) if not name.endswith(CLEANED)]
    store.topic("t").delete_records(0, olds[1].base_offset)
    assert not swap_in(writer, olds, [new])
    left = [name for name in files_of(writer) if not name.endswith(DELETED)]
    assert {name for name in left if name[:1] == "0"} < set(before)
    assert not swap_in(writer, [writer.local_segments()[-1]], [rewritten(writer, olds[1:], drop=False)])
    assert not [name for name in files_of(writer) if name.endswith((CLEANED, SWAP))]
    store.close()


def test_a_merge_takes_the_snapshots_of_the_segments_it_ends() -> None:
    store, writer = small_store()
    olds = writer.local_segments()[:3]
    assert swap_in(writer, olds, [rewritten(writer, olds, drop=False)])
    kept = {segment.base_offset for segment in writer.local_segments()}
    snapshots = {int(name[:20]) for name in files_of(writer) if name.endswith(".snapshot")}
    assert snapshots <= kept
    assert olds[1].base_offset not in snapshots
    store.tick()
    store.partitions.context.clock.advance(1000)  # type: ignore[attr-defined]
    store.tick()
    assert {int(name[:20]) for name in files_of(writer) if name[:1] == "0"} <= kept
    store.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["rename", "sync_dir", "remove", "sync", "pwrite"])
def test_a_disk_that_fails_during_a_swap(operation: str, error: int) -> None:
    """Before the point of no return nothing has changed; past it the same store finishes. Never a mixture."""
    failed = 0
    for after in range(40):
        memory = MemoryFileSystem(clock=ManualClock().now_ns)
        fs = FailingFileSystem(memory)
        store, writer = small_store(fs)
        store.flush()
        olds = writer.local_segments()[1:3]
        new = rewritten(writer, olds, drop=True)
        before = offsets(writer)
        left = [at for at in before if at % 10 != 3 or not olds[0].base_offset <= at < olds[1].next_offset]
        fs.inject(Fault(operation, "*/t-0*", error, after=after, times=1))
        swapped = None
        try:
            swapped = swap_in(writer, olds, [new])
        except StratalogError:
            failed += 1
        fs.heal()
        found = offsets(writer)  # the first look finishes or undoes what was cut short
        assert found in ([left] if swapped else [before, left])
        assert stratalog.verify(store).ok
        store.topic("t").append(b"100", key_of(100), (), 100)
        assert not [name for name in files_of(writer) if name.endswith((CLEANED, SWAP))]
        before = left = [*found, 100]
        killed = memory.survivor("kill", random.Random(after))
        with stratalog.open("/data/log", fs=killed, clock=ManualClock(), background=False) as again:
            found = offsets(writer_of(again))
            assert found in (before, left)
            if swapped:
                assert found == left
            assert not [
                name for name in files_of(writer_of(again)) if name.endswith((CLEANED, SWAP, DELETED))
            ]
            assert stratalog.verify(again).ok
        read_raw(killed, "/data/log/t-0", "t", 0, gaps=True)
        if not fs.failed:
            assert swapped
            break
    assert after < 39
    assert failed or operation == "remove"
