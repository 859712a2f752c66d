"""Every sealed record is in the output once: run after run, in any order of times, and whatever breaks.

Tasks run in this process; what they do is what executors do.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

import stratalog
from stratalog.errors import (
    ConfigError,
    CorruptionError,
    OffsetOutOfRangeError,
    StoreError,
    UnsupportedFormat,
)
from stratalog.fs import RealFileSystem
from stratalog.fs.memory import SimulatedCrash
from stratalog.spark.logs import forget
from stratalog.spark.pipelines import export_log, export_parquet, export_places
from stratalog.spark.pipelines.export import committed_files, export
from stratalog.spark.pipelines.result import PipelineResult
from stratalog.spark.pipelines.spread import spread
from tests.archive.s3 import environment, new_bucket, s3_server
from tests.spark.exports import DAY_MS, NEW_YEAR_MS, fill, log_rows, parquet_rows
from tests.spark.in_process import in_process


def run(log: Path, output: Path | str, **said: Any) -> PipelineResult:
    forget()  # as a process of its own would not know what is cached here
    return export(in_process(), path=str(log), output=str(output), **said)


def left_over(output: Path) -> list[str]:
    """Files that are neither committed nor part of the commit log."""
    known = {*committed_files(str(output))}
    return [
        str(path)
        for path in output.rglob("*")
        if path.is_file()
        and str(path) not in known
        and not path.parent.name.startswith(("commits", "checkpoints"))
        and path.name != ".lock"
    ]


def test_only_what_is_new_and_sealed(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 1)
    first = run(log, output)
    assert first.counts["records"] == 307
    assert parquet_rows(output) == log_rows(log)
    assert run(log, output).counts["records"] == 0
    fill(log, 2, roll=False)
    with stratalog.open(log, read_only=True) as store:
        ends = [store.topic("orders").segments(number)[-1].base_offset for number in range(3)]
    sealed = [row for row in log_rows(log, ["orders"]) if row[2] < ends[row[1]]]
    run(log, output, topics="orders")
    assert [row for row in parquet_rows(output) if row[0] == "orders"] == sealed
    run(log, output, include_active=True)
    assert parquet_rows(output) == log_rows(log)
    assert left_over(output) == []


def test_readers_of_the_directory_see_the_records(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 3)
    run(log, output)
    found = duckdb.sql(
        f"""select topic, "partition", "offset", key, value, epoch_us(timestamp), "timestampType", headers,
        date from read_parquet('{output}/**/*.parquet', hive_partitioning = true)"""
    ).fetchall()
    rows = [(*row[:7], tuple((each["key"], each["value"]) for each in row[7] or ())) for row in found]
    assert sorted(rows, key=lambda row: row[:3]) == log_rows(log)
    assert {row[8].isoformat() for row in found if row[0] == "orders"} == {
        f"2026-01-0{day}" for day in range(1, 5)
    }


def test_backfills_in_any_order_write_nothing_twice(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 4)
    some = run(log, output, since="2026-01-02", until="2026-01-03T12:00:00Z")
    assert run(log, output, since="2026-01-02", until="2026-01-03T12:00:00Z").counts["records"] == 0
    wider = run(log, output, since=NEW_YEAR_MS, until=NEW_YEAR_MS + 3 * DAY_MS, topics=["orders"])
    times = [row[5] // 1000 for row in parquet_rows(output)]
    assert all(NEW_YEAR_MS <= each < NEW_YEAR_MS + 3 * DAY_MS for each in times)
    fill(log, 5)
    rest = run(log, output)
    assert parquet_rows(output) == log_rows(log)
    assert sum(each.counts["records"] for each in (some, wider, rest)) == len(log_rows(log))
    with pytest.raises(ConfigError, match="not before"):
        run(log, output, since="2026-01-02", until="2026-01-01")


def test_replacing_writes_dates_again(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 6)
    run(log, output)
    dates = {"since": "2026-01-02", "until": "2026-01-04"}
    victim = next(path for path in committed_files(str(output)) if "date=2026-01-03" in path)
    os.remove(victim)
    done = run(log, output, replace=True, **dates)
    assert done.counts["replaced_files"] == 2
    assert parquet_rows(output) == log_rows(log)
    with pytest.raises(ConfigError, match="midnight"):
        run(log, output, replace=True, since="2026-01-02", until="2026-01-02T10:00:00Z")
    with stratalog.open(log) as store:
        store.topic("orders").delete_records(1, 50)
    before = parquet_rows(output)
    with pytest.raises(StoreError, match="orders-1.*would lose it"):
        run(log, output, replace=True, **dates)
    assert parquet_rows(output) == before


def test_small_files_are_merged(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    merged = 0
    for turn in range(9):
        fill(log, turn, count=30)
        merged += run(log, output, topics="orders").counts["merged_files"]
    assert merged == 4 * 8
    assert run(log, output, merge=True).counts["merged_files"] > 0
    files = committed_files(str(output))
    assert len(files) == len({os.path.dirname(each) for each in files}) == 5
    assert parquet_rows(output) == log_rows(log)
    assert left_over(output) == []


class Crashing(RealFileSystem):
    """Dies at the n-th change."""

    left = itertools.count()
    at = -1

    def _step(self) -> None:
        if next(Crashing.left) == Crashing.at:
            raise SimulatedCrash("now")

    def make_dir(self, path: str) -> None:
        self._step()
        super().make_dir(path)

    def rename(self, src: str, dst: str) -> None:
        self._step()
        super().rename(src, dst)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self._step()
        super().remove_tree(path)

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self._step()


def test_a_run_that_dies_anywhere_is_made_good_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, base = tmp_path / "log", tmp_path / "base"
    fill(log, 1, count=9)
    run(log, base, topics="clicks.v1")
    fill(log, 2, count=9)
    wanted = log_rows(log, ["clicks.v1"])
    monkeypatch.setattr(export_places, "RealFileSystem", Crashing)
    died = 0
    for at in itertools.count():
        output = tmp_path / f"out-{at}"
        shutil.copytree(base, output)
        Crashing.left, Crashing.at = itertools.count(), at
        try:
            run(log, output, merge=True, topics="clicks.v1")
            crashed = False
        except SimulatedCrash:
            crashed = True
            died += 1
        Crashing.at = -1
        assert all(os.path.exists(each) for each in committed_files(str(output)))
        run(log, output, merge=True, topics="clicks.v1")
        assert parquet_rows(output) == wanted, f"died at change {at}"
        assert left_over(output) == []
        shutil.rmtree(output)
        if not crashed:
            break
    assert died > 20


def test_of_two_at_once_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 7)

    def meanwhile(*said: Any) -> Any:
        written = spread(*said)
        monkeypatch.setattr(export_parquet, "spread", spread)
        run(log, output)
        return written

    monkeypatch.setattr(export_parquet, "spread", meanwhile)
    with pytest.raises(StoreError, match="another export to this output made commit 1 first"):
        run(log, output)
    assert run(log, output).counts["records"] == 0
    assert parquet_rows(output) == log_rows(log)
    assert left_over(output) == []


def test_another_log_of_the_same_name(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 8)
    run(log, output)
    rows = log_rows(log, ["orders"])
    with stratalog.open(log) as store:
        store.delete_topic("orders")
    fill(log, 9)
    run(log, output)
    found = [row for row in parquet_rows(output) if row[0] == "orders"]
    assert Counter(found) == Counter([*rows, *log_rows(log, ["orders"])])
    with stratalog.open(log) as store:
        store.topic("orders").append_many([stratalog.Record(b"late")] * 4, partition=0)
        store.topic("orders").roll()
        end = store.topic("orders").log_end_offset(0)
        store.topic("orders").append_many([stratalog.Record(b"later")] * 4, partition=0)
        store.topic("orders").roll()
        store.topic("orders").delete_records(0, end + 1)
    with pytest.raises(OffsetOutOfRangeError, match="orders-0: offsets 100 to 104 were never exported"):
        run(log, output)
    before = len(parquet_rows(output))
    done = run(log, output, fail_on_data_loss=False)
    assert done.notes == ("orders-0: offsets 100 to 104 left the log before they were exported",)
    assert len(parquet_rows(output)) == before + 3
    assert run(log, output).counts["records"] == 0


def test_the_archive_is_the_same_log(tmp_path: Path) -> None:
    log, cold, output = tmp_path / "log", str(tmp_path / "cold"), str(tmp_path / "out")
    local = {"retention.ms": "-1", "remote.storage.enable": "true", "local.retention.bytes": "1"}
    with stratalog.open(log, {"log.archive.url": cold}) as store:
        topic = store.create_topic("orders", 1, local)
        for turn in range(3):
            topic.append_many([stratalog.Record(b"%d" % turn, b"k", (), NEW_YEAR_MS)] * 5)
            topic.roll()
            store.archive()
        topic.append(b"active", timestamp=NEW_YEAR_MS)
    rows = log_rows(log, ["orders"])
    assert export(in_process(), archive=cold, output=output).counts["records"] == 15
    both: dict[str, Any] = {"path": str(log), "archive": cold, "output": output}
    assert export(in_process(), **both).counts["records"] == 0
    assert export(in_process(), include_active=True, **both).counts["records"] == 1
    assert parquet_rows(output) == rows


def test_a_commit_log_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_log, "CHECKPOINT_EVERY", 2)
    log, output = tmp_path / "log", tmp_path / "out"
    for seed in range(5):
        fill(log, seed, count=9)
        run(log, output)
    commits = output / "_stratalog" / "commits"
    os.remove(commits / "00000002.json")
    assert run(log, output).counts["records"] == 0  # a checkpoint holds it
    newest = commits / "00000005.json"
    said = json.loads(newest.read_text())
    newest.write_text(json.dumps(said | {"format": 9}))
    with pytest.raises(UnsupportedFormat, match=r"00000005\.json"):
        run(log, output)
    newest.write_text(json.dumps(said | {"covered": [["orders", 1]]}))
    with pytest.raises(CorruptionError, match=r"00000005\.json"):
        run(log, output)
    with pytest.raises(ConfigError, match="lies in the log directory"):
        run(log, log / "out")


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stratalog.archive import open_objects
    from tests.spark.exports import table_rows

    log = tmp_path / "log"
    with s3_server() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        output = new_bucket(endpoint)
        for seed in range(2):
            fill(log, seed, count=60)
            run(log, output, merge=True)
        assert run(log, output).counts["records"] == 0
        objects = open_objects(output, RealFileSystem())
        keys = [info.key for info in objects.list("")]
        files = [key for key in keys if key.endswith(".parquet")]
        assert sorted(f"{output}/{key}" for key in files) == committed_files(output)
        assert not any("staging" in key for key in keys)
        tables = []
        for key in files:
            table = pq.read_table(pa.BufferReader(objects.get(key).data))
            topic = key.split("/")[0].removeprefix("topic=")
            tables.append(table.append_column("topic", pa.array([topic] * len(table), pa.string())))
        assert table_rows(pa.concat_tables(tables)) == log_rows(log)
