"""Offsets that are lost between segments, or at their end, are named by every way of reading."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

import stratalog
from stratalog import Record, Store, errors
from stratalog.format import seal as seals
from stratalog.fs import MemoryFileSystem
from stratalog.log.check.damage import Damage
from stratalog.log.read.reader import LogView, iter_chunks
from stratalog.log.segment.segment import Segment
from stratalog.store.copies.clone import clone
from stratalog.store.copies.topic_file import export_topic
from stratalog.store.topic import Topic

NOW = 1_760_000_000_000
EACH, SEALED = 20, 4
END = EACH * SEALED + 5
KINDS = ("log", "index", "timeindex", "seal", "keyindex")


def path_of(base: int, kind: str = "log") -> str:
    return f"/d/t-0/{base:020d}.{kind}"


def written(fs: MemoryFileSystem, **config: Any) -> None:
    """Four sealed segments of twenty records, and an active one of five; one batch for each record."""
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t", config={"key.index.enable": True, **config})
        for at in range(END):
            if at and at % EACH == 0:
                topic.roll()
            topic.append(b"%d" % at, b"k%d" % at, timestamp=NOW + at)


def remove(fs: MemoryFileSystem, base: int, kinds: tuple[str, ...] = KINDS) -> None:
    for kind in kinds:
        fs.remove(path_of(base, kind))


class Sink:
    def write(self, data: bytes) -> int:
        return len(data)


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def scanned(topic: Topic, **options: Any) -> list[int]:
    found: list[int] = []
    for batch in topic.scan(columns=["offset"], **options):
        found += batch.column("offset").to_pylist()
    return found


READS: dict[str, Callable[[Store, Topic], object]] = {
    "read": lambda store, topic: list(topic.read()),
    "read in the gap": lambda store, topic: list(topic.read(0, 45, 50)),
    "read since a time": lambda store, topic: list(topic.read(0, 5, since=NOW + 65)),
    "read until a time": lambda store, topic: list(topic.read(0, 45, until=NOW + 30)),
    "scan": lambda store, topic: scanned(topic),
    "scan of a time": lambda store, topic: scanned(topic, since=NOW + 42, until=NOW + 44),
    "at": lambda store, topic: topic.at(45),
    "get": lambda store, topic: topic.get(b"k3"),
    "get of a lost key": lambda store, topic: topic.get(b"k45"),
    "history": lambda store, topic: list(topic.history(b"k3")),
    "time": lambda store, topic: topic.offset_for_time(0, NOW + 45),
    "clone": lambda store, topic: clone(store, "/copy", fs=store_fs(store)),
    "export": lambda store, topic: export_topic(store, "t", Sink()),
}


def store_fs(store: Store) -> Any:
    return store.partitions.context.fs


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("how", READS)
def test_a_lost_segment_is_named(how: str, sealed: bool, read_only: bool) -> None:
    fs = MemoryFileSystem()
    written(fs)
    remove(fs, 40)
    if not sealed:
        for base in (0, 20, 60):
            fs.remove(path_of(base, "seal"))
    with stratalog.open("/d", fs=fs, read_only=read_only, background=False) as store:
        topic = store.topic("t")
        with pytest.raises(errors.CorruptionError, match="offsets 40-59 are missing"):
            READS[how](store, topic)


@pytest.mark.parametrize("read_only", [True, False])
def test_everything_around_it_can_be_read(read_only: bool) -> None:
    fs = MemoryFileSystem()
    written(fs)
    remove(fs, 40)
    with stratalog.open("/d", fs=fs, read_only=read_only, background=False) as store:
        topic = store.topic("t")
        assert offsets(topic.read(0, 10, 40)) == list(range(10, 40))
        assert offsets(topic.read(0, 60)) == list(range(60, END))
        assert scanned(topic, end=40) == list(range(40))
        assert scanned(topic, start=60) == list(range(60, END))
        assert topic.at(39) is not None
        assert topic.get(b"k70") is not None
        seen: list[int] = []
        with pytest.raises(errors.CorruptionError):
            seen.extend(batch.num_rows for batch in topic.scan())
        assert sum(seen) == 40, "what lies before the gap is delivered first"
        told: list[Damage] = []
        assert offsets(topic.read(0, 10, skip_damaged=told.append)) == [*range(10, 40), *range(60, END)]
        assert [(each.first_offset, each.last_offset) for each in told] == [(40, 59)]


@pytest.mark.parametrize("how", [name for name in READS if name != "get of a lost key"])
@pytest.mark.parametrize("sealed", [True, False])
def test_an_emptied_segment_is_named(how: str, sealed: bool) -> None:
    fs = MemoryFileSystem()
    written(fs)
    fs.write_file(path_of(40), b"", sync=True)
    if not sealed:
        remove(fs, 40, KINDS[1:])
    named = pytest.raises(errors.CorruptionError, match=r"offsets 40-59 are missing|0{18}40.log at byte 0")
    with stratalog.open("/d", fs=fs, read_only=True) as store, named:
        READS[how](store, store.topic("t"))


def test_the_seal_of_another_segment_drops_no_record() -> None:
    fs = MemoryFileSystem()
    written(fs)
    assert fs.stat(path_of(20)).size == fs.stat(path_of(40)).size
    fs.write_file(path_of(40, "seal"), fs.read_file(path_of(20, "seal")), sync=True)
    with stratalog.open("/d", fs=fs, read_only=True) as store:
        topic = store.topic("t")
        assert scanned(topic) == offsets(topic.read()) == list(range(END))


@pytest.mark.parametrize("trace", ["checkpoint", "batch"])
def test_a_gap_of_another_brokers_cleaner_is_no_damage(trace: str) -> None:
    fs = MemoryFileSystem()
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t")
        for at in range(9):
            if at in (3, 6):
                topic.roll()
            topic.append_many([Record(b"v", b"k", (), NOW)])
    for base in (0, 3, 6):
        remove(fs, base, ("seal",))
    remove(fs, 3, ("log", "index", "timeindex"))
    if trace == "checkpoint":
        fs.write_file("/d/cleaner-offset-checkpoint", b"0\n1\nt 0 6\n", sync=True)
    else:
        first = fs.read_file(path_of(0))
        size = len(first) // 3
        fs.write_file(path_of(0), first[:size] + first[2 * size :], sync=True)
        remove(fs, 0, ("index", "timeindex"))
    with stratalog.open("/d", fs=fs, read_only=True) as store:
        topic = store.topic("t")
        wanted = [0, 1, 2, 6, 7, 8] if trace == "checkpoint" else [0, 2, 6, 7, 8]
        assert offsets(topic.read()) == scanned(topic) == wanted
        assert topic.at(4) is None


@pytest.mark.parametrize("base", [0, 40])
def test_a_segment_that_another_brokers_cleaner_emptied_is_no_damage(base: int) -> None:
    """Its time index is empty too: one that held records when it was closed has an entry there."""
    fs = MemoryFileSystem()
    written(fs)
    for each in range(0, END, EACH):
        with suppress(FileNotFoundError):
            remove(fs, each, ("seal", "keyindex"))
    fs.write_file(path_of(base), b"", sync=True)
    fs.write_file(path_of(base, "index"), b"", sync=True)
    named = pytest.raises(errors.CorruptionError, match=f"offsets {base}-{base + 19} are missing")
    with stratalog.open("/d", fs=fs, read_only=True) as store, named:
        list(store.topic("t").read())
    fs.write_file(path_of(base, "timeindex"), b"", sync=True)
    kept = [offset for offset in range(END) if not base <= offset < base + EACH]
    with stratalog.open("/d", fs=fs, read_only=True) as store:
        topic = store.topic("t")
        assert topic.log_start_offset(0) == 0
        assert offsets(topic.read()) == scanned(topic) == kept
        assert topic.at(base + 5) is None


@pytest.mark.parametrize("how", READS)
def test_the_synced_end_of_a_lost_active_segment_is_missed(how: str) -> None:
    fs = MemoryFileSystem()
    written(fs)
    fs.remove(path_of(80))
    with stratalog.open("/d", fs=fs, read_only=True) as store:
        topic = store.topic("t")
        assert topic.high_watermark(0) == END
        if how in ("read in the gap", "at", "time"):
            topic.at(45)
            with pytest.raises(errors.CorruptionError, match="offsets 80-82 are missing"):
                topic.at(82)
        elif how == "scan of a time":
            with pytest.raises(errors.CorruptionError, match="offsets 80-84 are missing"):
                scanned(topic, since=NOW + 82)
        else:
            with pytest.raises(errors.CorruptionError, match="offsets 80-84 are missing"):
                READS[how](store, topic)


@pytest.mark.parametrize("sealed", ["all", "others", "none"])
@pytest.mark.parametrize("gone", ["emptied", "removed"])
def test_verify_names_a_lost_segment_and_a_repair_accepts_it(sealed: str, gone: str) -> None:
    fs = MemoryFileSystem()
    written(fs)
    if gone == "removed":
        remove(fs, 40)
    else:
        fs.write_file(path_of(40), b"", sync=True)
        if sealed != "all":
            remove(fs, 40, KINDS[1:])
    if sealed == "none":
        for base in (0, 20, 60):
            fs.remove(path_of(base, "seal"))
    with stratalog.open("/d", fs=fs, read_only=True) as store:
        lost = [(each.first_offset, each.last_offset) for each in stratalog.verify(store).damages]
    assert lost == [(40, 59)]
    with stratalog.open("/d", fs=fs, background=False) as store:
        report = store.repair("t", 0, action="drop-damaged")
        assert [(each.first_offset, each.last_offset) for each in report.lost] == [(40, 59)]
        assert report.left == []
        assert stratalog.verify(store).ok
        wanted = [*range(40), *range(60, END)]
        assert offsets(store.topic("t").read()) == scanned(store.topic("t")) == wanted


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("how", [name for name in READS if name != "get of a lost key"])
def test_an_emptied_segment_without_a_seal_is_named_by_a_writer_too(how: str, read_only: bool) -> None:
    fs = MemoryFileSystem()
    written(fs)
    fs.write_file(path_of(40), b"", sync=True)
    remove(fs, 40, KINDS[1:])
    named = pytest.raises(errors.CorruptionError, match="offsets 40-59 are missing")
    with stratalog.open("/d", fs=fs, read_only=read_only, background=False) as store, named:
        READS[how](store, store.topic("t"))


CUT_READS = ["read", "scan", "get", "history", "clone", "export"]


@pytest.mark.parametrize("how", CUT_READS)
@pytest.mark.parametrize("left", [0, 1, 2, 4])
def test_an_active_segment_cut_below_its_synced_end_is_named(how: str, left: int) -> None:
    """So many of its five batches are left when a read-only store opens it."""
    fs = MemoryFileSystem()
    written(fs)
    size = fs.stat(path_of(80)).size
    with fs.open(path_of(80), "w") as file:
        file.truncate(size * left // 5)
    with stratalog.open("/d", fs=fs, read_only=True) as store:
        topic = store.topic("t")
        assert offsets(topic.read(0, 0, 80 + left)) == list(range(80 + left))
        with pytest.raises(errors.CorruptionError, match=f"{80:020d}.log|offsets {80 + left}-84"):
            READS[how](store, topic)
        lost = [(each.first_offset, each.last_offset) for each in stratalog.verify(store).damages]
        assert (80 + left, 84) in lost


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_the_only_segment_is_missed(how: str) -> None:
    """Nothing is left but what the tail says: readers, `verify` and every later open name the loss."""
    fs = MemoryFileSystem()
    with stratalog.open("/d", fs=fs, background=False) as store:
        store.create_topic("t").append_many([Record(b"%d" % at) for at in range(9)], sync=True)
        if how == "killed":
            fs = fs.survivor("kill", random.Random(1))
    fs.remove(path_of(0))
    with stratalog.open("/d", fs=fs, read_only=True, background=False) as reader:
        with pytest.raises(errors.CorruptionError, match="the file is gone"):
            list(reader.topic("t").read())
        assert {each.first_offset for each in stratalog.verify(reader).damages} == {0}
    with stratalog.open("/d", fs=fs, background=False) as store:
        assert any("offsets 0 to 8 were synced" in each for each in store.recovery[0].damages)
        assert store.topic("t").append(b"9").offset == 9
    for _ in range(2):
        with stratalog.open("/d", fs=fs, background=False) as store:
            with pytest.raises(errors.CorruptionError, match="offsets 0-8 are missing"):
                list(store.topic("t").read())
            assert offsets(store.topic("t").read(start=9)) == [9]
            assert [each.first_offset for each in stratalog.verify(store).damages] == [0]


@pytest.mark.parametrize("gone", ["emptied", "removed"])
def test_lost_synced_records_behind_a_cleaned_segment_are_named_until_a_repair(gone: str) -> None:
    """The seal of a cleaned segment allows gaps behind it; the loss of an active segment is another thing."""
    fs = MemoryFileSystem()
    first, last = 20, 29
    with stratalog.open("/d", fs=fs, background=False) as store:
        topic = store.create_topic("t", config={"cleanup.policy": "compact"})
        for at in range(last + 1):
            if at == first:
                topic.roll()
                store.compact("t", force=True)
            topic.append(b"%d" % at, b"k%d" % (at % 7))
    assert not seals.parse(fs.read_file(path_of(0, "seal"))).contiguous
    if gone == "emptied":
        fs.write_file(path_of(first), b"", sync=True)
    else:
        fs.remove(path_of(first))
    with stratalog.open("/d", fs=fs, background=False) as store:
        assert store.topic("t").append(b"new", b"k1").offset == last + 1
    for read_only in (True, False, True):
        with stratalog.open("/d", fs=fs, read_only=read_only, background=False) as store:
            damages = stratalog.verify(store).damages
            assert [(each.first_offset, each.last_offset) for each in damages] == [(first, last)]
            with pytest.raises(errors.CorruptionError, match=f"offsets {first}-{last} are missing"):
                list(store.topic("t").read())
    with stratalog.open("/d", fs=fs, background=False) as store:
        assert store.repair("t", 0, action="drop-damaged").left == []
        assert stratalog.verify(store).ok
        assert offsets(store.topic("t").read())[-1] == last + 1


@pytest.mark.parametrize("left", [0.0, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("base", [20, 80])
def test_a_log_that_was_cut_is_one_damage_and_its_records_are_counted(base: int, left: float) -> None:
    fs = MemoryFileSystem()
    written(fs)
    whole = fs.stat(path_of(base)).size
    with fs.open(path_of(base), "w") as file:
        file.truncate(int(whole * left) - (left == 1.0))
    with stratalog.open("/d", fs=fs, read_only=True, background=False) as store:
        [damage] = stratalog.verify(store).damages
    assert damage.path == path_of(base)
    assert damage.end == whole
    assert damage.reason
    with stratalog.open("/d", fs=fs, background=False) as store:
        report = store.repair("t", 0, action="drop-damaged", dry_run=True)
    assert report.lost_records == damage.offsets > 0


class LooksLate:
    """A view that misses a segment in the middle until it looks again."""

    def __init__(self, view: Any, deleted: int = 0) -> None:
        self._view = view
        self._late = True
        self._deleted = deleted

    @property
    def log_start_offset(self) -> int:
        return 0 if self._late else self._deleted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def segments(self) -> tuple[Segment, ...]:
        found = self._view.segments()
        return (found[0], *found[2:]) if self._late or self._deleted else found

    def refresh(self) -> None:
        self._late = False
        self._view.refresh()


def of_three_segments() -> Store:
    store = stratalog.open("/data", fs=MemoryFileSystem(), background=False)
    topic = store.create_topic("t")
    for value in (b"a", b"b", b"c"):
        topic.append(value)
        topic.roll()
    return store


def test_a_gap_is_damage_only_if_a_second_look_shows_it() -> None:
    with of_three_segments() as store:
        view = LooksLate(store.partitions.view("t", 0))
        found = iter_chunks(cast(LogView, view), 0, 3)
        assert [segment.base_offset for segment, _, _ in found] == [0, 1, 2]


def test_a_gap_below_the_log_start_was_deleted_meanwhile() -> None:
    with of_three_segments() as store:
        view = LooksLate(store.partitions.view("t", 0), deleted=2)
        with pytest.raises(errors.OffsetOutOfRangeError):
            list(iter_chunks(cast(LogView, view), 0, 3))
        skipped: list[Damage] = []
        view = LooksLate(store.partitions.view("t", 0), deleted=2)
        with pytest.raises(errors.OffsetOutOfRangeError):
            list(iter_chunks(cast(LogView, view), 0, 3, skip_damaged=skipped.append))
        assert skipped == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_log_without_a_tail_that_ends_before_its_recovery_point_is_damaged(left: int, clean: bool) -> None:
    """As a broker's, which has no tails: a reader says so, not only the next writer."""
    fs = MemoryFileSystem()
    written(fs)
    fs.remove("/d/t-0/stratalog.tail")
    for base in range(left * EACH, END, EACH):
        remove(fs, base, ("log",))
        for kind in KINDS[1:]:
            with suppress(FileNotFoundError):
                fs.remove(path_of(base, kind))
    if not clean:
        fs.remove("/d/.kafka_cleanshutdown")
    with stratalog.open("/d", fs=fs, read_only=True) as store:
        topic = store.topic("t")
        found: list[int] = []
        with pytest.raises(errors.CorruptionError):
            found += (record.offset for record in topic.read())
        assert found == list(range(left * EACH))
        with pytest.raises(errors.CorruptionError):
            scanned(topic)
        damages = stratalog.verify(store).damages
        assert (left * EACH, END - 1) in [(each.first_offset, each.last_offset) for each in damages]
