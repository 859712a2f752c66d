"""Staged commits: taken in exactly once, whole segments by rename, nothing left behind."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import errors
from stratalog.errors import StratalogError
from stratalog.format import journal as journals
from stratalog.fs import RealFileSystem
from stratalog.kernel import crc32c
from stratalog.store.journal import staging
from stratalog.store.journal.journal import Committed
from stratalog.testing import ManualClock, MemoryFileSystem
from tests.store.staged import DEAD, LIVE, stage, staged_files, values

BIG = 600
SMALL_SEGMENTS = {"segment.bytes": 4096, "index.interval.bytes": 200, "retention.ms": -1}


@pytest.fixture
def store() -> Iterator[stratalog.Store]:
    clock = ManualClock()
    fs = MemoryFileSystem(clock=clock.now_ns)
    with stratalog.open("/data/log", fs=fs, clock=clock, background=False) as opened:
        opened.create_topic("t", 2, SMALL_SEGMENTS)
        yield opened


def numbered(start: int, count: int, size: int = 10) -> list[bytes]:
    return [(b"%05d" % at).ljust(size, b".") for at in range(start, start + count)]


def test_a_commit_appends_what_was_staged(store: stratalog.Store) -> None:
    files = stage(store, "q", 0, {("t", 0): numbered(0, 5), ("t", 1): numbered(5, 3)})
    assert store.commit_staged("q", 0, files) == Committed(False, 8)
    assert values(store, "t", 0) == numbered(0, 5)
    assert values(store, "t", 1) == numbered(5, 3)
    assert staged_files(store) == []
    assert store.topic("t").get(b"0", 0) is not None


def test_files_are_taken_in_the_order_given(store: stratalog.Store) -> None:
    first = stage(store, "q", 0, {("t", 0): numbered(0, 3)}, number=0)
    second = stage(store, "q", 0, {("t", 0): numbered(3, 3)}, number=1)
    store.commit_staged("q", 0, [*second, *first])
    assert values(store, "t") == numbered(3, 3) + numbered(0, 3)


def test_a_replayed_batch_is_a_no_op_and_its_files_go(store: stratalog.Store) -> None:
    for batch in range(3):
        store.commit_staged("q", batch, stage(store, "q", batch, {("t", 0): numbered(batch, 1)}))
    for batch in (2, 0):
        again = stage(store, "q", batch, {("t", 0): numbered(100, 4)})
        assert store.commit_staged("q", batch, again) == Committed(True, 0)
    assert values(store, "t") == numbered(0, 3)
    assert staged_files(store) == []


def test_ids_are_remembered_by_the_next_life(store: stratalog.Store) -> None:
    fs, clock = store.partitions.context.fs, store.partitions.context.clock
    store.commit_staged("q", 4, stage(store, "q", 4, {("t", 0): numbered(0, 2)}))
    store.commit_staged("job", 0, stage(store, "job", 0, {("t", 0): numbered(2, 2)}), job=True)
    store.close()
    with stratalog.open("/data/log", fs=fs, clock=clock, background=False) as again:
        assert again.commit_staged("q", 4, []).duplicate
        assert again.commit_staged("job", 0, [], job=True).duplicate
        assert not again.commit_staged("q", 5, stage(again, "q", 5, {("t", 0): numbered(4, 1)})).duplicate
        assert values(again, "t") == numbered(0, 5)


def test_what_is_remembered_is_bounded() -> None:
    state = journals.Journal()
    for at in range(journals.MAX_STREAMS + 50):
        state = state.with_done(journals.Entry(f"q{at}", at, ()), now_ms=at)
        state = state.with_done(journals.Entry(f"j{at}", 0, (), job=True), now_ms=at)
    assert len(state.streams) == journals.MAX_STREAMS
    assert len(state.jobs) == journals.MAX_JOBS
    assert not state.has("q0", 0)
    assert state.has("q1049", 1049)
    assert state.has("q1049", 7)
    assert not state.has("q1049", 1050)
    assert journals.parse(journals.pack(state)) == state
    assert len(journals.pack(state)) < 64 << 10


def test_whole_segments_are_adopted_by_rename(store: stratalog.Store) -> None:
    topic = store.topic("t")
    topic.append(b"before", b"k", partition=0)
    wanted = numbered(0, 40, BIG)
    files = stage(store, "q", 0, {("t", 0): wanted})
    whole = [file for file in files if file.whole]
    assert len(files) > 4
    assert len(whole) == len(files) - 1
    fs = store.partitions.context.fs
    inodes = {fs.stat(f"{staging.root_of('/data/log')}/{file.name}").inode for file in whole}
    store.commit_staged("q", 0, files)
    topic.append(b"after", b"k", partition=0)
    assert values(store, "t") == [b"before", *wanted, b"after"]
    segments = topic.segments(0)
    assert inodes <= {fs.stat(segment.path).inode for segment in segments}
    assert all(segment.records is not None for segment in segments[:-1])
    middle = segments[2]
    assert next(topic.read(0, middle.base_offset + 1)).offset == middle.base_offset + 1
    assert topic.scan([0], ["value"]).read_all().num_rows == 42
    assert staged_files(store) == []
    with stratalog.open("/data/log", fs=fs, read_only=True) as beside:
        assert values(beside, "t") == [b"before", *wanted, b"after"]


def test_a_reader_beside_follows_an_adopted_segment(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("t", 1, SMALL_SEGMENTS)
        with stratalog.open(tmp_path / "log", read_only=True) as beside:
            assert values(beside, "t") == []
            reading = beside.topic("t").read(0, follow=True, timeout_s=5)
            wanted = numbered(0, 30, BIG)
            store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): wanted}))
            assert [next(reading).value for _ in wanted] == wanted
            assert values(beside, "t") == wanted
        assert stratalog.verify(store).damages == ()


def test_a_topic_that_rewrites_batches_gets_them_appended(store: stratalog.Store) -> None:
    settings = {**SMALL_SEGMENTS, "message.timestamp.type": "LogAppendTime"}
    store.create_topic("stamped", 1, settings)
    store.create_topic("packed", 1, {**SMALL_SEGMENTS, "compression.type": "zstd"})
    store.create_topic("keyed", 1, {**SMALL_SEGMENTS, "cleanup.policy": "compact"})
    wanted = numbered(0, 30, BIG)
    for name in ("stamped", "packed", "keyed"):
        files = stage(store, name, 0, {(name, 0): wanted}, timestamp=1000)
        store.commit_staged(name, 0, files)
        assert values(store, name) == wanted
    assert next(store.topic("stamped").read(0)).timestamp != 1000
    assert next(store.topic("packed").read(0)).timestamp == 1000


def test_history_makes_the_segments_its_time_asks_for(store: stratalog.Store) -> None:
    store.create_topic("timed", 1, {**SMALL_SEGMENTS, "segment.ms": 1000})
    rows = [*stage(store, "q", 0, {("timed", 0): numbered(0, 3, BIG)}, timestamp=1000)]
    rows += stage(store, "q", 0, {("timed", 0): numbered(3, 3, BIG)}, timestamp=9000)
    store.commit_staged("q", 0, rows)
    assert len(store.topic("timed").segments(0)) == 2


def test_a_thousand_small_commits_make_the_segments_of_plain_appends(store: stratalog.Store) -> None:
    settings = {"segment.bytes": 64 << 10, "retention.ms": -1}
    store.create_topic("staged", 1, settings)
    store.create_topic("plain", 1, settings)
    for batch in range(1000):
        rows = numbered(batch * 3, 3, 100)
        store.commit_staged("q", batch, stage(store, "q", batch, {("staged", 0): rows}))
        store.topic("plain").append_many([stratalog.Record(row, row[:1]) for row in rows], partition=0)
    assert values(store, "staged") == values(store, "plain")
    assert len(store.topic("staged").segments(0)) == len(store.topic("plain").segments(0)) > 3
    assert staged_files(store) == []


# -- what is refused -------------------------------------------------------------------------------------


def refused(store: stratalog.Store, files: list[journals.StagedFile]) -> StratalogError:
    with pytest.raises(StratalogError) as caught:
        store.commit_staged("q", 0, files)
    assert values(store, "t") == []
    assert store.journal.pending == ()
    return caught.value


def test_staged_bytes_that_changed_are_refused(store: stratalog.Store) -> None:
    (file,) = stage(store, "q", 0, {("t", 0): numbered(0, 5)})
    path = f"/data/log.staging/{file.name}"
    fs = store.partitions.context.fs
    assert isinstance(refused(store, [file._replace(crc=file.crc ^ 1)]), errors.CorruptionError)
    assert isinstance(refused(store, [file._replace(size_bytes=file.size_bytes - 1)]), errors.CorruptionError)
    assert isinstance(refused(store, [file._replace(records=4)]), errors.CorruptionError)
    with fs.open(path, "w") as opened:
        opened.pwrite(b"\xff", file.size_bytes - 2)
    assert isinstance(refused(store, [file]), errors.CorruptionError)
    fs.remove(path)
    assert "nothing is staged" in str(refused(store, [file]))


def test_names_that_lead_elsewhere_are_refused(store: stratalog.Store) -> None:
    (file,) = stage(store, "q", 0, {("t", 0): numbered(0, 5)})
    for name in ("../log/t-0/x", "/etc/passwd", f"{file.name}/..", "a/b", ""):
        assert isinstance(refused(store, [file._replace(name=name)]), errors.InvalidArgumentError)
    (other,) = stage(store, "other", 0, {("t", 0): numbered(0, 5)})
    assert "not staged for" in str(refused(store, [other]))
    with pytest.raises(errors.InvalidArgumentError):
        store.commit_staged("a/b", 0, [])
    with pytest.raises(errors.InvalidArgumentError):
        store.commit_staged("q", -1, [])


def test_unknown_topics_and_partitions_are_refused(store: stratalog.Store) -> None:
    (file,) = stage(store, "q", 0, {("t", 0): numbered(0, 5)})
    assert isinstance(refused(store, [file._replace(topic="nope")]), errors.UnknownTopicError)
    assert isinstance(refused(store, [file._replace(partition=2)]), errors.UnknownPartitionError)
    with pytest.raises(errors.UnknownPartitionError):
        stage(store, "q", 0, {("t", 2): numbered(0, 5)})


def test_what_an_append_would_refuse_is_refused_before_it_is_decided(store: stratalog.Store) -> None:
    store.create_topic("keyed", 1, SMALL_SEGMENTS)
    keyless = stage(store, "q", 0, {("t", 0): [b"", b""]})
    late = stage(store, "q", 0, {("t", 0): numbered(0, 1)}, timestamp=10**15)
    large = stage(store, "q", 0, {("t", 0): numbered(0, 1, 3000)})
    store.alter_topic("t", {"max.message.bytes": 1000})
    assert isinstance(refused(store, late), errors.InvalidRecordError)
    assert isinstance(refused(store, large), errors.RecordTooLargeError)
    assert keyless


def test_a_damaged_journal_stops_commits_and_not_the_store(store: stratalog.Store) -> None:
    fs, clock = store.partitions.context.fs, store.partitions.context.clock
    store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): numbered(0, 1)}))
    store.close()
    path = f"/data/log/{journals.FILE_NAME}"
    with fs.open(path, "w") as opened:
        opened.pwrite(b"?", 10)
    with stratalog.open("/data/log", fs=fs, clock=clock, background=False) as again:
        assert values(again, "t") == numbered(0, 1)
        with pytest.raises(errors.StorageError, match=journals.FILE_NAME):
            again.commit_staged("q", 1, [])
    fs.remove(path)
    with stratalog.open("/data/log", fs=fs, clock=clock, background=False) as again:
        assert not again.commit_staged("q", 1, stage(again, "q", 1, {("t", 0): numbered(1, 1)})).duplicate


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]\n", b'{"version": 9}\n', b'{"version": 1, "generation": 1}\n']
)
def test_journals_that_are_none_are_told_apart(data: bytes) -> None:
    with pytest.raises(errors.FormatError):
        journals.parse(data)
    with pytest.raises(errors.FormatError):
        journals.parse(data + f"crc32c: {crc32c(data):08x}\n".encode())


def test_files_out_of_json_are_checked() -> None:
    good = ["a/b", "t", 0, 1, 2, 3, True]
    assert journals.staged_file(good) == journals.StagedFile("a/b", "t", 0, 1, 2, 3, True)
    for at, wrong in enumerate([1, 2, -1, "x", True, None, 1]):
        with pytest.raises((TypeError, ValueError)):
            journals.staged_file([*good[:at], wrong, *good[at + 1 :]])
    with pytest.raises(ValueError, match="unpack"):
        journals.staged_file(good[:-1])


# -- what is left behind ---------------------------------------------------------------------------------


def test_failed_and_speculative_attempts_go_with_the_commit(store: stratalog.Store) -> None:
    stage(store, "q", 0, {("t", 0): numbered(0, 5)}, number=0)
    files = stage(store, "q", 0, {("t", 0): numbered(0, 5)}, number=0)
    stage(store, "q", 0, {("t", 1): numbered(0, 5)}, number=1)
    store.commit_staged("q", 0, files)
    assert staged_files(store) == []


def test_a_late_attempt_goes_with_the_next_commit(store: stratalog.Store) -> None:
    store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): numbered(0, 1)}))
    stage(store, "q", 0, {("t", 0): numbered(0, 1)})
    store.commit_staged("other", 7, stage(store, "other", 7, {("t", 0): numbered(1, 1)}))
    assert staged_files(store) == []


def test_others_that_live_keep_what_they_staged(store: stratalog.Store) -> None:
    mine = stage(store, "mine", 3, {("t", 0): numbered(1, 1)})
    store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): numbered(0, 1)}))
    assert len(staged_files(store)) == 3
    store.commit_staged("mine", 3, mine)
    assert values(store, "t") == numbered(0, 2)
    assert staged_files(store) == []


def test_what_the_dead_staged_goes_at_the_next_commit_or_open(store: stratalog.Store) -> None:
    fs, clock = store.partitions.context.fs, store.partitions.context.clock
    stage(store, "dead", 0, {("t", 0): numbered(0, 1)}, owner=DEAD)
    store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): numbered(0, 1)}))
    assert staged_files(store) == []
    stage(store, "dead", 0, {("t", 0): numbered(0, 1)}, owner=DEAD)
    store.close()
    with stratalog.open("/data/log", fs=fs, clock=clock, background=False) as again:
        assert staged_files(again) == []


def test_what_another_machine_staged_goes_after_a_day(store: stratalog.Store) -> None:
    clock = store.partitions.context.clock
    assert isinstance(clock, ManualClock)
    stage(store, "far", 0, {("t", 0): numbered(0, 1)}, owner="elsewhere@1@1")
    store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): numbered(0, 1)}))
    assert len(staged_files(store)) == 3
    clock.advance(staging.ABANDONED_MS + 1)
    store.commit_staged("q", 1, stage(store, "q", 1, {("t", 0): numbered(1, 1)}))
    assert staged_files(store) == []


def test_owners_are_told_apart() -> None:
    assert staging.is_alive(LIVE)
    assert staging.is_alive(DEAD) is False
    assert staging.is_alive("elsewhere@1@1") is None
    host, pid, start = LIVE.split("@")
    assert staging.is_alive(f"{host}@{pid}@{int(start) + 1}") is False


def test_strange_directories_are_left_alone(store: stratalog.Store) -> None:
    fs = store.partitions.context.fs
    fs.make_dir("/data/log.staging/what is this")
    store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): numbered(0, 1)}))
    assert fs.list_dir("/data/log.staging") == ["what is this"]


# -- interrupted, and beside others ------------------------------------------------------------------------


def test_a_full_disk_in_the_middle_is_finished_by_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    fs = MemoryFileSystem(clock=clock.now_ns)
    with stratalog.open("/data/log", fs=fs, clock=clock, background=False) as store:
        store.create_topic("t", 2, {"segment.bytes": 1 << 20})
        wanted = numbered(0, 3000, 1000)
        files = stage(store, "q", 0, {("t", 0): numbered(0, 2), ("t", 1): wanted})
        assert not files[0].whole
        appended = [file._replace(whole=False) for file in files]
        writer = store.partitions.writer("t", 1)
        plain, failed = writer.write_batches, False

        def write(*arguments: Any) -> Any:
            nonlocal failed
            if writer.next_offset > 1000 and not failed:
                failed = True
                raise errors.DiskFullError("no room")
            return plain(*arguments)

        monkeypatch.setattr(writer, "write_batches", write)
        with pytest.raises(errors.DiskFullError):
            store.commit_staged("q", 0, appended)
        store.topic("t").append(b"between", partition=1)
        other = stage(store, "q2", 0, {("t", 0): numbered(2, 1)})
        store.commit_staged("q2", 0, other)
        assert store.commit_staged("q", 0, []).duplicate
        found = values(store, "t", 1)
        assert [value for value in found if value != b"between"] == wanted
        assert found[-1] != b"between"
        assert values(store, "t", 0) == numbered(0, 3)
        assert staged_files(store) == []


@pytest.mark.parametrize("taken_back", [True, False])
def test_a_decision_that_could_not_be_written_for_sure(
    store: stratalog.Store, monkeypatch: pytest.MonkeyPatch, taken_back: bool
) -> None:
    """The journal has its name and the sync failed: the commit did not happen, or it will."""
    context = store.partitions.context
    fs, plain, failing = context.fs, context.fs.write_atomic, [True, not taken_back]

    def write_atomic(path: str, data: bytes) -> None:
        plain(path, data)
        if path.endswith(journals.FILE_NAME) and failing and failing.pop(0):
            raise errors.StorageError("no word from the disk")

    files = stage(store, "q", 0, {("t", 0): numbered(0, 3)})
    monkeypatch.setattr(fs, "write_atomic", write_atomic)
    with pytest.raises(errors.StorageError, match="no word"):
        store.commit_staged("q", 0, files)
    assert values(store, "t") == []
    assert len(store.journal.pending) == (0 if taken_back else 1)
    again = stage(store, "q", 0, {("t", 0): numbered(0, 3)})
    assert store.commit_staged("q", 0, again).duplicate is not taken_back
    assert values(store, "t") == numbered(0, 3)
    assert staged_files(store) == []


def test_a_decided_file_that_somebody_removed_is_missed(
    store: stratalog.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise errors.DiskFullError("no room")

    monkeypatch.setattr("stratalog.store.journal.journal.adopt", full)
    files = stage(store, "q", 0, {("t", 0): numbered(0, 10, BIG)})
    with pytest.raises(errors.DiskFullError):
        store.commit_staged("q", 0, files)
    fs = store.partitions.context.fs
    hidden = f"/data/log.staging/{files[0].name}"
    fs.rename(hidden, "/data/hidden")
    monkeypatch.undo()
    with pytest.raises(errors.NotFoundError, match="does not have it"):
        store.commit_staged("q", 0, files)
    fs.rename("/data/hidden", hidden)
    assert store.commit_staged("q", 0, files).duplicate
    assert values(store, "t") == numbered(0, 10, BIG)


def test_a_producer_appends_at_the_same_time(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("t", 1, {"segment.bytes": 64 << 10})
        stop = threading.Event()
        sent: list[bytes] = []

        def produce() -> None:
            while not stop.is_set():
                sent.append(b"p%06d" % len(sent))
                store.topic("t").append(sent[-1])
                time.sleep(0.0005)

        producer = threading.Thread(target=produce)
        producer.start()
        rng = random.Random(1)
        wanted: list[bytes] = []
        for batch in range(40):
            rows = numbered(len(wanted), rng.choice([1, 50, 2000]), 100)
            wanted += rows
            store.commit_staged("q", batch, stage(store, "q", batch, {("t", 0): rows}))
        stop.set()
        producer.join()
        found = values(store, "t")
        assert [value for value in found if value[:1] != b"p"] == wanted
        assert [value for value in found if value[:1] == b"p"] == sent
    with stratalog.open(tmp_path / "log") as store:
        assert values(store, "t") == found
        assert not (tmp_path / "log.staging").exists()


def test_another_filesystem_means_appending(tmp_path: Path) -> None:
    class Apart(RealFileSystem):
        def rename(self, src: str, dst: str) -> None:
            if ".staging/" in src and dst.endswith(".log"):
                raise errors.StorageError("apart") from OSError(18, "cross-device")
            super().rename(src, dst)

    with stratalog.open(tmp_path / "log", fs=Apart()) as store:
        store.create_topic("t", 1, SMALL_SEGMENTS)
        wanted = numbered(0, 50, BIG)
        store.commit_staged("q", 0, stage(store, "q", 0, {("t", 0): wanted}))
        assert values(store, "t") == wanted
        assert staged_files(store) == []


def test_several_log_directories(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with stratalog.open(paths) as store:
        store.create_topic("t", 4, SMALL_SEGMENTS)
        rows = {("t", at): numbered(at * 100, 20, BIG) for at in range(4)}
        store.commit_staged("q", 0, stage(store, "q", 0, rows))
        for at in range(4):
            assert values(store, "t", at) == rows["t", at]
        assert staged_files(store) == []
        assert (tmp_path / "a" / journals.FILE_NAME).read_bytes() == (
            tmp_path / "b" / journals.FILE_NAME
        ).read_bytes()


def test_through_the_holder(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("t", 1, SMALL_SEGMENTS)
        assert store.control_address is not None
        from stratalog.store.admin.admin import AdminClient
        from stratalog.store.admin.control import ControlClient

        client = AdminClient.through(ControlClient(store.control_address, None), None)
        files = stage(store, "q", 0, {("t", 0): numbered(0, 30, BIG)})
        assert client.commit_staged("q", 0, files) == Committed(False, 30)
        assert client.commit_staged("q", 0, files) == Committed(True, 0)
        with pytest.raises(errors.ControlError, match="staged files"):
            client.ask("commit_staged", {"query": "q", "batch": 1, "job": False, "files": [["x"]]}, b"", None)
        client.close()
        assert values(store, "t") == numbered(0, 30, BIG)
