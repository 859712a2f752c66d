"""Named consumers: what a group committed is where it goes on, whoever reads, whatever happens."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, Store, Topic
from stratalog.errors import (
    ClosedError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    UnstableOffsetCommitError,
)
from stratalog.store.groups import Consumer, offsets
from stratalog.store.groups.consumers import Groups
from stratalog.store.groups.offsets import OFFSETS_TOPIC, CommittedOffset, commit_records
from stratalog.store.internal_topic import for_coordinator
from tests.store.pausing import Running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data", background=False) as opened:
        yield opened


@pytest.fixture
def orders(store: Store) -> Topic:
    topic = store.create_topic("orders", 3)
    fill(topic, 0, 30)
    return topic


def fill(topic: Topic, first: int, end: int) -> None:
    for number in range(first, end):
        topic.append(b"%d" % number, partition=number % topic.partitions)


def numbers(records: Any) -> list[int]:
    return [int(record.value or b"-1") for record in records]


def test_a_group_goes_on_where_it_committed(store: Store, orders: Topic) -> None:
    with store.consumer("billing", ["orders"], timeout_s=0) as consumer:
        seen = []
        for record in consumer:
            seen.append(int(record.value or b""))
            if len(seen) == 10:
                consumer.commit()
                break
    with store.consumer("billing", ["orders"], timeout_s=0) as consumer:
        rest = numbers(consumer)
        assert sorted(seen + rest) == list(range(30))
        assert consumer.lag() == {("orders", 0): 0, ("orders", 1): 0, ("orders", 2): 0}
    with store.consumer("billing", ["orders"], timeout_s=0) as consumer:
        assert numbers(consumer) == rest, "nothing was committed"
        consumer.commit(sync=True)
    with store.consumer("billing", ["orders"], timeout_s=0) as consumer:
        assert numbers(consumer) == []
        fill(orders, 30, 33)
        assert numbers(consumer) == [30, 31, 32]
    with store.consumer("audit", ["orders"], timeout_s=0) as consumer:
        assert sorted(numbers(consumer)) == list(range(33)), "another group has its own offsets"


def test_offsets_outlive_the_process(tmp_path: Path) -> None:
    for opening in range(3):
        with stratalog.open(tmp_path / "data") as store:
            topic = store.create_topic("t", if_not_exists=True)
            fill(topic, 10 * opening, 10 * opening + 10)
            with store.consumer("g", ["t"], timeout_s=0) as consumer:
                assert numbers(consumer) == list(range(10 * opening, 10 * opening + 10))
                consumer.commit()
            assert store.groups.offsets.all()["g"]["t", 0].offset == 10 * opening + 10


def test_a_commit_may_cover_one_record(store: Store, orders: Topic) -> None:
    with store.consumer("g", ["orders"]) as consumer:
        batch = consumer.poll(10)
        consumer.commit(batch[3])
        at = (batch[3].topic, batch[3].partition)
        assert store.groups.offsets.all() == {"g": {at: store.groups.offsets.committed("g", *at)}}
        assert consumer.committed(*at) == batch[3].offset + 1
        assert consumer.position(*at) > batch[3].offset


@pytest.mark.parametrize("ends", ["normally", "with an error"])
def test_an_automatic_commit_covers_what_was_handled(store: Store, orders: Topic, ends: str) -> None:
    seen: list[int] = []

    def consume() -> None:
        with store.consumer("g", ["orders"], auto_commit=True, timeout_s=0) as consumer:
            for record in consumer:
                seen.append(int(record.value or b""))
                if len(seen) == 10:
                    if ends != "normally":
                        raise ValueError("the handler failed")
                    break

    if ends == "normally":
        consume()
    else:
        with pytest.raises(ValueError, match="the handler failed"):
            consume()
        seen.pop()
    with store.consumer("g", ["orders"], auto_commit=True, timeout_s=0) as consumer:
        again = numbers(consumer)
    assert sorted(seen + again) == list(range(30)), "the record whose handling failed comes again"


def test_automatic_commits_come_by_the_clock(
    store: Store, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.store.groups.consumers.AUTO_COMMIT_S", 0.0)
    consumer = store.consumer("g", ["orders"], auto_commit=True, timeout_s=0)
    consumer.poll(10)
    consumer.poll(10)
    done = sum(each.offset for each in store.groups.offsets.all()["g"].values())
    assert done == 10, "the first ten, not those that are being handled"
    consumer.close()


def test_seek_by_offset_and_by_time(store: Store) -> None:
    topic = store.create_topic("t", 2)
    base = int(time.time() * 1000) - 100_000
    for number in range(20):
        topic.append(b"%d" % number, timestamp=base + 1000 * number, partition=number % 2)
    with store.consumer("g", ["t"], timeout_s=0) as consumer:
        assert sorted(numbers(consumer)) == list(range(20))
        consumer.seek("t", 0, 8)
        assert numbers(consumer) == [16, 18]
        consumer.seek_to_time(base + 15_000)
        assert sorted(numbers(consumer)) == [15, 16, 17, 18, 19]
        consumer.seek_to_time("now")
        assert numbers(consumer) == []
        consumer.seek("t", 1, 0)
        assert numbers(consumer.poll(2)) == [1, 3]
        consumer.seek("t", 1, 1)
        consumer.seek("t", 0, 9)
        assert sorted(numbers(consumer)) == [3, 5, 7, 9, 11, 13, 15, 17, 18, 19]
        with pytest.raises(OffsetOutOfRangeError):
            consumer.seek("t", 0, 11)
        with pytest.raises(
            InvalidArgumentError, match="t-7 is not read by this consumer of g, which has t-0, t-1"
        ):
            consumer.seek("t", 7, 0)
        assert consumer.position("t", 0) == 10


def test_offsets_outside_the_log_are_reset_as_asked(
    store: Store, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        store.consumer("g", ["orders"], reset="error") as consumer,
        pytest.raises(OffsetOutOfRangeError, match="group g committed nothing for orders-0"),
    ):
        consumer.poll(1)
    with store.consumer("late", ["orders"], reset="latest", timeout_s=0) as consumer:
        assert numbers(consumer) == []
        fill(orders, 30, 33)
        assert sorted(numbers(consumer)) == [30, 31, 32]
    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        consumer.seek("orders", 0, 1)
        consumer.commit()
    for partition in range(3):
        orders.delete_records(partition, 5)
    with (
        store.consumer("g", ["orders"], reset="error") as consumer,
        pytest.raises(OffsetOutOfRangeError, match="group g committed offset 1 for orders-0"),
    ):
        consumer.poll(1)
    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        assert sorted(numbers(consumer)) == list(range(15, 33))
    assert "group g: offset 1 of orders-0 is outside the log (5 to 10); it continues from 5" in caplog.text


# -- sharing ---------------------------------------------------------------------------------------------


def test_consumers_of_a_group_share_the_partitions(store: Store, orders: Topic) -> None:
    first = store.consumer("g", ["orders"], timeout_s=0)
    assert sorted(numbers(first.poll(30))) == list(range(30))
    assert first.assignment == {("orders", 0), ("orders", 1), ("orders", 2)}
    second = store.consumer("g", ["orders"], timeout_s=0)
    assert second.poll() == [], "the first one has not let go yet"
    first.commit()
    assert first.poll() == []
    assert first.assignment == {("orders", 0), ("orders", 1)}
    fill(orders, 30, 36)
    assert sorted(numbers(second.poll())) == [32, 35], "from where the first one committed"
    assert sorted(numbers(first.poll())) == [30, 31, 33, 34]
    third, fourth = (store.consumer("g", ["orders"], timeout_s=0) for _ in range(2))
    for each in (first, second, third, fourth, first, second, third, fourth):
        each.poll()
        each.commit()
    assert [len(each.assignment) for each in (first, second, third, fourth)] == [1, 1, 1, 0]
    for each in (first, second, third):
        each.close()
    fill(orders, 36, 39)
    assert sorted(numbers(fourth.poll())) == [36, 37, 38]
    fourth.close()
    assert store.groups.members("g") == 0


def test_a_partition_is_kept_while_one_of_its_records_is_in_hand(store: Store, orders: Topic) -> None:
    with store.consumer("g", ["orders"], timeout_s=0) as first:
        record = first.poll(1)[0]
        with store.consumer("g", ["orders"], timeout_s=0) as second:
            first.lag()
            first.position("orders", 2)
            assert second.poll() == []
            assert len(first.assignment) == 3
            first.commit(record)
            first.poll(1)
            assert len(first.assignment) == 2
            assert second.poll() != []


def test_a_consumer_that_is_forgotten_leaves_its_group(store: Store, orders: Topic) -> None:
    forgotten = store.consumer("g", ["orders"], timeout_s=0)
    assert len(forgotten.poll(30)) == 30
    del forgotten
    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        assert sorted(numbers(consumer)) == list(range(30))
    assert store.groups.members("g") == 0


def test_new_partitions_are_read(store: Store, orders: Topic) -> None:
    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        assert len(numbers(consumer)) == 30
        store.add_partitions("orders", 5)
        orders.append(b"new", partition=4)
        assert [record.value for record in consumer] == [b"new"]


def test_threads_handle_every_record_once(store: Store) -> None:
    """Consumers come and go while records are written; each record is committed with its handling."""
    topic = store.create_topic("t", 6)
    seen: Counter[int] = Counter()
    owners: dict[tuple[str, int], int] = {}
    wrong: list[str] = []
    done = threading.Event()

    def consume(number: int) -> None:
        while not done.is_set():
            with store.consumer("g", ["t"], timeout_s=0.01) as consumer:
                for count, record in enumerate(consumer):
                    at = (record.topic, record.partition)
                    if owners.setdefault(at, number) != number:
                        wrong.append(f"{at} is handled by two")
                    seen[int(record.value or b"")] += 1
                    owners.pop(at, None)
                    consumer.commit()
                    if count == 20 + 7 * number:
                        break

    threads = [Running(consume, number) for number in range(4)]
    for number in range(600):
        topic.append(b"%d" % number, partition=number % 6)
        if number % 50 == 0:
            time.sleep(0.01)
    deadline = time.monotonic() + 30
    while len(seen) < 600 and time.monotonic() < deadline:
        time.sleep(0.01)
    done.set()
    for thread in threads:
        thread.result()
    assert not wrong
    assert seen == Counter(range(600))


def test_a_consumer_is_closed_from_another_thread(store: Store, orders: Topic) -> None:
    consumer = store.consumer("g", ["orders"], auto_commit=True)
    seen: list[int] = []
    arrived = threading.Semaphore(0)

    def consume() -> None:
        for record in consumer:
            seen.append(int(record.value or b""))
            arrived.release()

    consuming = Running(consume)
    for _ in range(30):
        assert arrived.acquire(timeout=10)
    consumer.close()
    consuming.result()
    assert sorted(seen) == list(range(30))
    assert sum(each.offset for each in store.groups.offsets.all()["g"].values()) == 30
    assert store.groups.members("g") == 0
    with pytest.raises(ClosedError):
        consumer.commit()
    assert consumer.poll() == []


def test_a_consumer_ends_with_its_store_or_its_topic(store: Store, orders: Topic) -> None:
    store.create_topic("other")
    waiting = Running(store.consumer("g", ["other"]).poll)
    gone = store.consumer("h", ["orders"], timeout_s=0)
    gone.poll(30)
    gone.commit()
    store.delete_topic("orders")
    with pytest.raises(UnknownTopicError):
        gone.poll()
    gone.close()
    fill(store.create_topic("orders"), 0, 3)
    with store.consumer("h", ["orders"], timeout_s=0) as consumer:
        assert numbers(consumer) == [0, 1, 2], "offsets of the deleted topic are gone with it"
    waiting.ends_or_blocks()
    store.close()
    with pytest.raises(ClosedError):
        waiting.result()


def test_records_that_were_read_ahead_end_with_the_store(store: Store, orders: Topic) -> None:
    consumer = store.consumer("g", [orders], timeout_s=0)
    assert len(consumer.poll(1)) == 1
    store.close()
    for act in (consumer.poll, consumer.commit, lambda: consumer.committed("orders")):
        with pytest.raises(ClosedError):
            act()
    consumer.close()


def test_a_topic_is_deleted_also_where_the_offsets_are_damaged(
    store: Store, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    kept = for_coordinator(store.create_topic(OFFSETS_TOPIC, 1, {"cleanup.policy": "compact"}))
    kept.append(b"", key=b"\0\1\0")
    with pytest.raises(stratalog.errors.CorruptionError, match="__consumer_offsets-0, offset 0: a key of"):
        store.groups.offsets.all()
    kept.append(b"\0\x63", key=offsets.pack_key("g", "orders", 0))
    with pytest.raises(
        stratalog.errors.CorruptionError, match="__consumer_offsets-0, offset 1: .*version 99"
    ):
        store.groups.offsets.committed("g", "orders", 0)
    store.delete_topic("orders")
    assert "but not the offsets that groups committed for it" in caplog.text


def test_a_consumer_that_was_closed_leaves_also_when_its_thread_ends(store: Store, orders: Topic) -> None:
    """Its thread went another way than into the next poll."""
    consumer = store.consumer("g", ["orders"], timeout_s=0)
    held, done = threading.Event(), threading.Event()

    def one() -> None:
        consumer.poll(1)
        held.set()
        done.wait(10)

    reading = Running(one)
    assert held.wait(10)
    consumer.close()
    assert store.groups.members("g") == 1, "a record is in hand"
    done.set()
    reading.result()
    assert store.groups.members("g") == 0
    with store.consumer("g", ["orders"], timeout_s=0) as following:
        assert len(following.poll()) == 30


@pytest.mark.parametrize("how", ["commit", "auto_commit", "record", "transaction"])
def test_a_commit_after_a_deletion_means_nothing_to_the_next_topic(
    store: Store, orders: Topic, how: str
) -> None:
    fill(store.create_topic("other"), 0, 3)
    consumer = store.consumer("g", ["orders", "other"], timeout_s=0, auto_commit=how == "auto_commit")
    records = consumer.poll()
    consumer.poll(timeout_s=0)
    t = store.transaction("t")
    if how == "transaction":
        t.commit_offsets(consumer)
    store.delete_topic("orders")
    if how == "transaction":
        t.commit()
    elif how == "record":
        consumer.commit(next(each for each in records if each.topic == "orders"))
        consumer.commit()
    elif how == "commit":
        consumer.commit()
    consumer.close()
    fill(store.create_topic("orders", 3), 0, 60)
    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        assert sorted(numbers(consumer)) == list(range(60))
    with store.consumer("g", ["other"], timeout_s=0) as consumer:
        assert numbers(consumer) == []


@pytest.mark.parametrize("where", ["share_of", "take"])
def test_a_topic_is_made_anew_with_fewer_partitions_in_the_middle_of_a_poll(
    store: Store, orders: Topic, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    act = getattr(Groups, where)

    def recreate(self: Groups, *given: Any) -> Any:
        monkeypatch.undo()
        found = act(self, *given)
        store.delete_topic("orders")
        fill(store.create_topic("orders", 1), 0, 5)
        return found

    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        monkeypatch.setattr(Groups, where, recreate)
        assert numbers(consumer) == list(range(5))
        assert consumer.assignment == {("orders", 0)}


def test_a_consumer_goes_on_with_the_next_topic_of_the_name(store: Store, orders: Topic) -> None:
    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        assert len(consumer.poll()) == 30
        consumer.commit()
        store.delete_topic("orders")
        with pytest.raises(UnknownTopicError):
            consumer.poll()
        fill(store.create_topic("orders", 3), 0, 60)
        assert sorted(numbers(consumer)) == list(range(60))


def test_retention_may_overtake_a_consumer(
    store: Store, orders: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    for reset, expected in (("earliest", list(range(15, 33))), ("latest", []), ("error", None)):
        topic = store.create_topic(reset, 3)
        fill(topic, 0, 3)
        with store.consumer("g", [reset], timeout_s=0) as consumer:
            assert sorted(numbers(consumer)) == [0, 1, 2]
            consumer.commit()
        with store.consumer("g", [reset], reset=reset, timeout_s=0) as consumer:  # type: ignore[arg-type]
            assert numbers(consumer) == []
            fill(topic, 3, 33)
            for partition in range(3):
                topic.delete_records(partition, 5)
            if expected is None:
                with pytest.raises(OffsetOutOfRangeError, match="group g committed offset 1 for error-0"):
                    consumer.poll()
                continue
            assert sorted(numbers(consumer)) == expected
            fill(topic, 33, 36)
            assert sorted(numbers(consumer)) == [33, 34, 35]
    assert "group g: offset 1 of earliest-0 is outside the log (5 to 10); it continues from 5" in caplog.text


def test_the_latest_record_is_the_last_committed_one(store: Store) -> None:
    topic = store.create_topic("t")
    topic.append(b"0", timestamp=1)
    t = store.transaction("t")
    t.append("t", b"1")
    with (
        store.consumer("a", ["t"], reset="latest", isolation="read_committed", timeout_s=0) as late,
        store.consumer("b", ["t"], isolation="read_committed", timeout_s=0) as sought,
    ):
        assert numbers(late) == []
        sought.seek_to_time("now")
        assert late.lag() == sought.lag() == {("t", 0): 0}
        t.commit()
        assert numbers(late) == numbers(sought) == [1]


def test_a_synced_commit_waits_for_the_disk_also_when_it_changes_nothing(store: Store, orders: Topic) -> None:
    with store.consumer("g", ["orders"], timeout_s=0) as consumer:
        consumer.poll()
        consumer.commit()
        kept = store.topic(OFFSETS_TOPIC)
        end = kept.log_end_offset()
        assert not kept.when(0, "synced", end).done
        consumer.commit(sync=True)
        assert kept.when(0, "synced", end).done


def test_offsets_are_not_guessed_behind_an_open_transaction(
    store: Store, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "STABLE_S", 0.01)
    store.groups.offsets.commit("g", {("orders", 0): 1})
    t = store.transaction("t")
    row = commit_records("g", {("orders", 0): 5}, 0)[0]
    t.append(
        for_coordinator(store[OFFSETS_TOPIC]), row.value, key=row.key
    )  # as a commit leaves it that is cut short
    store.groups.offsets.commit("h", {("orders", 0): 7})
    with pytest.raises(UnstableOffsetCommitError, match="did not end within"):
        store.consumer("g", ["orders"], timeout_s=0).poll()
    assert offset_of(store, "h") == 7, "another group does not wait"
    t.commit()
    assert offset_of(store, "g") == 5


def offset_of(store: Store, group: str) -> int | None:
    found = store.groups.offsets.committed(group, "orders", 0)
    return None if found is None else found.offset


@pytest.mark.parametrize("commit", [True, False])
def test_what_is_committed_behind_an_open_transaction_is_known(
    store: Store, orders: Topic, commit: bool
) -> None:
    """By the order in the log: a marker makes an older offset count, but not in place of a newer one."""
    offsets = store.groups.offsets
    offsets.commit("g", {("orders", 0): 1, ("orders", 1): 1})
    first, second = store.transaction("first"), store.transaction("second")
    for t, partition, offset in ((first, 0, 2), (second, 1, 3), (first, 2, 4)):
        row = commit_records("g", {("orders", partition): offset}, 0)[0]
        t.append(for_coordinator(store[OFFSETS_TOPIC]), row.value, key=row.key)
    offsets.commit("g", {("orders", 1): 9})
    if commit:
        second.commit()
    else:
        second.abort()
    looks = offsets.look("g", [("orders", number) for number in range(3)])
    assert [(look.committed and look.committed.offset, look.pending) for look in looks.values()] == [
        (1, True),
        (9, False),
        (None, True),
    ]
    assert {at[1]: each.offset for at, each in offsets.all()["g"].items()} == {0: 1, 1: 9}
    first.commit()
    assert {at[1]: each.offset for at, each in offsets.all()["g"].items()} == {0: 2, 1: 9, 2: 4}


def test_a_deleted_topic_takes_along_what_is_being_committed_for_it(store: Store, orders: Topic) -> None:
    """A topic of the same name is another one."""
    t = store.transaction("t")
    store.groups.offsets.topic_to_write()
    row = commit_records("g", {("orders", 0): 5}, 0)[0]
    t.append(for_coordinator(store[OFFSETS_TOPIC]), row.value, key=row.key)
    store.delete_topic("orders")
    t.commit()
    store.create_topic("orders")
    assert offset_of(store, "g") is None


def test_what_cannot_be_committed_is_refused(store: Store, orders: Topic) -> None:
    consumer = store.consumer("g", ["orders"], timeout_s=0)
    record = consumer.poll(1)[0]
    wrong: list[Any] = [5, record._replace(offset=-5), record._replace(partition=9)]
    for each in wrong:
        with pytest.raises(InvalidArgumentError):
            consumer.commit(each)
    with pytest.raises(InvalidArgumentError, match="record must be a Record that was read"):
        consumer.commit(Record(b"made by hand"))
    with pytest.raises(InvalidArgumentError, match="topic must be a string"):
        consumer.committed(5)  # type: ignore[arg-type]
    assert store.groups.offsets.all() == {}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("", ["orders"]), "needs the name of its group"),
        (("g", []), "at least one topic"),
        (("g", "orders"), "a list of topic names"),
        ((5, ["orders"]), "group must be a string"),
        (("\ud800", ["orders"]), "half a surrogate pair"),
        (("g" * 40_000, ["orders"]), "longer than 32767 bytes"),
    ],
)
def test_what_is_no_consumer_is_refused(store: Store, orders: Topic, arguments: Any, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        store.consumer(*arguments)
    with pytest.raises(UnknownTopicError, match="nope"):
        store.consumer("g", ["orders", "nope"])
    assert store.groups.members("g") == 0


# -- the records -----------------------------------------------------------------------------------------


def test_the_records_are_kafkas() -> None:
    key = bytes.fromhex("0001 0007 62696c6c696e67 0006 6f7264657273 00000002")
    assert offsets.pack_key("billing", "orders", 2) == key
    assert offsets.parse_key(key) == ("billing", "orders", 2)
    value = bytes.fromhex("0003 000000000000002a ffffffff 0002 6d64 0000018bcfe56800")
    committed = CommittedOffset(42, -1, "md", 1_700_000_000_000)
    assert offsets.pack_value(committed) == value
    assert offsets.parse_value(value) == committed
    assert (
        offsets.parse_value(
            bytes.fromhex("0001 000000000000002a 0002 6d64 0000018bcfe56800 ffffffffffffffff")
        )
        == committed
    )
    flexible = "0004 000000000000002a ffffffff 03 6d64 0000018bcfe56800 00"
    assert offsets.parse_value(bytes.fromhex(flexible)) == committed
    assert offsets.parse_key(bytes.fromhex("0002 0001 67")) is None
    for cut in range(2, len(key)):
        with pytest.raises(stratalog.errors.CorruptionError):
            offsets.parse_key(key[:cut])
    # Java: Math.abs("console-consumer-1".hashCode()) % 50 and the like
    assert [offsets.partition_of(name, 50) for name in ("billing", "a", "")] == [
        offsets.partition_of("billing", 50),
        47,
        0,
    ]


def test_a_foreign_directory_of_offsets_is_understood(store: Store, orders: Topic) -> None:
    kept = for_coordinator(store.create_topic(OFFSETS_TOPIC, 50, {"cleanup.policy": "compact"}))
    kept.append(b"\0\0", key=bytes.fromhex("0002 0001 67"), partition=0)
    store.groups.offsets.commit("billing", {("orders", 0): 4})
    at = offsets.partition_of("billing", 50)
    assert [record.key for record in kept.read(at)] == [offsets.pack_key("billing", "orders", 0)]
    with store.consumer("billing", ["orders"], timeout_s=0) as consumer:
        assert len(numbers(consumer)) == 26
    store.groups.offsets.forget("billing", {("orders", 0): None})
    assert store.groups.offsets.all() == {}


def test_one_group_is_looked_up_without_decoding_the_others(
    store: Store, orders: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["g", "gg", "g1", "ü", "", "1" * 300]
    kept = store.groups.offsets
    for turn in range(3):
        for at, name in enumerate(names):
            kept.commit(name, {("orders", at % 3): turn, ("other", 0): at})
    kept.forget("gg", {("orders", 1): None, ("other", 0): None})
    everything, places = kept.all(), kept.places()
    assert set(everything) == set(names) - {"gg"}
    decoded: list[bytes] = []
    real = offsets.parse_key
    monkeypatch.setattr(offsets, "parse_key", lambda data: decoded.append(data) or real(data))  # type: ignore[func-returns-value]
    for name in [*names, "nobody", "x" * 40_000]:
        decoded.clear()
        assert kept.all([name]).get(name) == everything.get(name)
        assert kept.has(name) == (name in everything)
        assert len(decoded) <= 2 * 8, "each of the two looks decodes the group's own records"
        assert kept.places([name]).get(name) == places.get(name)
    assert kept.all(["g", "ü"]) == {name: everything[name] for name in ("g", "ü")}


def test_a_consumer_is_a_value_of_the_package(store: Store, orders: Topic) -> None:
    consumer = store.consumer("g", ["orders"])
    assert isinstance(consumer, Consumer)
    assert repr(consumer) == "<Consumer of 'g': orders>"
    assert Record(b"").topic == ""
