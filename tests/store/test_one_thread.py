"""What is for one thread at a time: a second one is told so, and the first one goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Topic
from stratalog.errors import ConcurrentUseError
from tests.store.pausing import Running


def beside(inside: threading.Event, act: Callable[[], object]) -> None:
    """Act while another thread is inside."""
    assert inside.wait(60)
    with pytest.raises(ConcurrentUseError, match="is for one thread at a time"):
        act()


def test_a_consumer(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, background=False) as store:
        orders = store.create_topic("orders", 1)
        orders.append(b"0")
        inside, go_on = threading.Event(), threading.Event()

        def slow(value: bytes) -> bytes:
            inside.set()
            assert go_on.wait(60)
            return value

        with store.consumer("g", [orders.using(value_deserializer=slow)], timeout_s=0) as consumer:
            polling = Running(consumer.poll)
            acts: list[Callable[[], object]] = [
                consumer.poll,
                lambda: next(iter(consumer)),
                consumer.commit,
                lambda: consumer.seek("orders", 0, 0),
                lambda: consumer.seek_to_time(0),
                consumer.lag,
                lambda: consumer.position("orders"),
            ]
            for act in acts:
                beside(inside, act)
            go_on.set()
            assert [record.value for record in polling.result()] == [b"0"]
            orders.append(b"1")
            assert [record.value for record in consumer.poll(timeout_s=60)] == [
                b"1"
            ]  # another thread, after the first one
            consumer.commit()


def test_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stratalog.open(tmp_path, background=False) as store:
        store.create_topic("orders", 1)
        inside, go_on = threading.Event(), threading.Event()
        append_from = Topic.append_from

        def slow(topic: Topic, *args: object) -> object:
            inside.set()
            assert go_on.wait(60)
            return append_from(topic, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Topic, "append_from", slow)
        with store.transaction("t") as transaction:
            appending = Running(transaction.append, "orders", b"0")
            acts: list[Callable[[], object]] = [
                lambda: transaction.append("orders", b"1"),
                lambda: transaction.append_many("orders", [Record(b"1")]),
                lambda: transaction.commit_offsets("g", {("orders", 0): 1}),
                transaction.commit,
            ]
            for act in acts:
                beside(inside, act)
            go_on.set()
            assert appending.result().offset == 0
            transaction.append("orders", b"2")
        assert transaction.committed
        assert [record.value for record in store["orders"].read(isolation="read_committed")] == [b"0", b"2"]


class Held(threading.Event):
    """Asked whether to stop, it keeps the reading until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def is_set(self) -> bool:
        self.asked.set()
        assert self.go_on.wait(60)
        return super().is_set()


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("follow", [False, True])
def test_a_reading(tmp_path: Path, partitions: int, follow: bool) -> None:
    with stratalog.open(tmp_path, background=False) as store:
        orders = store.create_topic("orders", partitions)
        orders.append(b"0", partition=0)
        stop = Held()
        stop.go_on.set()
        reading = orders.read(follow=follow, stop=stop)
        iter(reading)
        stop.go_on.clear()
        stop.asked.clear()
        first = Running(lambda: next(reading))
        beside(stop.asked, lambda: next(reading))
        stop.go_on.set()
        assert first.result().value == b"0"
