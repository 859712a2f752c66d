"""Lifecycle work asked for from another process: through the holder's control socket."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog import Record, errors
from stratalog.store.lifecycle.reports import LifecycleReport
from tests.store.lifecycle_support import (
    actions,
    eventually,
)

HOLDER = """
import sys, stratalog
from stratalog import Record
config = {"log.cleaner.io.max.bytes.per.second": 200_000, "log.cleaner.threads": 2}
with stratalog.open(sys.argv[1], config) as store:
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "cleaner.min.segment.age.ms": 0}
    table = store.create_topic("table", 2, compact)
    for partition in range(2):
        for _ in range(4):
            rows = [Record(b"v" * 500, b"k%d" % (at % 50)) for at in range(100)]
            table.append_many(rows, partition=partition)
            table.roll(partition)
    queue = store.create_topic("queue", 1, {"retention.segments": 2})
    for at in range(5):
        queue.append(b"v")
        queue.roll()
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Path]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    yield tmp_path / "log"
    child.communicate(timeout=30)
    assert child.returncode == 0


def test_lifecycle_work_beside_a_holder(holder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with stratalog.connect(holder) as client, stratalog.connect(holder) as second:
        assert client.remote
        shown = client.retain(preview=True)
        assert shown.preview
        assert actions(shown) == [("delete", 0), ("delete", 1), ("delete", 2)]
        assert client.retain().steps == shown.steps
        assert actions(client.retain("queue")) == []
        plan = client.compact("table", preview=True)
        assert [(step.action, step.partition) for step in plan.steps] == [("compact", 0), ("compact", 1)]
        # While the long work goes on, the holder's socket serves others.
        found: list[LifecycleReport] = []

        def compact() -> None:
            found.append(client.compact("table", progress=lambda *each: told.append(each)))

        thread = threading.Thread(target=compact)
        thread.start()
        eventually(lambda: bool(told))
        numbers = second.lifecycle()
        second.append("queue", [Record(b"meanwhile")])
        assert thread.is_alive()
        thread.join()
        assert {(each.topic, each.partition) for each in numbers} == {
            ("queue", 0),
            ("table", 0),
            ("table", 1),
        }
        report = found[0]
        assert [dict(each)["stopped"] for each in report.compactions] == [None, None]
        assert report.steps == plan.steps
        # Both partitions told of themselves; what is done only grows and ends at the whole.
        for name in ("table-0", "table-1"):
            mine = [each for each in told if each[0] == name]
            assert len(mine) > 1
            assert all(0 <= done <= total for _, done, total in mine)
        again = client.janitor(preview=True)
        assert again.preview
        assert client.janitor().steps == again.steps
        with pytest.raises(errors.UnknownTopicError):
            client.compact("absent")
        with pytest.raises(errors.UnknownPartitionError):
            client.compact("table", 9)
        states = {(each.topic, each.partition): set(each.states) for each in client.lifecycle()}
        assert states["table", 0] == {"active", "compacted", "deleted"}
    with stratalog.open(holder, read_only=True) as reader:
        assert len(list(reader.topic("table").read(0))) == 50
        assert [record.value for record in reader.topic("queue").read()] == [b"v", b"v", b"meanwhile"]


def test_an_asker_that_goes_away_does_not_stop_the_work(holder: Path) -> None:
    client = stratalog.connect(holder, timeout_s=60)
    seen = threading.Event()

    def gone(*_: object) -> None:
        seen.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.compact("table", progress=gone)
    assert seen.is_set()
    client.close()
    with stratalog.connect(holder) as other:
        eventually(
            lambda: all(
                "compacted" in each.states and "compacting" not in each.states
                for each in other.lifecycle()
                if each.topic == "table"
            )
        )


def test_delete_topic_through_the_socket_takes_it_from_a_compaction(holder: Path) -> None:
    with stratalog.connect(holder) as client, stratalog.connect(holder) as second:
        found: list[LifecycleReport] = []
        told: list[object] = []
        thread = threading.Thread(
            target=lambda: found.append(client.compact("table", progress=lambda *each: told.append(each)))
        )
        thread.start()
        eventually(lambda: bool(told))
        second.delete_topic("table")
        thread.join()
        assert {each.topic for each in second.lifecycle()} == {"queue"}
        assert all(dict(each)["stopped"] for each in found[0].compactions)
