"""An interrupt inside a consumer: what it was about to hand out comes again and is not committed before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, Store
from stratalog.store.groups import Consumer
from tests.log.interrupting import Interrupter

pytestmark = pytest.mark.usefixtures("plain_locks")

CONSUMERS = "groups/consumers.py"
Step = Callable[[Consumer, list[Record]], bool]


def polling(consumer: Consumer, handled: list[Record]) -> bool:
    found = consumer.poll(2)
    handled += found
    if not consumer.auto_commit:
        consumer.commit()
    return bool(found)


def looping(consumer: Consumer, handled: list[Record]) -> bool:
    for record in consumer:
        handled.append(record)
        consumer.commit()
    return False


@pytest.mark.parametrize(("step", "auto_commit"), [(polling, False), (polling, True), (looping, False)])
def test_no_record_is_lost_to_an_interrupt(tmp_path: Path, step: Step, auto_commit: bool) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("orders", 2)
        for number in range(4):
            topic.append(b"%d" % number, partition=number % 2)
        at = 0
        while read_all(store, step, at := at + 1, auto_commit):
            pass
        assert at > 50


def read_all(store: Store, step: Step, at: int, auto_commit: bool) -> bool:
    """Read everything with one interrupt; False when it ended before that."""
    group = f"g{at}"
    handled: list[Record] = []
    interrupter = Interrupter(KeyboardInterrupt, at, CONSUMERS)
    consumer = store.consumer(group, ["orders"], timeout_s=0, auto_commit=auto_commit)
    going_on = True
    while going_on:
        try:
            going_on = interrupter.run(lambda: step(consumer, handled))
        except KeyboardInterrupt:
            pass
    consumer.close()
    with store.consumer(group, ["orders"], timeout_s=0) as following:
        handled += following
    found = {(record.partition, record.offset) for record in handled}
    assert found == {(0, 0), (0, 1), (1, 0), (1, 1)}, f"{group}: {interrupter.where}"
    assert store.groups.members(group) == 0
    return bool(interrupter.where)


def test_a_consumer_that_is_interrupted_while_it_is_made_is_none(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "data", background=False) as store:
        store.create_topic("orders", 2)
        at, interrupted = 0, True
        while interrupted:
            at += 1
            interrupter = Interrupter(KeyboardInterrupt, at, CONSUMERS)
            made: list[Consumer] = []
            with suppress(KeyboardInterrupt):
                interrupter.run(lambda: made.append(store.consumer(f"g{at}", ["orders"], timeout_s=0)))  # noqa: B023
            interrupted = bool(interrupter.where)
            made.clear()
            assert store.groups.members(f"g{at}") == 0, interrupter.where
        assert at > 10


def test_partitions_are_given_up_also_after_an_interrupt(tmp_path: Path) -> None:
    """At every step of a poll that gives partitions up: the other consumer gets them all the same."""
    with stratalog.open(tmp_path / "data", background=False) as store:
        topic = store.create_topic("orders", 2)
        for number in range(4):
            topic.append(b"%d" % number, partition=number % 2)
        at, interrupted = 0, True
        while interrupted:
            at += 1
            interrupter = Interrupter(KeyboardInterrupt, at, CONSUMERS)
            first = store.consumer(f"g{at}", ["orders"], timeout_s=0)
            assert first.poll(1)
            second = store.consumer(f"g{at}", ["orders"], timeout_s=0)
            try:
                interrupter.run(first.poll)
            except KeyboardInterrupt:
                first.poll()  # it comes back
            interrupted = bool(interrupter.where)
            assert {record.partition for record in second.poll()} == {1}, interrupter.where
            first.close()
            second.close()
