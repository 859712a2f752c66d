"""Repair: does what it is told, says what it gave up, and can be stopped at any call."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable

import pytest

import stratalog
from stratalog import Record
from stratalog.config import TopicConfig
from stratalog.errors import CorruptionError, InvalidArgumentError, UnsupportedFormat
from stratalog.format import batch as batches
from stratalog.format import seal as seals
from stratalog.fs import HandleCache, MemoryFileSystem, SimulatedCrash
from stratalog.log.check.repair import RepairReport, repair_partition
from stratalog.log.check.verify import VerifyReport, verify_partition
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.read.reader import read_records
from stratalog.log.write.recovery import OpenAs, open_partition
from stratalog.log.write.writer import PartitionWriter

DIRECTORY = "/data/t-0"
FIRST, SECOND, ACTIVE, END = 0, 8, 16, 24
CONFIG = TopicConfig(key_index_enable=True, index_interval_bytes=0)
SIDECARS = ("index", "timeindex", "seal", "keyindex")

Files = dict[str, bytes]


def quiet(message: str) -> None:
    """Warnings are expected here."""


def path_of(base: int, kind: str = "log") -> str:
    return f"{DIRECTORY}/{base:020d}.{kind}"


@pytest.fixture
def fs() -> MemoryFileSystem:
    """Two sealed segments and an active one, each with four batches of two records."""
    fs = MemoryFileSystem()
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.create_topic("t", 1, {"key.index.enable": True, "index.interval.bytes": 0})
        for base in (FIRST, SECOND, ACTIVE):
            if base:
                topic.roll()
            for offset in range(base, base + 8, 2):
                topic.append_many([Record(b"%d" % (offset + i), b"key", (), 1000 + offset) for i in range(2)])
    return fs


def context_of(fs: MemoryFileSystem) -> LogContext:
    return LogContext(fs, HandleCache(fs, 50), warn=quiet)


def location_of(fs: MemoryFileSystem) -> PartitionLocation:
    return PartitionLocation(context_of(fs), DIRECTORY, "t", 0)


def repair(fs: MemoryFileSystem, action: str, *, dry_run: bool = False) -> RepairReport:
    return repair_partition(location_of(fs), CONFIG, action=action, dry_run=dry_run)


def verify(fs: MemoryFileSystem) -> VerifyReport:
    return verify_partition(PartitionFollower(location_of(fs)))


def open_writer(fs: MemoryFileSystem, *, clean: bool = False) -> PartitionWriter:
    location = location_of(fs)
    state, _ = open_partition(location, CONFIG, OpenAs(clean=clean))
    return PartitionWriter(location, CONFIG, state)


def offsets(fs: MemoryFileSystem) -> list[int]:
    """What a reader gets, each value checked against its offset."""
    found = []
    for record in read_records(PartitionFollower(location_of(fs))):
        assert record.value == b"%d" % record.offset
        found.append(record.offset)
    return found


def snapshot(fs: MemoryFileSystem) -> Files:
    return {name: fs.read_file(f"{DIRECTORY}/{name}") for name in fs.list_dir(DIRECTORY)}


def headers(fs: MemoryFileSystem, base: int) -> list[batches.BatchHeader]:
    return list(batches.scan(fs.read_file(path_of(base))))


def harm(fs: MemoryFileSystem, base: int, *rows: int) -> None:
    """Make batches of a segment fail their CRC."""
    found = headers(fs, base)
    with fs.open(path_of(base), "w") as file:
        for row in rows:
            file.pwrite(b"\xa5\xa5", found[row].position + 55)
        file.sync()


def all_but(*gone: int) -> list[int]:
    return [offset for offset in range(END) if offset not in gone]


@pytest.mark.parametrize("action", ["rebuild-indexes", "drop-damaged", "truncate"])
def test_nothing_to_do(fs: MemoryFileSystem, action: str) -> None:
    before = snapshot(fs)
    report = repair(fs, action)
    assert (report.actions, report.lost, report.lost_records) == (["nothing to do"], [], 0)
    assert snapshot(fs) == before


def test_an_unknown_action_names_the_known_ones(fs: MemoryFileSystem) -> None:
    with pytest.raises(InvalidArgumentError, match="rebuild-indexes, drop-damaged, truncate"):
        repair(fs, "magic")


def test_reports_travel(fs: MemoryFileSystem) -> None:
    harm(fs, SECOND, 1)
    report = repair(fs, "drop-damaged", dry_run=True)
    assert RepairReport.from_json(json.loads(json.dumps(report.to_json()))) == report


# -- rebuild-indexes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SIDECARS)
@pytest.mark.parametrize("how", ["missing", "garbage"])
def test_a_sidecar_is_made_again(fs: MemoryFileSystem, kind: str, how: str) -> None:
    before = snapshot(fs)
    path = path_of(SECOND, kind)
    if how == "missing":
        fs.remove(path)
    else:
        fs.write_file(path, b"garbage", sync=True)
    report = repair(fs, "rebuild-indexes")
    assert any(line.startswith(path) for line in report.actions)
    assert not report.lost
    assert snapshot(fs) == before
    assert verify(fs).ok


def test_a_segment_rewritten_by_another_program_gets_a_new_seal(fs: MemoryFileSystem) -> None:
    """A broker that compacts our segment knows nothing of seals."""
    first, _, *rest = headers(fs, SECOND)
    data = fs.read_file(path_of(SECOND))
    fs.write_file(path_of(SECOND), data[: first.size] + data[rest[0].position :], sync=True)
    with pytest.raises(CorruptionError, match="rebuild-indexes"):
        offsets(fs)
    repair(fs, "rebuild-indexes")
    assert verify(fs).ok
    assert offsets(fs) == all_but(10, 11)
    assert not seals.parse(fs.read_file(path_of(SECOND, "seal"))).contiguous


def test_a_changed_leader_epoch_gets_a_new_seal(fs: MemoryFileSystem) -> None:
    with fs.open(path_of(SECOND), "w") as file:
        file.pwrite(b"\0\0\0\7", 12)
    assert not verify(fs).ok
    repair(fs, "rebuild-indexes")
    assert verify(fs).ok
    assert seals.parse(fs.read_file(path_of(SECOND, "seal"))).contiguous


def test_indexes_of_a_damaged_log_are_left_alone(fs: MemoryFileSystem) -> None:
    harm(fs, SECOND, 1)
    fs.write_file(path_of(SECOND, "index"), b"garbage", sync=True)
    before = snapshot(fs)
    report = repair(fs, "rebuild-indexes")
    assert "left unchanged" in report.actions[0]
    assert snapshot(fs) == before


def test_a_bad_snapshot_goes(fs: MemoryFileSystem) -> None:
    fs.write_file(path_of(SECOND, "snapshot"), b"garbage", sync=True)
    repair(fs, "rebuild-indexes")
    assert not fs.exists(path_of(SECOND, "snapshot"))
    assert verify(fs).ok


# -- drop-damaged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "rows", "lost"),
    [
        (FIRST, [0], [0, 1]),
        (SECOND, [1], [10, 11]),
        (SECOND, [0, 2], [8, 9, 12, 13]),
        (SECOND, [3], [14, 15]),
        (SECOND, [0, 1, 2, 3], [8, 9, 10, 11, 12, 13, 14, 15]),
        (ACTIVE, [1], [18, 19]),
        (ACTIVE, [3], [22, 23]),
    ],
    ids=str,
)
def test_damaged_batches_are_dropped(
    fs: MemoryFileSystem, base: int, rows: list[int], lost: list[int]
) -> None:
    before = fs.read_file(path_of(base))
    harm(fs, base, *rows)
    damaged = fs.read_file(path_of(base))
    report = repair(fs, "drop-damaged")
    assert [
        offset for each in report.lost for offset in range(each.first_offset, each.last_offset + 1)
    ] == lost
    assert report.lost_records == len(lost)
    assert verify(fs).ok, verify(fs).damages
    assert offsets(fs) == all_but(*lost)
    kept = [name for name in fs.list_dir(DIRECTORY) if "torn" in name]
    assert b"".join(fs.read_file(f"{DIRECTORY}/{name}") for name in kept) == b"".join(
        damaged[each.start : each.end] for each in report.lost
    )
    assert before != damaged
    check_life_goes_on(fs, all_but(*lost))


def check_life_goes_on(fs: MemoryFileSystem, kept: list[int]) -> None:
    """Open for writing, append, close, open again: nothing is cut and no offset is given out twice."""
    for clean, expected in ((False, END), (True, END + 1)):
        writer = open_writer(fs, clean=clean)
        assert [record.offset for record in read_records(writer)][: len(kept)] == kept
        assert writer.append_one(b"%d" % expected, b"key", (), 5000).offset == expected
        writer.close()
    assert offsets(fs) == [*kept, END, END + 1]
    assert verify(fs).ok, verify(fs).damages


def test_a_gap_is_accepted(fs: MemoryFileSystem) -> None:
    for kind in ("log", *SIDECARS):
        fs.remove(path_of(SECOND, kind))
    report = repair(fs, "drop-damaged")
    assert [(each.first_offset, each.last_offset) for each in report.lost] == [(8, 15)]
    assert verify(fs).ok
    assert offsets(fs) == all_but(*range(8, 16))


def test_a_log_cut_short_keeps_what_is_left(fs: MemoryFileSystem) -> None:
    with fs.open(path_of(SECOND), "w") as file:
        file.truncate(headers(fs, SECOND)[2].position + 10)
    report = repair(fs, "drop-damaged")
    assert [(each.first_offset, each.last_offset) for each in report.lost if each.offsets] == [(12, 15)]
    assert verify(fs).ok
    assert offsets(fs) == all_but(12, 13, 14, 15)


def test_an_older_format_is_never_dropped(fs: MemoryFileSystem) -> None:
    data = bytearray(fs.read_file(path_of(SECOND)))
    for header in headers(fs, SECOND):
        data[header.position + 16] = 3
    fs.write_file(path_of(SECOND), data, sync=True)
    before = snapshot(fs)
    for action in ("drop-damaged", "truncate"):
        with pytest.raises(UnsupportedFormat):
            repair(fs, action)
    assert snapshot(fs) == before


# -- truncate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "row", "left"), [(FIRST, 0, 0), (FIRST, 2, 4), (SECOND, 0, 8), (SECOND, 1, 10), (ACTIVE, 2, 20)]
)
def test_the_log_ends_before_the_damage(fs: MemoryFileSystem, base: int, row: int, left: int) -> None:
    harm(fs, base, row)
    report = repair(fs, "truncate")
    assert report.lost_records == END - left
    assert offsets(fs) == list(range(left))
    assert verify(fs).ok, verify(fs).damages
    check_life_goes_on(fs, list(range(left)))


def test_everything_behind_the_cut_is_kept_as_torn(fs: MemoryFileSystem) -> None:
    position = headers(fs, FIRST)[1].position
    harm(fs, FIRST, 1)
    logs = {base: fs.read_file(path_of(base)) for base in (FIRST, SECOND, ACTIVE)}
    repair(fs, "truncate")
    assert fs.read_file(f"{path_of(FIRST)}.torn-{position}") == logs[FIRST][position:]
    assert fs.read_file(f"{path_of(SECOND)}.torn-0") == logs[SECOND]
    assert fs.read_file(f"{path_of(ACTIVE)}.torn-0") == logs[ACTIVE]


# -- all of them -------------------------------------------------------------------------------------------

ACTIONS = ("rebuild-indexes", "drop-damaged", "truncate")


def harm_everything(fs: MemoryFileSystem) -> None:
    harm(fs, SECOND, 1)
    harm(fs, ACTIVE, 2)
    fs.write_file(path_of(FIRST, "index"), b"garbage", sync=True)
    fs.write_file(path_of(FIRST, "seal"), b"garbage", sync=True)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_dry_run_says_the_same_and_changes_nothing(fs: MemoryFileSystem, action: str) -> None:
    harm_everything(fs)
    before = snapshot(fs)
    said = repair(fs, action, dry_run=True)
    assert snapshot(fs) == before
    done = repair(fs, action)
    assert (said.actions, said.lost, said.lost_records) == (done.actions, done.lost, done.lost_records)
    assert (said.dry_run, done.dry_run) == (True, False)
    assert snapshot(fs) != before


def settle(files: Files) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_dir(DIRECTORY)
    for name, data in files.items():
        fs.write_file(f"{DIRECTORY}/{name}", data, sync=True)
    fs.sync_dir(DIRECTORY)
    fs.sync_dir("/data")
    fs.sync_dir("/")
    return fs


def calls_of(files: Files, action: str) -> int:
    fs = settle(files)
    before = len(fs.calls)
    repair(fs, action)
    return len(fs.calls) - before


def crash(files: Files, action: str, call: int, mode: str) -> MemoryFileSystem:
    fs = settle(files)
    fs.crash_at(call)
    with pytest.raises(SimulatedCrash):
        repair(fs, action)
    return fs.survivor(mode, random.Random(call))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["kill", "drop", "torn", "reorder"])
@pytest.mark.parametrize(
    ("action", "base", "row"),
    [
        ("drop-damaged", SECOND, 1),
        ("drop-damaged", ACTIVE, 1),
        ("truncate", SECOND, 1),
        ("truncate", ACTIVE, 1),
    ],
)
def test_a_crash_at_any_call(fs: MemoryFileSystem, action: str, base: int, row: int, mode: str) -> None:
    """What was readable before the damage stays so, nothing wrong is served, and a second try ends well."""
    harm(fs, base, row)
    files = snapshot(fs)
    lost = base + 2 * row
    done = list(range(lost)) if action == "truncate" else all_but(lost, lost + 1)
    for call in range(1, calls_of(files, action) + 1):
        after = crash(files, action, call, mode)
        open_writer(after).close()  # as the next start would: settles what was half replaced
        try:
            assert offsets(after) == done, call
        except CorruptionError:
            assert readable_around(after, lost) == lost, call
        repair(after, action)
        assert offsets(after) == done, call
        # A power cut between two renames can cost an index; what it costs is a rebuild.
        assert all(damage.derived for damage in verify(after).damages), (call, verify(after).damages)
        repair(after, "rebuild-indexes")
        assert verify(after).ok, (call, verify(after).damages)
        assert open_writer(after).next_offset == END, call


def readable_around(fs: MemoryFileSystem, lost: int) -> int:
    """How far the log reads from its start."""
    read: list[Record] = []
    with contextlib.suppress(CorruptionError):
        read.extend(read_records(PartitionFollower(location_of(fs))))
    return len(read)


@pytest.mark.parametrize("action", ACTIONS)
def test_through_the_store(fs: MemoryFileSystem, action: str) -> None:
    harm_everything(fs)
    with stratalog.open("/data", fs=fs, background=False) as store:
        topic = store.topic("t")
        report = store.repair("t", 0, action=action)
        assert report.actions != ["nothing to do"]
        topic.append(b"24", partition=0)
        found: dict[str, Callable[[], list[int]]] = {
            "drop-damaged": lambda: [*all_but(10, 11, 20, 21), 24],
            "truncate": lambda: [*range(10), 24],
        }
        if action in found:
            assert [record.offset for record in topic.read(0)] == found[action]()
        else:
            assert stratalog.verify(store).damages
