"""A store keeps no file open whose name is gone: its disk space would not come back."""

from __future__ import annotations

import os
from pathlib import Path

import stratalog
from stratalog import Record

SETTINGS = {"file.delete.delay.ms": 0, "key.index.enable": True, "cleanup.policy": "compact,delete"}


def gone_but_open(root: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of this listing
            continue
        if target.startswith(str(root)) and target.endswith("(deleted)"):
            found.append(target)
    return found


def test_a_log_that_was_read_before_it_was_written_to(tmp_path: Path) -> None:
    with stratalog.open(tmp_path) as store:
        store.create_topic("t", 1, SETTINGS).append(b"x", b"k")
    with stratalog.open(tmp_path, background=False) as store:
        topic = store.topic("t")
        assert next(topic.read()).value == b"x"
        topic.append(b"y", b"k")
        topic.roll()
        topic.delete_records(0, -1)
        store.tick()
        assert gone_but_open(tmp_path) == []


def test_a_reader_beside_a_holder_that_compacts_moves_and_deletes(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    with stratalog.open(places, background=False) as store:
        topic = store.create_topic("t", 1, SETTINGS)
        store.create_topic("other", 1, SETTINGS).append(b"x", b"k")
        with stratalog.open(places, read_only=True) as beside:
            reader = beside.topic("t")
            assert next(beside.topic("other").read()).value == b"x"
            store.delete_topic("other")
            for turn in range(4):
                topic.append_many([Record(b"%d" % turn, key) for key in (b"a", b"b", b"a")])
                topic.roll()
                newest = reader.get(b"a")
                assert newest is not None
                assert newest.value == b"%d" % turn
                store.compact("t", force=True)
                store.tick()
                assert [record.key for record in reader.read()] == [b"b", b"a"]
                assert reader.get(b"a") == newest
            assert gone_but_open(tmp_path / "one/t-0") == gone_but_open(tmp_path / "two/t-0") == []
            store.move_partition("t", 0, str(places[(tmp_path / "one/t-0").exists()]))
            topic.delete_records(0, -1)
            store.tick()
            assert reader.high_watermark() == reader.log_start_offset() == 12
            assert beside.topics() == ["t"]
            assert gone_but_open(tmp_path) == []
