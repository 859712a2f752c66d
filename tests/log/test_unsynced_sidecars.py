"""What a power cut left of files that nobody had synced yet: a reader without recovery does without them.

Up to the synced end, which the tail tells, every file is on disk and damage is named. Past it the log is
whole here, and what is derived from it is empty, cut in half or gone; a store opened for reading only shows
the same records by every door, and `verify` finds nothing wrong.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

import stratalog
from stratalog import Record
from stratalog.errors import CorruptionError
from stratalog.format import checkpoints
from stratalog.log.names import SNAPSHOT, SWAP, TAIL, parse_file, segment_name
from stratalog.testing import Fact, ManualClock, MemoryFileSystem
from tests.crash.driver import encode_batch

ROOT = "/data"
HERE = f"{ROOT}/t-0"
SETTINGS = {"segment.bytes": 700, "index.interval.bytes": 1, "key.index.enable": True, "segment.ms": 2**40}
KINDS = ("index", "timeindex", "txnindex", "seal", "keyindex", SNAPSHOT)
HARMS = ("empty", "half", "gone")


Shown = list[list[Any]]
Log = tuple[MemoryFileSystem, ManualClock, int, Shown]


@pytest.fixture(scope="module")
def made() -> Log:
    """Two synced segments, then several with an aborted transaction and falling times that are not synced."""
    clock = ManualClock()
    fs = MemoryFileSystem(clock=clock.now_ns)
    store = stratalog.open(ROOT, fs=fs, clock=clock, background=False)
    topic = store.create_topic("t", 1, SETTINGS)
    now = clock.now_ms()
    for at in range(12):
        topic.append(b"synced %d" % at, b"k%d" % (at % 3), timestamp=now + at)
    topic.flush()
    synced = store.partitions.view("t", 0).segments()[-1].base_offset
    facts = [Fact(b"aborted %d" % at, b"a%d" % at, now + 50) for at in range(3)]
    topic.append_batches(0, encode_batch(facts, 7, 0, transactional=True))
    topic.append(b"between", b"b", timestamp=now + 10)
    topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=False)
    for at in range(25):
        topic.append(b"later %d" % at, b"k%d" % (at % 3), timestamp=now + 100 + (at * 7) % 40)
    left = fs.survivor("kill", random.Random(0))
    return left, clock, synced, shown(left, clock)


@pytest.fixture
def log(made: Log) -> Log:
    """A copy of it, to be harmed."""
    fs, clock, synced, whole = made
    assert whole[0] != whole[1], "nothing was aborted"
    return fs.survivor("kill", random.Random(0)), clock, synced, whole


def unsynced(fs: MemoryFileSystem, synced: int, kinds: tuple[str, ...]) -> list[str]:
    found = []
    for name in fs.list_dir(HERE):
        parsed = parse_file(name)
        if parsed is not None and parsed.kind in kinds:
            past = parsed.base_offset > synced if parsed.kind == SNAPSHOT else parsed.base_offset >= synced
            found += [f"{HERE}/{name}"] if past else []
    return found


def base_of(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


def harm(fs: MemoryFileSystem, path: str, how: str) -> None:
    data = fs.read_file(path)
    fs.remove(path)
    if how != "gone":
        fs.write_file(path, data[: len(data) // 2] if how == "half" else b"", sync=True)


def shown(fs: MemoryFileSystem, clock: ManualClock) -> Shown:
    """Every answer of a store that is opened for reading only."""
    with stratalog.open(ROOT, fs=fs, clock=clock, read_only=True) as store:
        report = stratalog.verify(store)
        assert report.ok, report.damages
        topic, now = store.topic("t"), clock.now_ms()
        records: list[Record] = list(topic.read())
        times = [now + each for each in (-1, 5, 40, 50, 51, 100, 120, 135, 138, 139, 140, 200)]
        return [
            records,
            list(topic.read(isolation="read_committed")),
            [topic.get(key) for key in {record.key for record in records if record.key}],
            [topic.at(record.offset) for record in records],
            [topic.offset_for_time(0, each) for each in times],
            [topic.scan(since=each, columns=["offset"]).read_all().to_pylist() for each in times],
            [topic.list_offset(0, which) for which in stratalog.OffsetSpec],
        ]


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize(
    "kinds", [*((kind,) for kind in KINDS), ("seal", "timeindex"), ("seal", "txnindex"), KINDS]
)
def test_a_reader_does_without_what_was_not_synced(kinds: tuple[str, ...], how: str, log: Log) -> None:
    fs, clock, synced, whole = log
    paths = unsynced(fs, synced, kinds)
    assert len(paths) >= len(kinds)
    for path in paths:
        harm(fs, path, how)
    assert shown(fs, clock) == whole


def test_each_file_may_be_left_in_another_state(log: Log) -> None:
    fs, clock, synced, whole = log
    for seed in range(12):
        rng, left = random.Random(seed), fs.survivor("kill", random.Random(0))
        for path in unsynced(left, synced, KINDS):
            how = rng.choice(("whole", *HARMS))
            if how != "whole":
                harm(left, path, how)
        assert shown(left, clock) == whole, f"seed {seed}"


@pytest.mark.parametrize("kind", ["index", "timeindex", "seal", SNAPSHOT])
def test_below_the_synced_end_it_is_damage(kind: str, log: Log) -> None:
    fs, clock, synced, _ = log
    path = next(
        f"{HERE}/{name}"
        for name in fs.list_dir(HERE)
        if (parsed := parse_file(name)) is not None and parsed.kind == kind and parsed.base_offset <= synced
    )
    harm(fs, path, "half")
    with stratalog.open(ROOT, fs=fs, clock=clock, read_only=True) as store:
        assert [each.path for each in stratalog.verify(store).damages if each.derived] == [path]


@pytest.mark.parametrize("tail", ["empty", "gone"])
def test_the_recovery_point_tells_where_the_tail_does_not(tail: str, log: Log) -> None:
    fs, clock, synced, whole = log
    harm(fs, f"{HERE}/{TAIL}", tail)
    fs.write_file(
        f"{ROOT}/{checkpoints.RECOVERY_POINT}", checkpoints.pack_offsets({("t", 0): synced}), sync=True
    )
    for path in unsynced(fs, synced, KINDS):
        harm(fs, path, "half")
    assert shown(fs, clock) == whole


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("left", [0, 0.5])
def test_a_log_that_was_not_synced_ends_where_the_power_cut_tore_it(
    sealed: bool, left: float, log: Log
) -> None:
    """As recovery has it: what lies behind is a torn tail."""
    fs, clock, synced, whole = log
    torn = min(unsynced(fs, synced + 1, ("log",)))
    data = fs.read_file(torn)
    fs.write_file(torn, data[: int(len(data) * left)], sync=True)
    if not sealed:
        fs.remove(torn.replace(".log", ".seal"))
    recovered = fs.survivor("kill", random.Random(0))
    with stratalog.open(ROOT, fs=recovered, clock=clock, background=False) as store:
        kept = list(store.topic("t").read())
    assert kept
    assert kept == whole[0][: len(kept)]
    with stratalog.open(ROOT, fs=fs, clock=clock, read_only=True) as store:
        assert list(store.topic("t").read()) == kept
        report = stratalog.verify(store)
        assert report.ok, report.damages


@pytest.mark.parametrize("tail", ["whole", "empty"])
@pytest.mark.parametrize("gone", [("log",), KINDS, ("log", *KINDS)])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_log_that_was_not_synced_ends_before_the_first_file_that_a_power_cut_took(
    nth: int, gone: tuple[str, ...], tail: str, log: Log
) -> None:
    """The names of later files may have outlived the power cut: they are no sign of damage."""
    fs, clock, synced, whole = log
    base = sorted(unsynced(fs, synced + 1, ("log",)))[nth].removesuffix(".log")
    for kind in gone:
        with suppress(FileNotFoundError):
            fs.remove(f"{base}.{kind}")
    if tail == "empty":
        harm(fs, f"{HERE}/{TAIL}", tail)
        fs.write_file(
            f"{ROOT}/{checkpoints.RECOVERY_POINT}", checkpoints.pack_offsets({("t", 0): synced}), sync=True
        )
    recovered = fs.survivor("kill", random.Random(0))
    with stratalog.open(ROOT, fs=recovered, clock=clock, background=False) as store:
        kept = list(store.topic("t").read())
        assert stratalog.verify(store).ok
    assert ("log" in gone) == (len(kept) < len(whole[0]))
    assert kept == whole[0][: len(kept)]
    with stratalog.open(ROOT, fs=fs, clock=clock, read_only=True) as store:
        assert list(store.topic("t").read()) == kept
        report = stratalog.verify(store)
        assert report.ok, report.damages


@pytest.mark.parametrize("told", ["tail", "recovery point"])
def test_a_segment_missing_below_the_synced_end_is_damage(told: str, log: Log) -> None:
    """The tail may lag behind the recovery point: it is written without a sync."""
    fs, clock, synced, _ = log
    logs = sorted(unsynced(fs, 1 if told == "tail" else synced + 1, ("log",)))
    base, following = base_of(logs[0]), base_of(logs[1])
    if told == "recovery point":
        points = checkpoints.pack_offsets({("t", 0): following})
        fs.write_file(f"{ROOT}/{checkpoints.RECOVERY_POINT}", points, sync=True)
    fs.remove(logs[0])
    with stratalog.open(ROOT, fs=fs, clock=clock, read_only=True) as store:
        with pytest.raises(CorruptionError, match=f"offsets {base}-{following - 1} are missing"):
            list(store.topic("t").read())
        lost = [(each.first_offset, each.last_offset) for each in stratalog.verify(store).damages]
        assert (base, following - 1) in lost


def test_sidecars_of_a_swap_that_a_kill_cut_short_are_found(log: Log) -> None:
    """The log has its name again, and what is derived from it not yet."""
    fs, clock, _, whole = log
    for kind in KINDS[:-1]:
        path = f"{HERE}/{segment_name(0)}.{kind}"
        if fs.exists(path):
            fs.rename(path, path + SWAP)
    assert shown(fs, clock) == whole


@pytest.mark.parametrize("torn", [b"", bytes(100)], ids=["cut", "zeros"])
def test_a_tail_may_tell_of_an_older_clean_stop(torn: bytes) -> None:
    """The power cut took what came after it, but for the sidecars of a segment that was sealed then."""
    clock = ManualClock()
    fs = MemoryFileSystem(clock=clock.now_ns)
    with stratalog.open(ROOT, fs=fs, clock=clock, background=False) as store:
        store.create_topic("t", 1, SETTINGS).append(b"before", b"k")
    log, tail = f"{HERE}/{segment_name(0)}.log", f"{HERE}/{TAIL}"
    old = {path: fs.read_file(path) for path in (log, tail)}
    store = stratalog.open(ROOT, fs=fs, clock=clock, background=False)
    store.topic("t").append(b"after", b"k")
    store.topic("t").roll()
    left = fs.survivor("kill", random.Random(0))
    left.write_file(log, old[log] + torn, sync=True)
    left.write_file(tail, old[tail], sync=True)
    with stratalog.open(ROOT, fs=left, clock=clock, read_only=True) as reader:
        assert [record.value for record in reader.topic("t").read()] == [b"before"]
        report = stratalog.verify(reader)
        assert report.ok, report.damages
