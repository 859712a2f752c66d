"""Every bit of a small sealed segment and of everything beside it, flipped one at a time.

However a partition is opened after that, reading it by offset, by time and by key gives the right data or
a named error, never wrong data and never another exception. The leader epoch of a batch (bytes 12 to 15 of
its header) is no data: flipping it changes nothing. And every byte of the last three batches cut off: what
is left is a clean prefix.

Which bits: all of the sealed segment's files, of `stratalog.tail` and of `stratalog.settings`. Of the active
segment's files, which other tests wear out, and of the root's small texts every fifth bit. Where a checksum
covers a bit a few questions are put to a reader, and for half of the bits to a writer; where none does (the
indexes, and what a batch's CRC leaves out) many, to both. The files of the partition are flipped under the
partition's own reader and writer, which is what makes 10,000 flips affordable; the files of the root under
the whole store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import stratalog
from stratalog import Record
from stratalog.config import TopicConfig
from stratalog.errors import CorruptionError, FormatError
from stratalog.format import batch as batches
from stratalog.format.checkpoints import RECOVERY_POINT, pack_offsets
from stratalog.format.metadata import CLEAN_SHUTDOWN
from stratalog.fs import HandleCache, MemoryFileSystem
from stratalog.log.check.verify import verify_partition
from stratalog.log.context import LogContext, PartitionLocation
from stratalog.log.read.follower import PartitionFollower
from stratalog.log.read.list_offsets import offset_for_time
from stratalog.log.read.lookup import history_backwards
from stratalog.log.read.reader import KeyedView, read_records
from stratalog.log.write.recovery import OpenAs, open_partition
from stratalog.log.write.writer import PartitionWriter

ROOT, TOPIC = "/data", "events"
DIRECTORY = f"{ROOT}/{TOPIC}-0"
SETTINGS = {"key.index.enable": True, "index.interval.bytes": 0, "message.timestamp.after.max.ms": 2**62}
CONFIG = TopicConfig(key_index_enable=True, index_interval_bytes=0, message_timestamp_after_max_ms=2**62)
KEYLESS = replace(CONFIG, key_index_enable=False)
"""Without a key index to build, opening takes the active segment's indexes from disk."""
FIRST, FLIPPED, ACTIVE = 0, 2, 12
"""Base offsets of the three segments."""
KEYS = (b"a", b"b", b"t", b"none")
TIMES = (0, 1005, 1011, 1020, 1031, 1042, 1100, 9999)
STARTS = (3, 5, 7, 10, 12, 15)

Files = dict[str, bytes]


class FixedClock:
    """The same moment for ever, so that a store is the same bytes each time."""

    def now_ms(self) -> int:
        return 5_000

    def monotonic_s(self) -> float:
        return 0.0


def quiet(message: str) -> None:
    """Warnings are expected by the thousand here."""


def transactional(value: bytes, sequence: int) -> bytes:
    encoded, _ = batches.encode_records(
        [Record(value, b"t", (), 1030 + sequence)],
        0,
        options=batches.BatchOptions(
            base_offset=0,
            leader_epoch=0,
            now_ms=0,
            timestamp_type=0,
            codec=0,
            level=None,
            max_bytes=1000,
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        ),
    )
    return bytes(encoded.data)


