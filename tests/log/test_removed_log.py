"""Another program removes or replaces a `.log` file that is open: what was lost is not acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog.errors import ReadOnlyError, StorageError
from stratalog.store.store import Store

FIRST = "00000000000000000000.log"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = stratalog.open(tmp_path / "data", background=False)
    store.create_topic("t").append(b"before", sync=True)
    return store


def log(tmp_path: Path) -> Path:
    return tmp_path / "data" / "t-0" / FIRST


def lost(store: Store) -> None:
    with pytest.raises(StorageError, match=rf"{FIRST}: removed or replaced") as caught:
        store.topic("t").append(b"after", sync=True)
    assert not isinstance(caught.value, ReadOnlyError)
    with pytest.raises(ReadOnlyError, match=FIRST):
        store.topic("t").append(b"later")
    with pytest.raises(ReadOnlyError):
        store.topic("t").flush()


def test_a_removed_log_is_noticed_by_a_synced_append(store: Store, tmp_path: Path) -> None:
    log(tmp_path).unlink()
    lost(store)


def test_a_replaced_log_is_noticed_by_a_synced_append(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(log(tmp_path).read_bytes())
    copy.rename(log(tmp_path))
    lost(store)


def test_a_removed_log_is_noticed_by_a_flush(store: Store, tmp_path: Path) -> None:
    store.topic("t").append(b"unsynced")
    log(tmp_path).unlink()
    with pytest.raises(StorageError, match=FIRST):
        store.topic("t").flush()


def test_a_removed_sealed_log_is_noticed_by_the_next_round(store: Store, tmp_path: Path) -> None:
    store.topic("t").append(b"unsynced")
    store.topic("t").roll()
    log(tmp_path).unlink()
    with pytest.raises(StorageError, match=FIRST):
        store.topic("t").append(b"in the next segment", sync=True)


def test_a_log_that_retention_deleted_is_no_loss(store: Store, tmp_path: Path) -> None:
    topic = store.topic("t")
    topic.append(b"unsynced")
    topic.roll()
    topic.delete_records(0, 2)
    log(tmp_path).unlink(missing_ok=True)
    topic.append(b"in the next segment", sync=True)
    assert [record.value for record in topic.read()] == [b"in the next segment"]
    store.close()
