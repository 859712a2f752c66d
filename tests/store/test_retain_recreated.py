"""Retention that was decided for a topic does not touch the next topic of that name."""

from __future__ import annotations

import stratalog
from stratalog.store.store import Store
from stratalog.testing import FailingFileSystem, MemoryFileSystem

SETTINGS = {"segment.bytes": 200, "retention.ms": -1, "retention.bytes": 300}


def fill(store: Store, count: int) -> None:
    topic = store.create_topic("t", 1, SETTINGS)
    for at in range(count):
        topic.append(b"%03d" % at)


def test_what_was_decided_about_a_deleted_topic() -> None:
    fs = FailingFileSystem(MemoryFileSystem())
    with stratalog.open("/data", fs=fs, background=False) as store:
        fill(store, 20)
        store.retain("t", preview=True)  # reads what is cached from then on
        looks: list[str] = []
        fs.before_call = looks.append
        store.retain("t", preview=True)
        calls: list[str] = []

        def recreate_at_the_last_look(call: str) -> None:
            calls.append(call)
            if len(calls) == len(looks):
                fs.before_call = None
                store.delete_topic("t")
                fill(store, 20)

        fs.before_call = recreate_at_the_last_look
        report = store.retain("t")
        assert calls == looks
        assert any(step.action == "delete" for step in report.steps)
        assert report.notes
        assert store.topic("t").log_start_offset() == 0
        assert [record.value for record in store.topic("t").read()] == [b"%03d" % at for at in range(20)]