@functools.cache
def build() -> Files:
    """A store of three segments; the middle one holds a batch of every kind."""
    fs = MemoryFileSystem(clock=lambda: 0)
    with stratalog.open(ROOT, fs=fs, clock=FixedClock(), background=False) as store:
        topic = store.create_topic(TOPIC, partitions=1, config=SETTINGS)
        topic.append_many([Record(b"zero", b"a", (), 1000), Record(b"one", b"b", (), 1001)])
        topic.roll()
        topic.append_many(
            [Record(b"two", b"a", (("h", b"x"), ("n", None)), 1010), Record(None, b"b", (), 1009)]
        )
        store.alter_topic(TOPIC, {"compression.type": "gzip"})
        topic.append_many([Record(b"four" * 5, b"a", (), 1020), Record(b"five" * 5, b"c", (), 1021)])
        store.alter_topic(TOPIC, {"compression.type": None})
        topic.append_batches(0, transactional(b"six", 0))
        topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=False)
        topic.append_batches(0, transactional(b"eight", 1))
        topic.end_transaction(0, producer_id=7, producer_epoch=0, commit=True)
        topic.append(b"ten", None, (), 1040)
        topic.append(b"eleven", b"b", (), 1041)
        topic.roll()
        for number in range(4):
            value = b"active-%d" % number
            topic.append_many(
                [Record(value, b"a", (), 1050 + number), Record(value, b"b", (), 1050 - number)]
            )
        assert [segment.base_offset for segment in topic.segments()] == [FIRST, FLIPPED, ACTIVE]
    return read_tree(fs, ROOT)


def read_tree(fs: MemoryFileSystem, path: str) -> Files:
    found: Files = {}
    for name in fs.list_dir(path):
        each = f"{path}/{name}"
        if fs.stat(each).is_dir:
            found |= read_tree(fs, each)
        else:
            found[each] = fs.read_file(each)
    return found


def filesystem(files: Files) -> MemoryFileSystem:
    fs = MemoryFileSystem(clock=lambda: 0)
    fs.make_dir(DIRECTORY)
    for path, data in files.items():
        fs.write_file(path, data, sync=False)
    return fs


def follow(fs: MemoryFileSystem) -> KeyedView:
    context = LogContext(fs, HandleCache(fs, 100), FixedClock(), quiet)
    return PartitionFollower(PartitionLocation(context, DIRECTORY, TOPIC, 0))


def write(fs: MemoryFileSystem, *, clean: bool = True, keyed: bool = True) -> PartitionWriter:
    context = LogContext(fs, HandleCache(fs, 100), FixedClock(), quiet)
    location = PartitionLocation(context, DIRECTORY, TOPIC, 0)
    config = CONFIG if keyed else KEYLESS
    state, _ = open_partition(location, config, OpenAs(clean=clean))
    return PartitionWriter(location, config, state)


def newest_first(view: KeyedView, key: bytes) -> list[Record]:
    return list(history_backwards(view, key))


FEW = ("everything", "committed", "from 7", "at 1020", "key b'a'", "again")
FEWER = ("everything", "key b'a'")


def ask(view: KeyedView) -> dict[str, Callable[[], Any]]:
    """The questions put to a partition, each by itself, so that one error hides no other answer."""
    questions: dict[str, Callable[[], Any]] = {
        "everything": lambda: read_records(view),
        "committed": lambda: read_records(view, isolation="read_committed"),
    }
    for start in STARTS:
        questions[f"from {start}"] = functools.partial(read_records, view, start)
    for time in TIMES:
        questions[f"at {time}"] = functools.partial(found_at, view, time)
    for key in KEYS:
        questions[f"key {key!r}"] = functools.partial(newest_first, view, key)
    # Once more: what the first round cached or rebuilt must not lead the second one astray.
    questions["again"] = questions["from 7"]
    return questions


def found_at(view: KeyedView, time: int) -> tuple[int, int] | None:
    """Without the leader epoch, which no CRC covers."""
    found = offset_for_time(view, time)
    return None if found is None else (found.offset, found.timestamp)


class Answer(NamedTuple):
    """What came before the error, if there was one."""

    value: Any
    error: FormatError | None


def answer(question: Callable[[], Any]) -> Answer:
    records: list[Record] = []
    try:
        value = question()
        if not isinstance(value, Iterator):
            return Answer(value, None)
        records.extend(value)
    except FormatError as error:
        return Answer(records, error)
    return Answer(records, None)


@functools.cache
def truth() -> dict[str, Any]:
    """The right answers, which opening in either way must give as long as nothing is damaged."""
    right = {name: answer(each).value for name, each in ask(follow(filesystem(build()))).items()}
    assert len(right["everything"]) == 18
    assert [record.offset for record in right["everything"][:12]] == [0, 1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 13]
    assert [record.offset for record in right["committed"][6:8]] == [8, 10]
    assert right == {name: answer(each).value for name, each in ask(write(filesystem(build()))).items()}
    return right


