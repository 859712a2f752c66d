"""Moving a partition that has an archive: whoever changes the archive waits, or goes on in the new place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.archive.objects import DirectoryObjects
from stratalog.errors import ClosedError, StratalogError
from stratalog.fs import FileSystem, MemoryFileSystem
from stratalog.store.tier.tiers import read_local_copy
from stratalog.testing.clock import ManualClock
from tests.archive.faulty import FaultyObjects
from tests.store.pausing import PATIENCE_S, PausingFileSystem, Running
from tests.store.tiered import CONFIG, EVERYTHING_GOES, TOPIC_CONFIG

DIRS = ["/one", "/two"]


class Moved:
    """A store of two log directories with an archived partition, most of it only in the archive."""

    def __init__(self) -> None:
        self.fs = PausingFileSystem(MemoryFileSystem())
        self.objects = FaultyObjects(DirectoryObjects(MemoryFileSystem(), "/cloud"))
        clock = ManualClock()
        self.store: Store = stratalog.open(
            DIRS,
            CONFIG,
            fs=cast(FileSystem, self.fs),
            clock=clock,
            objects=self.objects,
            background=False,
        )
        self.topic: Topic = self.store.create_topic("t", 1, TOPIC_CONFIG)
        for at in range(40):
            self.topic.append_many([Record(b"%d" % at)])
            if at % 10 == 9:
                self.topic.roll()
        self.topic.flush()
        self.store.archive()
        clock.advance(1000)
        self.store.alter_topic("t", EVERYTHING_GOES)
        self.store.archive()
        assert not self.topic.segments(0)[0].path.startswith("/")
        self.old = self.place()
        self.new = next(path for path in DIRS if path != self.old)

    def place(self) -> str:
        return self.store.partitions.place("t", 0)[0].path

    def move(self) -> Running:
        return Running(self.store.move_partition, "t", 0, self.new)

    def hold_request(self, wanted: str) -> tuple[threading.Event, threading.Event]:
        """Hold up the next request of that kind: one event says that it came, the other lets it go on."""
        reached, go = threading.Event(), threading.Event()

        def before(request: str) -> None:
            if request.startswith(wanted) and not reached.is_set():
                reached.set()
                assert go.wait(PATIENCE_S)

        self.objects.before = before
        return reached, go

    def check(self, start: int) -> None:
        assert self.place() == self.new
        assert not self.fs.exists(f"{self.old}/t-0")
        assert not [name for name in self.fs.list_dir(f"{self.new}/t-0") if name.endswith(".tmp")]
        assert [record.value for record in self.topic.read()] == [b"%d" % at for at in range(start, 40)]
        copy = read_local_copy(cast(FileSystem, self.fs), f"{self.new}/t-0")
        assert copy is not None
        assert copy.manifest.log_start_offset == start
        assert self.topic.append(b"40").offset == 40


def retain(store: Store) -> Any:
    store.alter_topic("t", {"retention.bytes": 1, "local.retention.bytes": 1})
    report = store.retain("t")
    assert not [note for note in report.notes if "at work" not in note], report.notes


@pytest.fixture
def moved() -> Any:
    made = Moved()
    with made.store:
        yield made


def test_a_deletion_that_is_writing_the_copy_of_the_manifest_holds_a_move_up(moved: Moved) -> None:
    with moved.fs.pause_at("rename", f"{moved.old}/t-0/stratalog.archive") as pause:
        deleting = Running(moved.topic.delete_records, 0, 20)
        pause.wait_until_reached()
        moving = moved.move()
        moving.ends_or_blocks()
    assert deleting.result() == 20
    moving.result()
    moved.check(20)


@pytest.mark.parametrize("request_name", ["put_if_match", "delete"])
def test_a_deletion_that_waits_for_the_archive_during_a_move_goes_on_in_the_new_place(
    moved: Moved, request_name: str
) -> None:
    reached, go = moved.hold_request(request_name)
    deleting = Running(moved.topic.delete_records, 0, 20)
    assert reached.wait(PATIENCE_S)
    moved.move().result()
    go.set()
    assert deleting.result() == 20
    moved.check(20)


def test_a_deletion_during_a_move_that_fails_goes_on_in_the_old_place(moved: Moved) -> None:
    reached, go = moved.hold_request("put_if_match")
    deleting = Running(moved.topic.delete_records, 0, 20)
    assert reached.wait(PATIENCE_S)
    moved.fs.inner.open(f"{moved.new}/t-0", "x").close()  # in the way; undoing the move removes it
    with pytest.raises((OSError, StratalogError)):
        moved.move().result()
    go.set()
    assert deleting.result() == 20
    moved.old, moved.new = moved.new, moved.old
    moved.check(20)


ROUNDS: list[Callable[[Store], Any]] = [
    retain,
    lambda store: store.archive("t"),
    lambda store: store.lifecycle(),
    lambda store: store.take_over_archive("t"),
    lambda store: store.partitions.archives.sweep(),
]


@pytest.mark.parametrize("act", ROUNDS, ids=["retain", "archive", "lifecycle", "take over", "sweep"])
@pytest.mark.parametrize(
    "place", ["stratalog.archive", "sync_dir */t-0*-future", "rename */t-0", "remove_tree */t-0*-delete"]
)
def test_a_round_beside_a_move_ends_well(moved: Moved, act: Callable[[Store], Any], place: str) -> None:
    if place == "stratalog.archive":
        with moved.fs.pause_at("rename", f"{moved.old}/t-0/stratalog.archive") as pause:
            working = Running(act, moved.store)
            working.ends_or_blocks()
            moving = moved.move()
            moving.ends_or_blocks()
            pause.resume()
    else:
        operation, path = place.split()
        with moved.fs.pause_at(operation, path) as pause:
            moving = moved.move()
            pause.wait_until_reached()
            working = Running(act, moved.store)
            working.ends_or_blocks()
    working.result()
    moving.result()
    assert moved.place() == moved.new
    start = moved.topic.log_start_offset()
    assert [record.value for record in moved.topic.read()] == [b"%d" % at for at in range(start, 40)]
    assert moved.store.archive("t").notes == ()
    assert not [name for name in moved.fs.list_dir(f"{moved.new}/t-0") if name.endswith(".tmp")]


def test_a_tier_of_an_old_place_writes_nothing(moved: Moved) -> None:
    tiering = moved.store.partitions.archives.tiering
    assert tiering is not None
    tier = tiering._tier("t", 0)
    assert tier is not None
    moved.move().result()
    with pytest.raises(ClosedError):
        tier.save()
    assert not moved.fs.exists(f"{moved.old}/t-0")
