"""`compact --force` waits for nothing but min.compaction.lag.ms, which is a promise to readers."""

from __future__ import annotations

from pathlib import Path

import pytest

import stratalog
from stratalog import Record
from stratalog.store.store import Store


def fresh(store: Store, **config: object) -> stratalog.Topic:
    """Make a topic whose sealed segment was written just now, two records of each key in it."""
    settings = {"cleanup.policy": "compact", "segment.ms": "1d"} | {
        key.replace("_", "."): value for key, value in config.items()
    }
    topic = store.create_topic("t", config=settings)
    topic.append_many([Record(b"%d" % at, b"k%d" % (at % 10)) for at in range(20)])
    topic.roll()
    return topic


@pytest.mark.parametrize("config", [{}, {"max_compaction_lag_ms": "10m"}])
def test_force_takes_segments_written_just_now(tmp_path: Path, config: dict[str, object]) -> None:
    with stratalog.open(tmp_path) as store:
        topic = fresh(store, **config)
        assert [step.action for step in store.compact().steps] == ["skip"]
        assert [step.action for step in store.compact(force=True, preview=True).steps] == ["compact"]
        store.compact(force=True)
        assert [record.value for record in topic.read()] == [b"%d" % at for at in range(10, 20)]


def test_force_lends_segments_written_just_now(tmp_path: Path) -> None:
    """Spark borrows what it compacts: the same plan decides."""
    with stratalog.open(tmp_path) as store:
        fresh(store)
        assert store.lend_compaction("t", 0)[2] is None
        _, token, task = store.lend_compaction("t", 0, force=True)
        assert task is not None
        store.take_in_compaction(token, None)


def test_force_keeps_what_readers_were_promised(tmp_path: Path) -> None:
    with stratalog.open(tmp_path) as store:
        topic = fresh(store, min_compaction_lag_ms="1h")
        assert not any(step.due for step in store.compact(force=True).steps)
        assert len(list(topic.read())) == 20
