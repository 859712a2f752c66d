"""Ctrl-C during a move, also a second one during the cleaning-up: the partition goes on, here or there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from stratalog import Record, Store, Topic, locks
from stratalog.errors import StorageError
from stratalog.fs import FailingFileSystem, Fault, MemoryFileSystem
from stratalog.store.moving import Move, Moves
from tests.log.interrupting import Interrupter, in_time
from tests.store.test_moving import NEW, OLD, filled, opened, values

SAMPLES = 60
"""How many of the places where an interrupt can come are tried."""

OPERATIONS: dict[str, Callable[[Store, Topic], Any]] = {
    "append": lambda store, topic: topic.append(b"20", sync=True),
    "append many": lambda store, topic: topic.append_many([Record(b"20")], sync=True),
    "flush": lambda store, topic: store.flush(),
    "flush the topic": lambda store, topic: topic.flush(),
    "delete": lambda store, topic: topic.delete_records(0, 0),
    "roll": lambda store, topic: topic.roll(),
    "move there": lambda store, topic: store.move_partition("t", 0, NEW),
    "move back": lambda store, topic: store.move_partition("t", 0, OLD),
    "erase": lambda store, topic: store.erase("t", [b"nobody"]),
    "compact": lambda store, topic: store.compact("t"),
    "retain": lambda store, topic: store.retain("t"),
    "settings": lambda store, topic: store.alter_topic("t", {"segment.bytes": 4096}),
    "repair": lambda store, topic: store.repair("t", 0, action="rebuild-indexes"),
    "time": lambda store, topic: store.tick(),
}


@pytest.fixture(autouse=True)
def plain_locks() -> Iterator[None]:
    """A checked lock is Python code that could be cut in two."""
    before = locks.use(locks.PLAIN)
    yield
    locks.use(before)


def check(disk: MemoryFileSystem, store: Store, topic: Topic, what: str) -> None:
    """The partition is in one place, and all of it can be used, from another thread too."""
    end = topic.log_end_offset()

    def use() -> None:
        assert topic.append(b"next", sync=True).offset == end, what
        assert values(topic)[:20] == [b"%d" % at for at in range(20)], what
        assert len(values(topic)) == end + 1, what
        store.tick()
        where = [path for path in (OLD, NEW) if disk.exists(f"{path}/t-0")]
        assert where == [store.partitions.place("t", 0)[0].path], what
        assert store.partitions.moves.topics() == set(), what

    in_time(use, what)
    in_time(store.close, what)
    for left in (disk.survivor("drop", random.Random(1)), disk):
        with opened(left) as again:
            assert len(values(again.topic("t"))) == end + 1, what
            assert not [name for path in (OLD, NEW) for name in left.list_dir(path) if "-future" in name]


def events(act: Callable[[Store], Any]) -> int:
    """Count the places where an interrupt can come."""
    with opened(MemoryFileSystem()) as store:
        filled(store)
        counting = Interrupter(KeyboardInterrupt)
        counting.run(lambda: act(store))
        return counting.events


def move(store: Store) -> None:
    store.move_partition("t", 0, NEW)


def sampled(count: int) -> list[int]:
    return sorted(random.Random(count).sample(range(1, count + 1), min(SAMPLES, count)))


def test_an_interrupt_anywhere_in_a_move_leaves_a_partition_that_goes_on() -> None:
    total = events(move)
    assert total > 100
    for at in sampled(total):
        disk = MemoryFileSystem()
        store = opened(disk)
        topic = filled(store)
        interrupter = Interrupter(KeyboardInterrupt, at)
        with pytest.raises(KeyboardInterrupt):
            interrupter.run(partial(move, store))
        check(disk, store, topic, f"{at}: {interrupter.where}")


class InterruptedTwice:
    """A store whose move was interrupted at ``first``, and its cleaning-up at the n-th place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: str, at: int) -> None:
        self.disk = MemoryFileSystem()
        self.store = opened(self.disk)
        self.topic = filled(self.store)
        self.interrupter = Interrupter(KeyboardInterrupt, at)
        settle, act = Moves.settle, getattr(Move, first, None)

        def interrupted(*_: Any) -> None:
            if act is not None:
                act(*_)
            raise KeyboardInterrupt("the first one")

        def interrupted_again(moves: Moves, name: str) -> None:
            if moves.topics():
                self.interrupter.run(lambda: settle(moves, name))

        with monkeypatch.context() as patched:
            if act is not None:
                patched.setattr(Move, first, interrupted)
            patched.setattr(Moves, "settle", interrupted_again)
            try:
                move(self.store)
            except KeyboardInterrupt:
                self.interrupted = True
            else:
                self.interrupted = False

    @property
    def what(self) -> str:
        return f"{self.interrupter.at}: {self.interrupter.where}"


