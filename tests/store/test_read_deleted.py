"""A read of a topic that is deleted meanwhile ends with an error that says so, never in another topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import stratalog
from stratalog.errors import UnknownTopicError
from stratalog.store.store import Store
from stratalog.testing import MemoryFileSystem

SETTINGS = {"segment.bytes": 200, "key.index.enable": True}
COUNT = 12


@pytest.fixture
def store() -> Iterator[Store]:
    with stratalog.open("/data", fs=MemoryFileSystem(), background=False) as store:
        fill(store, "old")
        yield store


def fill(store: Store, what: str) -> None:
    topic = store.create_topic("t", 1, SETTINGS)
    for at in range(COUNT):
        topic.append(f"{what} {at:02}".encode(), b"k%02d" % at)
    assert len(topic.segments()) > 3


def delete(store: Store) -> None:
    store.delete_topic("t")


def recreate(store: Store) -> None:
    store.delete_topic("t")
    fill(store, "new")


@pytest.mark.parametrize("change", [delete, recreate])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_read_that_has_begun(store: Store, change: Callable[[Store], None], isolation: str) -> None:
    reading = store.topic("t").read(isolation=isolation)
    assert next(reading).value == b"old 00"
    change(store)
    seen: list[bytes] = []
    with pytest.raises(UnknownTopicError, match="topic t was deleted"):
        seen.extend(record.value or b"" for record in reading)
    assert all(value.startswith(b"old") for value in seen)


@pytest.mark.parametrize("change", [delete, recreate])
def test_a_read_that_was_asked_for_and_has_not_begun(store: Store, change: Callable[[Store], None]) -> None:
    reading = store.topic("t").read()
    change(store)
    with pytest.raises(UnknownTopicError, match="topic t was deleted"):
        next(reading)


@pytest.mark.parametrize("change", [delete, recreate])
def test_a_scan_that_has_begun(store: Store, change: Callable[[Store], None]) -> None:
    scan = store.topic("t").scan(columns=["value"], threads=1)
    change(store)
    seen: list[bytes] = []
    with pytest.raises(UnknownTopicError, match="topic t was deleted"):
        seen.extend(value for batch in scan for value in batch.column("value").to_pylist())
    assert all(value.startswith(b"old") for value in seen)
