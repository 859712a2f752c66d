"""Who may rewrite a partition: claims, and what happens to a compaction that somebody interrupts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.store.lifecycle.claims import Claims
from stratalog.store.lifecycle.reports import LifecycleReport
from stratalog.store.store import Store
from tests.store.lifecycle_support import (
    COMPACT,
    DAY_MS,
    HOUR_MS,
    Life,
    actions,
    bases,
    eventually,
    fill,
    fill_keys,
)


def test_claims_are_given_to_one_at_a_time() -> None:
    claims, key, order = Claims(), ("t", 0), list[str]()
    with claims.attempt(key) as first:
        assert first
        assert claims.held() == [key]
        with claims.attempt(key) as second:
            assert not second
        with claims.attempt(("t", 1)) as other:
            assert other

        def want() -> None:
            with claims.claim(key):
                order.append("claimed")

        waiting = threading.Thread(target=want)
        waiting.start()
        eventually(lambda: claims.wanted(key))
        order.append("seen")
    waiting.join()
    assert order == ["seen", "claimed"]
    assert not claims.wanted(key)
    assert claims.held() == []
    assert not claims._wanted, "a store has many partitions in its life"


def test_closed_claims_wait_for_whoever_is_at_work() -> None:
    claims, key, order = Claims(), ("t", 0), list[str]()
    go, got = threading.Event(), threading.Event()

    def work() -> None:
        with claims.attempt(key):
            got.set()
            go.wait()
            time.sleep(0.05)
            order.append("done")

    def want() -> None:
        with pytest.raises(errors.ClosedError), claims.claim(key):
            order.append("never")

    threads = [threading.Thread(target=work)]
    threads[0].start()
    got.wait()
    threads.append(threading.Thread(target=want))
    threads[1].start()
    eventually(lambda: claims.wanted(key))
    go.set()
    claims.close()
    order.append("closed")
    for thread in threads:
        thread.join()
    assert order == ["done", "closed"]
    with claims.attempt(key) as late:
        assert not late


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Store]:
    """A store whose compaction takes its time: half a megabyte at 100 kB a second."""
    config = {"log.cleaner.io.max.bytes.per.second": 100_000, "log.cleaner.threads": 2}
    with stratalog.open([tmp_path / "log", tmp_path / "more"], config) as store:
        topic = store.create_topic("t", 2, {key.replace("_", "."): value for key, value in COMPACT.items()})
        for partition in range(2):
            for _ in range(4):
                rows = [Record(b"v" * 500, b"k%d" % (at % 50)) for at in range(120)]
                topic.append_many(rows, partition=partition)
                topic.roll(partition)
        yield store


def compacting(store: Store) -> tuple[threading.Thread, list[LifecycleReport | Exception]]:
    found: list[LifecycleReport | Exception] = []

    def run() -> None:
        try:
            found.append(store.compact("t", force=True))
        except Exception as error:  # noqa: BLE001 - looked at by the test
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: len(store.partitions.claims.held()) == 2)
    return thread, found


@pytest.mark.parametrize("what", ["repair", "move", "delete_topic"])
def test_whoever_wants_the_partition_gets_it_from_a_compaction(
    slow: Store, tmp_path: Path, what: str
) -> None:
    records = list(slow.topic("t").read(1))
    thread, found = compacting(slow)
    began = time.monotonic()
    if what == "repair":
        assert slow.repair("t", 0, action="rebuild-indexes").lost_records == 0
    elif what == "move":
        target = str(tmp_path / ("more" if (tmp_path / "log" / "t-0").exists() else "log"))
        slow.move_partition("t", 0, target)
        assert Path(target, "t-0").is_dir()
    else:
        slow.delete_topic("t")
    took = time.monotonic() - began
    thread.join()
    assert took < 4
    assert isinstance(found[0], LifecycleReport)
    assert not list(tmp_path.rglob("*.cleaned"))
    if what == "delete_topic":
        assert slow.topics() == []
        assert slow.lifecycle() == []
        return
    left = list(slow.topic("t").read(0))
    assert {record.key for record in left} == {record.key for record in records}
    slow.topic("t").append(b"on", b"k1", partition=0)
    assert stratalog.verify(slow).ok
    reports = {each["partition"]: each for each in found[0].compactions}
    assert reports[0]["stopped"] is not None
    assert reports[1]["stopped"] is None


def test_closing_while_a_round_is_running(slow: Store, tmp_path: Path) -> None:
    thread, found = compacting(slow)
    began = time.monotonic()
    slow.close()
    assert time.monotonic() - began < 4
    assert not slow.partitions.claims.held()
    thread.join()
    assert isinstance(found[0], LifecycleReport | errors.StratalogError)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".cleaned", ".swap")]
    with stratalog.open([tmp_path / "log", tmp_path / "more"]) as store:
        assert stratalog.verify(store).ok
        assert {record.key for record in store.topic("t").read(1)} == {b"k%d" % at for at in range(50)}
        store.compact(force=True)
        assert len(list(store.topic("t").read(1))) == 50


def test_closing_while_the_janitor_is_at_it(tmp_path: Path) -> None:
    config = {
        "log.cleaner.io.max.bytes.per.second": 100_000,
        "log.cleaner.backoff.ms": 10,
        "log.retention.check.interval.ms": 10,
    }
    with stratalog.open(tmp_path / "log", config, janitor=True) as store:
        topic = store.create_topic("t", 1, {key.replace("_", "."): value for key, value in COMPACT.items()})
        fill_keys(topic, 5, records=100, size=1000)
        eventually(lambda: bool(store.partitions.claims.held()))
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stratalog-janitor")]
    with stratalog.open(tmp_path / "log") as store:
        assert stratalog.verify(store).ok


def test_a_topic_deleted_while_a_round_plans_is_left_out() -> None:
    life = Life()
    for name in ("a", "b"):
        fill(life.topic(name, retention_segments=1), 3)
    lifecycle = life.store._lifecycle
    writers = lifecycle.views(None)
    entry, writer = next(writers)
    life.store.delete_topic("a")
    with pytest.raises((errors.UnknownTopicError, FileNotFoundError)):
        lifecycle.situation(entry, writer, cleaning=True)
    assert [each.topic for _, each in writers] == ["b"]
    assert {step.topic for step in life.store.retain().steps} == {"b"}
    life.store.close()


def test_retention_and_compaction_of_one_partition_at_once() -> None:
    """Segments that retention chose are merged with a younger one before it gets to them."""
    life = Life()
    topic = life.topic(**{**COMPACT, "cleanup_policy": "compact,delete", "retention_ms": DAY_MS})
    for _ in range(2):
        fill_keys(topic, 1, keys=20)
        life.pass_time(11 * HOUR_MS)
    fill_keys(topic, 1, keys=20)
    topic.append(b"active", b"k")
    life.pass_time(2 * HOUR_MS + 1)
    lifecycle = life.store._lifecycle
    planned = life.store.retain(preview=True)
    assert actions(planned) == [("delete", 0)]
    life.store.compact(force=True)
    assert bases(topic) == [0, 60]
    survivors = [record.offset for record in topic.read()]
    # What was planned before is carried out now.
    from stratalog.store.lifecycle.lifecycle import _Work

    work = _Work(lifecycle, None)
    writer = life.store.partitions.writer("t", 0)
    work.carry_out(writer, [step for step in planned.steps if step.due])
    assert work.notes == []
    assert topic.log_start_offset() == 20
    assert [record.offset for record in topic.read()] == [offset for offset in survivors if offset >= 20]
    life.store.close()
