"""A partition's directory that another program removes under an open store: every operation says so."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Record, Store, Topic, errors


def flush(store: Store, topic: Topic) -> None:
    topic.append(b"x")
    topic.flush()


def flush_everything(store: Store, topic: Topic) -> None:
    topic.append(b"x")
    store.flush()


OPERATIONS: dict[str, Callable[[Store, Topic], Any]] = {
    "append": lambda store, topic: topic.append(b"x"),
    "append to a partition": lambda store, topic: topic.append(b"x", partition=0),
    "append with sync": lambda store, topic: topic.append(b"x", sync=True),
    "append many": lambda store, topic: topic.append_many([Record(b"x")], sync=True),
    "end a transaction": lambda store, topic: topic.end_transaction(
        0, producer_id=1, producer_epoch=0, commit=True
    ),
    "roll": lambda store, topic: topic.roll(),
    "flush": flush,
    "flush everything": flush_everything,
    "delete some": lambda store, topic: topic.delete_records(0, 12),
    "delete everything": lambda store, topic: topic.delete_records(0, -1),
    "erase": lambda store, topic: store.erase("t", [b"k"]),
    "segments": lambda store, topic: topic.segments(),
    "size": lambda store, topic: topic.size_bytes(),
    "close": lambda store, topic: store.close(),
    "move": lambda store, topic: store.move_partition("t", 0, other(store)),
}
ROUNDS: dict[str, Callable[[Store], Any]] = {
    "retain": lambda store: store.retain("t"),
    "compact": lambda store: store.compact("t", force=True),
    "archive": lambda store: store.archive("t"),
    "janitor": lambda store: store.janitor(),
}


def other(store: Store) -> str:
    here = store.partitions.place("t", 0)[0].path
    return next(each.path for each in store.log_dirs() if each.path != here)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = stratalog.open([tmp_path / "a", tmp_path / "b"], background=False)
    topic = store.create_topic("t", 1, {"key.index.enable": True})
    for at in range(20):
        topic.append(b"%d" % at, b"k")
        if at in (4, 9, 14):
            topic.roll()
    topic.flush()
    yield store
    try:
        store.close()
    except errors.StratalogError:
        store.close()


def remove(store: Store) -> str:
    """Remove the directory, with no file of it left open."""
    directory = store.partitions.place("t", 0)[1]
    store.partitions.writers()[0].release_handle()
    store.partitions.context.handles.forget_below(directory)
    shutil.rmtree(directory)
    return directory


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_names_the_directory_and_the_way_out(store: Store, operation: str) -> None:
    topic = store.topic("t")
    directory = remove(store)
    with pytest.raises(errors.StorageError, match=re.escape(directory)) as told:
        OPERATIONS[operation](store, topic)
    assert "stratalog repair t" in str(told.value)


@pytest.mark.parametrize("operation", ROUNDS)
def test_a_round_notes_it(store: Store, operation: str) -> None:
    store.alter_topic("t", {"retention.bytes": 1, "cleanup.policy": "compact,delete"})
    directory = remove(store)
    notes = ROUNDS[operation](store).notes
    assert [note for note in notes if f"{directory} is gone" in note and "stratalog repair t" in note], notes


def test_verify_reports_it(store: Store) -> None:
    directory = remove(store)
    assert any(directory in str(each) for each in stratalog.verify(store).damages)


def test_settings_can_be_changed(store: Store) -> None:
    remove(store)
    store.alter_topic("t", {"flush.messages": 1})
    assert store.topic("t").config.flush_messages == 1


def test_the_topic_can_be_deleted(store: Store) -> None:
    remove(store)
    store.delete_topic("t")
    assert store.topics() == []
    assert store.create_topic("t").append(b"x").offset == 0


def test_a_directory_that_is_put_back_is_used_again(store: Store) -> None:
    topic = store.topic("t")
    directory = store.partitions.place("t", 0)[1]
    store.partitions.writers()[0].release_handle()
    Path(directory).rename(f"{directory}.away")
    with pytest.raises(errors.StorageError, match="is gone"):
        topic.roll()
    Path(f"{directory}.away").rename(directory)
    assert topic.append(b"20", b"k").offset == 20
    assert len(list(topic.read())) == 21


@pytest.mark.parametrize("action", ["drop-damaged", "truncate"])
def test_repair_gives_the_partition_up_in_the_open_store(store: Store, action: str) -> None:
    topic = store.topic("t")
    remove(store)
    assert store.repair("t", 0, action="rebuild-indexes").lost == []
    assert store.repair("t", 0, action=action, dry_run=True).lost
    with pytest.raises(errors.StorageError):
        topic.roll()
    assert store.repair("t", 0, action=action).lost
    assert topic.append(b"new", b"k").offset == 20
    assert [record.value for record in topic.read()] == [b"new"]
    assert topic.log_start_offset() == 20


def test_a_file_that_is_gone_is_named(store: Store) -> None:
    topic = store.topic("t")
    directory = Path(store.partitions.place("t", 0)[1])
    path = directory / f"{15:020}.log"
    store.partitions.writers()[0].release_handle()
    store.partitions.context.handles.forget_below(str(directory))
    path.unlink()
    with pytest.raises(errors.StorageError, match=re.escape(str(path))):
        topic.append(b"x")


def test_a_log_directory_that_vanishes_stops_its_own_partitions_only(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with stratalog.open(paths, background=False) as made:
        made.create_topic("t", 2).append_many([Record(b"0", key=b"%d" % at) for at in range(20)])
    store = stratalog.open(paths, config={"log.retention.ms": -1}, background=False)
    topic = store.topic("t")
    lost, kept = (store.partitions.place("t", number)[0].path for number in (0, 1))
    assert lost != kept
    Path(lost).rename(tmp_path / "away")
    end = topic.high_watermark(1)
    assert topic.append(b"x", partition=1, sync=True).offset == end
    with pytest.raises(errors.StorageError, match="is gone"):
        topic.append(b"x", partition=0)
    with pytest.raises(errors.StorageError):
        store.close()
    (tmp_path / "away").rename(lost)
    with stratalog.open(paths, background=False) as again:
        assert again.topic("t").high_watermark(1) == end + 1
        assert again.topic("t").append(b"x", partition=0).offset == 20 - end
