"""Damaged foreign directories: every golden topic, stopped unclean, then harmed in one or two ways.

Each round gives right data or a named error, never silence, and the next start gives the same. The seed of a
round is in its test's name and replays it; ``STRATALOG_DAMAGE_ROUNDS`` sets how many rounds each topic gets.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import FormatError, LogDirOfflineError, UnsupportedFormat
from stratalog.format import batch as batches
from stratalog.store.internal_topic import for_coordinator
from stratalog.store.lifecycle.reports import verify

GOLDEN = Path(__file__).parent.parent / "golden" / "kafka-4.3.1" / "log-dir"
LOGS = [log for log in GOLDEN.glob("*/*.log") if log.stat().st_size]
PARTITIONS = sorted({log.parent.name for log in LOGS})
ROUNDS = int(os.environ.get("STRATALOG_DAMAGE_ROUNDS", "4"))
BASE_OFFSET_BYTES, UNCOVERED_BYTES = 8, 21
"""Base offset, length, leader epoch, magic and the CRC itself: no CRC covers them."""
PAGE_BYTES = 4096

Found = dict[int, tuple[bytes | None, bytes | None]]


def contents(topic: stratalog.Topic, partition: int) -> Found:
    records = list(topic.read(partition, skip_damaged=True))
    found = {record.offset: (record.key, record.value) for record in records}
    assert list(found) == sorted(record.offset for record in records), "each offset once, in order"
    return found


def cleaned(name: str) -> bool:
    """Of a compacted log nothing tells a wrong base offset from a gap, or whether a segment is missing."""
    return name.startswith(("compacted", "__"))


def written(name: str, tmp_path: Path, *, deleted: bool) -> Found:
    """The records of a golden partition; also ``deleted`` ones, which may show again without a log start."""
    root = GOLDEN
    if deleted:
        root = tmp_path / "whole"
        root.mkdir()
        shutil.copytree(GOLDEN / name, root / name)
        shutil.copyfile(GOLDEN / "meta.properties", root / "meta.properties")
    topic, _, partition = name.rpartition("-")
    with stratalog.open(root, read_only=True) as store:
        return contents(store.topic(topic), int(partition))


def copy_of(name: str, target: Path, rng: random.Random, end: int) -> int:
    """A copy of one partition, mostly without the mark of a clean stop; returns its recovery point."""
    target.mkdir()
    shutil.copytree(GOLDEN / name, target / name)
    for root_file in ("meta.properties", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        shutil.copyfile(GOLDEN / root_file, target / root_file)
    for path in [target / name, *(target / name).iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    topic, _, number = name.rpartition("-")
    point = rng.choice([0, end // 2, end])
    if point == end and rng.randrange(2):
        (target / ".kafka_cleanshutdown").write_bytes(b"")
    checkpoint = f"0\n1\n{topic} {number} {point}\n"
    (target / "recovery-point-offset-checkpoint").write_text(checkpoint)
    return point


def flip(path: Path, at: int, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{path.name}: byte {at}"


def flip_any(log: Path, rng: random.Random) -> str:
    at = rng.randrange(log.stat().st_size)
    starts = [header.position for header in batches.scan(log.read_bytes(), check_crc=False)]
    if cleaned(log.parent.name) and any(start <= at < start + BASE_OFFSET_BYTES for start in starts):
        at += BASE_OFFSET_BYTES
    return flip(log, min(at, log.stat().st_size - 1), rng)


def flip_uncovered(log: Path, rng: random.Random) -> str:
    found = list(batches.scan(log.read_bytes(), check_crc=False))
    if not found:
        return flip_any(log, rng)
    first = BASE_OFFSET_BYTES if cleaned(log.parent.name) else 0
    return flip(log, rng.choice(found).position + rng.randrange(first, UNCOVERED_BYTES), rng)


def cut(log: Path, rng: random.Random) -> str:
    size = rng.randrange(log.stat().st_size)
    os.truncate(log, size)
    return f"{log.name}: cut to {size}"


def delete(log: Path, _rng: random.Random) -> str:
    log.unlink()
    return f"{log.name}: deleted"


def zero_page(log: Path, rng: random.Random) -> str:
    data = bytearray(log.read_bytes())
    at = rng.randrange(0, len(data), PAGE_BYTES)
    data[at : at + PAGE_BYTES] = bytes(len(data[at : at + PAGE_BYTES]))
    log.write_bytes(data)
    return f"{log.name}: zeros from byte {at}"


def swap_batches(log: Path, rng: random.Random) -> str:
    data = log.read_bytes()
    found = list(batches.scan(data, check_crc=False))
    if len(found) < 2:
        return cut(log, rng)
    at = rng.randrange(len(found) - 1)
    start, middle = found[at].position, found[at + 1].position
    end = middle + found[at + 1].size
    log.write_bytes(data[:start] + data[middle:end] + data[start:middle] + data[end:])
    return f"{log.name}: batches at {start} and {middle} swapped"


def repeat_batches(log: Path, rng: random.Random) -> str:
    data = log.read_bytes()
    found = list(batches.scan(data, check_crc=False))
    if not found:
        return cut(log, rng)
    first, last = sorted(rng.choices(range(len(found)), k=2))
    start, end = found[first].position, found[last].position + found[last].size
    log.write_bytes(data[:end] + data[start:end] + data[end:])
    return f"{log.name}: bytes {start} to {end} twice"


def harm_sidecar(log: Path, rng: random.Random) -> str:
    kinds = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot")
    paths = [path for kind in kinds for path in sorted(log.parent.glob(kind)) if path.stat().st_size]
    if not paths:
        return flip_any(log, rng)
    path = rng.choice(paths)
    match rng.randrange(3):
        case 0:
            return flip(path, rng.randrange(path.stat().st_size), rng)
        case 1:
            path.write_bytes(b"")
            return f"{path.name}: emptied"
        case _:
            path.unlink()
            return f"{path.name}: deleted"


def harm_checkpoint(log: Path, rng: random.Random) -> str:
    path = rng.choice(
        [log.parent.parent / "log-start-offset-checkpoint", log.parent / "leader-epoch-checkpoint"]
    )
    path.write_bytes(rng.choice([b"", b"garbage\n", b"0\n1\n", b"0\n7\nx y z\n", rng.randbytes(40)]))
    return f"{path.name}: garbage"


HARMS: list[Callable[[Path, random.Random], str]] = [
    flip_any,
    flip_uncovered,
    flip_uncovered,
    cut,
    delete,
    zero_page,
    swap_batches,
    repeat_batches,
    harm_sidecar,
    harm_checkpoint,
]


def harm(directory: Path, rng: random.Random) -> str:
    """Harm the partition once or, in a quarter of the rounds, twice; return what was done."""
    done = []
    for _ in range(1 if rng.randrange(4) else 2):
        logs = [path for path in sorted(directory.glob("*.log")) if path.stat().st_size]
        if logs:
            done.append(rng.choice(HARMS)(rng.choice(logs), rng))
    return ", ".join(done)


def named_damage(store: stratalog.Store, topic_name: str, partition: int) -> bool:
    """True if a read or `verify` names damage of this partition."""
    topic = store.topic(topic_name)
    try:
        list(topic.read(partition))
    except FormatError:
        return True
    where = f"{topic_name}-{partition}"
    return any(Path(each.path).parent.name == where for each in verify(store).damages)


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("name", PARTITIONS)
def test_damage_is_named_or_does_no_harm(name: str, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    topic_name, _, number = name.rpartition("-")
    partition = int(number)
    root = tmp_path / "root"
    with stratalog.open(GOLDEN, read_only=True) as store:
        point = copy_of(name, root, rng, store.topic(topic_name).log_end_offset(partition))
    done = harm(root / name, rng)
    whole = written(name, tmp_path, deleted="log-start-offset-checkpoint" in done)
    with stratalog.open(root, background=False) as store:
        topic = store.topic(topic_name)
        if not store.recovery:  # a byte that no CRC covers: of the version, or of a base offset
            with pytest.raises(LogDirOfflineError, match="newer than this library|comes after"):
                list(topic.read(partition))
            return
        [report] = store.recovery
        try:
            found = contents(topic, partition)
        except UnsupportedFormat:  # a newer format is not skipped as damage
            return
        assert found.items() <= whole.items(), f"{done}: what is read was written"
        # A head that is gone looks like retention, and a tail that was never synced may be gone.
        start, seen = topic.log_start_offset(partition), max(found, default=-1)
        lost = sorted(n for n in whole.keys() - found.keys() if start <= n < max(point, seen))
        synced = [offset for offset in lost if offset < point]
        still_named = named_damage(store, topic_name, partition)
        hidden = "deleted" in done and cleaned(name)
        named = still_named or hidden or bool(report.damages or report.cuts)
        assert named or not lost, f"{done}: {lost} are missing and nothing says so"
        assert still_named or hidden or not synced, f"{done}: {synced} were synced, and are cut"
        appended = for_coordinator(topic).append(b"after", partition=partition, sync=True).offset
        assert appended >= max([point, *(offset + 1 for offset in found)])
    with stratalog.open(root, background=False) as store:
        again = contents(store.topic(topic_name), partition)
        assert again.pop(appended)[1] == b"after"
        assert again == found, f"{done}: the second start reads the same"
        named = hidden or named_damage(store, topic_name, partition)
        assert named or not synced, f"{done}: the second start says nothing of {synced}"