def judge(view: KeyedView, *, errors_allowed: bool = True, few: tuple[str, ...] = ()) -> list[str]:
    """What is wrong with the answers of a view, to a few questions or to all."""
    wrong = []
    questions = ask(view)
    for name in few or questions:
        question = questions[name]
        right = truth()[name]
        value, error = answer(question)
        if error is None:
            good = value == right
        else:
            good = errors_allowed and (not isinstance(right, list) or value == right[: len(value)])
        if not good:
            wrong.append(f"{name}: {value!r} {error!r}")
    return wrong


FILES = sorted(
    f"{DIRECTORY}/{base:020d}.{kind}"
    for base, kinds in {
        FLIPPED: ("log", "index", "timeindex", "txnindex", "seal", "keyindex", "snapshot"),
        ACTIVE: ("log", "index", "timeindex", "seal", "keyindex", "snapshot"),
        20: ("snapshot",),
    }.items()
    for kind in kinds
) + [f"{DIRECTORY}/stratalog.tail", f"{DIRECTORY}/leader-epoch-checkpoint", f"{DIRECTORY}/partition.metadata"]


def header_bytes(path: str, first: int, last: int) -> set[int]:
    """Where these bytes of every batch header lie in a log; nowhere in another file."""
    if not path.endswith(".log"):
        return set()
    return {
        header.position + byte for header in batches.scan(build()[path]) for byte in range(first, last + 1)
    }


def checked_bytes(path: str) -> set[int]:
    """The bytes of a file that some checksum covers."""
    everything = set(range(len(build()[path])))
    if path.endswith("index") and not path.endswith(".keyindex"):
        return set()
    return everything - header_bytes(path, 0, 20)


def test_the_segment_holds_what_it_should() -> None:
    scan = batches.scan(build()[f"{DIRECTORY}/{FLIPPED:020d}.log"])
    headers = list(scan)
    assert {header.codec for header in headers} == {0, 1}
    assert {header.is_control for header in headers} == {True, False}
    assert {header.is_transactional for header in headers} == {True, False}
    assert max(len(data) for path, data in build().items() if not path.endswith(".reserve")) < 4096
    assert set(FILES) <= set(build())
    truth()


def flips(path: str) -> Iterator[tuple[int, int]]:
    every = 1 if f"{FLIPPED:020d}" in path or path.endswith((".tail", ".settings")) else 5
    for number in range(0, len(build()[path]) * 8, every):
        yield divmod(number, 8)