@pytest.mark.parametrize("first", ["copy", "commit", "nowhere"])
def test_a_second_interrupt_anywhere_in_the_cleaning_up(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    total = InterruptedTwice(monkeypatch, first, 0).interrupter.events
    assert total > 20
    for at in sampled(total):
        cut = InterruptedTwice(monkeypatch, first, at)
        assert cut.interrupted
        check(cut.disk, cut.store, cut.topic, cut.what)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("first", ["copy", "commit"])
def test_the_next_operation_ends_a_move_that_was_cut_short(
    monkeypatch: pytest.MonkeyPatch, first: str, operation: str
) -> None:
    cut = InterruptedTwice(monkeypatch, first, 1)
    assert cut.store.partitions.moves.topics() == {"t"}
    in_time(lambda: OPERATIONS[operation](cut.store, cut.topic), operation)
    assert cut.store.partitions.moves.topics() == set()
    check(cut.disk, cut.store, cut.topic, operation)


def test_reads_go_on_while_a_move_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = InterruptedTwice(monkeypatch, "commit", 1)
    assert values(cut.topic) == [b"%d" % at for at in range(20)]
    assert cut.topic.scan().read_all().num_rows == 20
    check(cut.disk, cut.store, cut.topic, "reads")


@pytest.mark.parametrize("first", ["copy", "commit"])
def test_a_store_that_is_closed_with_a_move_in_doubt_opens_again(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    cut = InterruptedTwice(monkeypatch, first, 1)
    cut.store.close()
    with opened(cut.disk) as again:
        assert values(again.topic("t")) == [b"%d" % at for at in range(20)]
        assert again.topic("t").append(b"20").offset == 20


def test_a_move_that_cannot_be_undone_is_tried_again_by_the_next_operation() -> None:
    disk = MemoryFileSystem()
    fs = FailingFileSystem(disk)
    store = opened(fs)
    topic = filled(store)
    fs.inject(Fault("rename", f"{NEW}/t-0", times=1))
    fs.inject(Fault("remove", f"{OLD}/t-0/stratalog.moved", times=2))
    with pytest.raises(StorageError):
        store.move_partition("t", 0, NEW)
    with pytest.raises(StorageError, match="moved"):
        topic.append(b"20")
    fs.heal()
    check(disk, store, topic, "healed")


@pytest.mark.parametrize("within", ["/store/store.py", "/store/moving.py"])
def test_a_repair_that_is_interrupted_leaves_the_partition_in_use(within: str) -> None:
    operations = [OPERATIONS[each] for each in ("append", "flush", "erase", "compact", "repair", "time")]
    for at in range(1, 200):
        disk = MemoryFileSystem()
        store = opened(disk)
        topic = filled(store, 20)
        interrupter = Interrupter(KeyboardInterrupt, at, within)
        try:
            interrupter.run(lambda store=store: store.repair("t", 0, action="rebuild-indexes"))  # type: ignore[misc]
        except KeyboardInterrupt:
            operations[at % len(operations)](store, topic)
            check(disk, store, topic, f"{at}: {interrupter.where}")
        else:
            return