class Flipper:
    """The store on a filesystem in memory, one bit of one file flipped at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.good = build()[path]
        self.fs = filesystem(build())

    def flip(self, byte: int, bit: int) -> None:
        self._put(byte, self.good[byte] ^ (1 << bit))

    def undo(self, byte: int) -> None:
        self._put(byte, self.good[byte])
        self.fs.calls.clear()

    def _put(self, byte: int, value: int) -> None:
        with self.fs.open(self.path, "w") as file:
            file.pwrite(bytes([value]), byte)
        self.fs.calls.clear()

    def changes(self) -> list[str]:
        """What was changed since the flip. The filesystem is then a new one, with the same flip gone."""
        changed = [call for call in self.fs.calls if not call.startswith("sync")]
        if changed:
            self.fs = filesystem(build())
        return changed


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.removeprefix(f"{DIRECTORY}/").lstrip("0"))
def test_every_bit_of_a_partition(path: str) -> None:
    flipper = Flipper(path)
    epochs, checked = header_bytes(path, 12, 15), checked_bytes(path)
    wrong = []
    for byte, bit in flips(path):
        allowed, few = byte not in epochs, byte in checked
        flipper.flip(byte, bit)
        found = judge(follow(flipper.fs), errors_allowed=allowed, few=FEW if few else ())
        found = [f"read-only: {each}" for each in found]
        found += [f"a reader changed something: {each}" for each in flipper.changes()]
        if not few or bit % 2 == byte % 2:
            found += judge_writer(flipper, byte, bit, allowed=allowed, few=FEWER if few else ())
        flipper.undo(byte)
        wrong += [f"byte {byte} bit {bit}, {each}" for each in found]
    assert not wrong, f"{len(wrong)} wrong answers, such as\n" + "\n".join(wrong[:20])


def judge_writer(flipper: Flipper, byte: int, bit: int, *, allowed: bool, few: tuple[str, ...]) -> list[str]:
    """Open for writing: after a clean stop or not, with keys or without, in turn."""
    try:
        writer = write(flipper.fs, clean=bit % 2 == 0, keyed=(byte + bit // 2) % 2 == 0)
        found = judge(writer, errors_allowed=allowed, few=few)
    except FormatError as error:
        found = [] if allowed else [repr(error)]
    # Indexes may be made again; no log is touched below the synced end.
    found += [each for each in flipper.changes() if each.endswith(".log")]
    return [f"writable: {each}" for each in found]


ROOT_FILES = [
    f"{ROOT}/{name}"
    for name in (
        "stratalog.settings",
        "meta.properties",
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    )
]


@pytest.mark.parametrize("path", ROOT_FILES, ids=lambda path: path.rsplit("/", 1)[-1])
def test_every_bit_of_the_root(path: str) -> None:
    flipper = Flipper(path)
    wrong = []
    for byte, bit in flips(path):
        for read_only in (True, False):
            if read_only or (byte * 8 + bit) % 4 == 0:
                flipper.flip(byte, bit)
                right = truth()["everything"]
                value, error = answer(functools.partial(_read_store, flipper.fs, read_only))
                if value != right if error is None else value:
                    wrong.append(f"byte {byte} bit {bit}, read_only={read_only}: {value!r} {error!r}")
                flipper.changes()
        flipper.undo(byte)
    assert not wrong, f"{len(wrong)} wrong answers, such as\n" + "\n".join(wrong[:20])


def _read_store(fs: MemoryFileSystem, read_only: bool) -> list[Record]:
    with stratalog.open(ROOT, fs=fs, clock=FixedClock(), read_only=read_only, background=False) as store:
        return list(store.topic(TOPIC).read(0))


LOG = f"{DIRECTORY}/{ACTIVE:020d}.log"


def cuts() -> Iterator[tuple[int, int]]:
    """Every length of the active log inside its last three batches, and the end offset it leaves."""
    headers = list(batches.scan(build()[LOG]))
    for header in headers[-3:]:
        for size in range(header.position, header.position + header.size):
            yield size, header.base_offset


def left_of(end: int) -> list[Record]:
    return [record for record in truth()["everything"] if record.offset < end]


def test_every_byte_of_the_last_three_batches_cut_off() -> None:
    """Never synced, so far as anybody knows: a torn tail, cut at the last whole batch, and life goes on.

    Neither a tail nor a mark of a clean stop tells more, and the recovery point is where the segment begins.
    """
    files = {path: data for path, data in build().items() if not path.endswith((".tail", CLEAN_SHUTDOWN))}
    files[f"{ROOT}/{RECOVERY_POINT}"] = pack_offsets({(TOPIC, 0): ACTIVE})
    for size, end in cuts():
        fs = filesystem({**files, LOG: files[LOG][:size]})
        assert list(read_records(follow(fs))) == left_of(end), size
        writer = write(fs, clean=False)
        assert list(read_records(writer)) == left_of(end), size
        assert writer.next_offset == end, size
        placed = writer.append_one(b"new", b"a", (), 2000)
        writer.close()
        assert placed.offset == end
        again = list(read_records(write(fs)))
        assert again[:-1] == left_of(end), size
        assert (again[-1].offset, again[-1].value) == (end, b"new"), size


def test_every_byte_of_the_last_three_synced_batches_cut_off() -> None:
    """Known to have been synced: the loss is said, and no offset that was given out is given out again."""
    for size, end in cuts():
        fs = filesystem({**build(), LOG: build()[LOG][:size]})
        found = answer(functools.partial(read_records, follow(fs)))
        assert found.value == left_of(end), size
        location = PartitionLocation(
            LogContext(fs, HandleCache(fs, 100), FixedClock(), quiet), DIRECTORY, TOPIC, 0
        )
        state, report = open_partition(location, CONFIG, OpenAs(clean=False))
        assert report.damages, size
        writer = PartitionWriter(location, CONFIG, state)
        found = answer(functools.partial(read_records, writer))
        assert found.value == left_of(end), size
        assert isinstance(found.error, CorruptionError), size
        assert writer.append_one(b"new", b"a", (), 2000).offset == 20, size
        writer.close()


def test_without_a_tail_the_recovery_point_tells_what_was_synced() -> None:
    """A reader names the loss as the next writer does, and shows what is left."""
    files = {path: data for path, data in build().items() if not path.endswith((".tail", CLEAN_SHUTDOWN))}
    for size, end in cuts():
        fs = filesystem({**files, LOG: files[LOG][:size]})
        found = answer(functools.partial(read_records, follow(fs)))
        assert found.value == left_of(end), size
        assert isinstance(found.error, CorruptionError), size


def test_life_goes_on_beside_damage() -> None:
    """A damaged batch in the active segment: appending, rolling and closing work, the rest is readable."""
    flipper = Flipper(LOG)
    damaged = batches.scan(flipper.good).header(1)
    for number in range(damaged.position * 8, (damaged.position + damaged.size) * 8, 13):
        byte, bit = divmod(number, 8)
        if byte in header_bytes(LOG, 12, 15):
            continue
        flipper.flip(byte, bit)
        fs = flipper.fs
        for clean, keyed in ((False, True), (True, False)):
            writer = write(fs, clean=clean, keyed=keyed)
            assert writer.append_one(b"new", b"a", (), 2000).offset == writer.next_offset - 1
            writer.roll()
            assert list(read_records(writer, damaged.last_offset + 1))[:4] == truth()["everything"][-4:], (
                number
            )
            writer.close()
        view = follow(fs)
        assert [record.offset for record in read_records(view, damaged.last_offset + 1)] == [
            16,
            17,
            18,
            19,
            20,
            21,
        ]
        found = answer(functools.partial(read_records, view))
        assert found.value == left_of(damaged.base_offset), number
        assert isinstance(found.error, FormatError), number
        flipper.changes()


def test_every_flip_in_the_sealed_segment_is_found_by_verify() -> None:
    """Every seventh bit of the sealed segment's files: named, with the offsets lost when records are."""
    for path in FILES:
        if f"{FLIPPED:020d}" not in path:
            continue
        flipper = Flipper(path)
        epochs = header_bytes(path, 12, 15)
        headers = list(batches.scan(flipper.good)) if path.endswith(".log") else []
        for number in range(0, len(flipper.good) * 8, 7):
            byte, bit = divmod(number, 8)
            flipper.flip(byte, bit)
            report = verify_partition(follow(flipper.fs))
            flipper.undo(byte)
            damage = report.damages[0]
            where = (byte, bit, report.damages)
            assert damage.path == path, where
            assert damage.derived == (not path.endswith(".log") or byte in epochs), where
            # A key index is bound to every byte of its log, the leader epochs too.
            others = {f"{DIRECTORY}/{FLIPPED:020d}.keyindex"} if byte in epochs else set()
            assert {each.path for each in report.damages[1:]} == others, where
            if not damage.derived:
                (hit,) = [each for each in headers if each.position <= byte < each.position + each.size]
                assert (damage.start, damage.end) == (hit.position, hit.position + hit.size), where
                assert (damage.first_offset, damage.last_offset) == (hit.base_offset, hit.last_offset), where


def test_what_is_undamaged_verifies() -> None:
    report = verify_partition(follow(filesystem(build())))
    assert report.ok, report.damages
    assert (report.segments, report.records) == (3, 18)
