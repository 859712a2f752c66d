"""Every sealed record is in the output once: run after run, whatever breaks, in each of the formats.

Tasks run in this process; what they do is what executors do.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

import stratalog
from stratalog.errors import ConfigError, OffsetOutOfRangeError, StoreError
from stratalog.fs import RealFileSystem
from stratalog.fs.memory import SimulatedCrash
from stratalog.spark.logs import forget
from stratalog.spark.pipelines import PipelineResult
from stratalog.spark.pipelines import export as module
from stratalog.spark.pipelines.executors import spread
from stratalog.spark.pipelines.export import TABLES, export
from stratalog.spark.pipelines.lake import delta, files
from stratalog.spark.pipelines.lake.delta import DeltaOutput, application, committed_files, storage_options
from stratalog.spark.pipelines.lake.iceberg import IcebergOutput
from stratalog.spark.pipelines.lake.parquet_files import ParquetFiles
from tests.archive.s3 import environment, new_bucket, s3_server
from tests.spark.exports import NEW_YEAR_MS, READERS, delta_rows, fill, log_rows, parquet_rows, table_rows
from tests.spark.in_process import in_process

every_table = pytest.mark.parametrize("table", TABLES)
OUTPUTS: dict[str, Any] = {"delta": DeltaOutput, "iceberg": IcebergOutput, "parquet": ParquetFiles}


def run(log: Path, output: Path | str, table: str = "delta", **said: Any) -> PipelineResult:
    forget()  # as a process of its own would not know what is cached here
    return export(in_process(), path=str(log), output=str(output), table=table, **said)


@every_table
def test_only_what_is_new_and_sealed(tmp_path: Path, table: str) -> None:
    log, output, rows = tmp_path / "log", tmp_path / "out", READERS[table]
    fill(log, 1)
    first = run(log, output, table)
    assert first.counts["records"] == 307
    assert rows(output) == log_rows(log)
    assert run(log, output, table).counts["records"] == 0
    fill(log, 2, roll=False)
    with stratalog.open(log, read_only=True) as store:
        ends = [store.topic("orders").segments(number)[-1].base_offset for number in range(3)]
    sealed = [row for row in log_rows(log, ["orders"]) if row[2] < ends[row[1]]]
    run(log, output, table, topics="orders")
    assert [row for row in rows(output) if row[0] == "orders"] == sealed
    run(log, output, table, include_active=True)
    assert rows(output) == log_rows(log)
    with pytest.raises(ConfigError, match="lies in the log directory"):
        run(log, log / "out", table)


def test_the_ends_are_application_transactions_of_the_same_commit(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 1)
    done = run(log, output)
    fill(log, 2)
    run(log, output)
    table = DeltaTable(str(output))
    with stratalog.open(log, read_only=True) as store:
        ids = {name: store.topic(name).id for name in ("orders", "clicks.v1")}
        ends = {number: store.topic("orders").log_end_offset(number) for number in range(3)}
    properties = table.metadata().configuration
    topic_id = properties["stratalog.topic.orders"]
    assert len({topic_id, properties["stratalog.topic.clicks.v1"]}) == len(set(ids.values())) == 2
    assert {n: table.transaction_version(application(f"{topic_id}:{n}")) for n in range(3)} == ends
    assert table.version() == done.details["version"] + 1, "one commit a run"  # type: ignore[operator]
    assert [entry["operation"] for entry in table.history(2)] == ["WRITE", "WRITE"]


def test_readers_see_the_records(tmp_path: Path) -> None:
    log, output, plain = tmp_path / "log", tmp_path / "out", tmp_path / "plain"
    fill(log, 3)
    run(log, output)
    run(log, plain, "parquet")
    data = DeltaTable(str(output)).to_pyarrow_dataset()
    wanted = """select topic, "partition", "offset", key, value, epoch_us(timestamp), "timestampType",
        headers, date from {}"""
    by_name = f"read_parquet('{plain}/**/*.parquet', hive_partitioning = true)"
    for source in ("data", by_name):
        with duckdb.connect() as connection:
            if source == "data":
                connection.register("data", data)
            found = connection.sql(wanted.format(source)).fetchall()
        rows = [(*row[:7], tuple((each["key"], each["value"]) for each in row[7] or ())) for row in found]
        assert sorted(rows, key=lambda row: row[:3]) == log_rows(log)
        assert {row[8].isoformat() for row in found if row[0] == "orders"} == {
            f"2026-01-0{day}" for day in range(1, 5)
        }
    # The statistics of a file skip it, and never a row: a filter finds what it finds without them.
    import pyarrow.dataset as ds

    for offset in (0, 37, 99):
        skipped = data.to_table(filter=(ds.field("offset") == offset) & (ds.field("partition") == 1))
        assert skipped.num_rows == 1


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_a_first_export_of_some_times_and_the_rest_by_replacing(tmp_path: Path, table: str) -> None:
    log, output, rows = tmp_path / "log", tmp_path / "out", READERS[table]
    fill(log, 4)
    some = run(log, output, table, since="2026-01-02", until="2026-01-04", topics="orders")
    middle = {f"2026-01-0{day}" for day in (2, 3)}
    assert rows(output) == [row for row in log_rows(log, ["orders"]) if date_of(row) in middle]
    assert some.counts["records"] == len(rows(output))
    with pytest.raises(ConfigError, match="orders-0 up to offset 99 already; pass replace"):
        run(log, output, table, since="2026-01-02", topics="orders")
    assert run(log, output, table, topics="orders").counts["records"] == 0, "it went on from the end"
    fill(log, 5)
    run(log, output, table)
    late = {"replace": True, "since": "2026-01-04", "until": "2026-01-05"}
    early = {"replace": True, "since": "2026-01-01", "until": "2026-01-03"}
    for dates in (late, early, late):
        run(log, output, table, topics="orders", **dates)
    assert rows(output) == log_rows(log)
    with pytest.raises(ConfigError, match="not before"):
        run(log, output, table, since="2026-01-02", until="2026-01-01")


def date_of(row: tuple[Any, ...]) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(row[5] / 1e6, dt.UTC).date().isoformat()


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_replacing_writes_dates_again(tmp_path: Path, table: str) -> None:
    log, output, rows = tmp_path / "log", tmp_path / "out", READERS[table]
    fill(log, 6)
    run(log, output, table)
    dates = {"since": "2026-01-02", "until": "2026-01-04"}
    for _ in range(2):
        done = run(log, output, table, replace=True, topics=["orders"], **dates)
        assert done.counts["replaced_files"] == 2
        assert rows(output) == log_rows(log)
    with pytest.raises(ConfigError, match="midnight"):
        run(log, output, table, replace=True, since="2026-01-02", until="2026-01-02T10:00:00Z")
    with stratalog.open(log) as store:
        store.topic("orders").delete_records(1, 50)
    before = rows(output)
    with pytest.raises(StoreError, match="orders-1.*would lose it"):
        run(log, output, table, replace=True, **dates)
    with stratalog.open(log) as store:
        store.delete_topic("orders")
    with pytest.raises(StoreError, match="orders-0.*would lose it"):
        run(log, output, table, replace=True, **dates)
    assert rows(output) == before
    with pytest.raises(ConfigError, match="table=delta or iceberg"):
        run(log, tmp_path / "plain", "parquet", replace=True, **dates)


def test_replacing_takes_the_log_as_it_is_now(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    with stratalog.open(log) as store:
        topic = store.create_topic("t", 1, {"cleanup.policy": "compact", "cleaner.min.segment.age.ms": 0})
        topic.append_many([stratalog.Record(b"%d" % n, b"k%d" % (n % 3), (), NEW_YEAR_MS) for n in range(30)])
        topic.roll()
        topic.append(b"later", b"other", (), NEW_YEAR_MS)
        run(log, output)
        assert len(delta_rows(output)) == 30
        store.compact("t", force=True)
    run(log, output, replace=True, since="2026-01-01", until="2026-01-02")
    kept = delta_rows(output)
    assert kept == [row for row in log_rows(log, ["t"]) if row[4] != b"later"]
    assert len(kept) < 30
    run(log, output, include_active=True)
    assert delta_rows(output) == log_rows(log, ["t"])


def test_small_files_are_merged_by_the_table_itself(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    for turn in range(4):
        fill(log, turn, count=30)
        run(log, output)
    assert run(log, output, merge=True, topics="orders").counts["merged_files"] == 16
    files = committed_files(str(output))
    assert files is not None
    assert len([each for each in files if "topic=orders" in each]) == 4
    assert len([each for each in files if "topic=clicks.v1" in each]) == 4
    assert delta_rows(output) == log_rows(log)
    fill(log, 9, count=30)
    assert run(log, output, merge=True).counts["records"] == 37
    assert delta_rows(output) == log_rows(log)
    for table in ("iceberg", "parquet"):
        with pytest.raises(ConfigError, match="merge"):
            run(log, tmp_path / table, table, merge=True)


@every_table
def test_a_run_that_dies_at_its_commit_is_made_good_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Before the commit nothing happened, after it everything: dead on either side of every commit."""
    log, output, kind = tmp_path / "log", tmp_path / "out", OUTPUTS[table]
    commit: Callable[..., int] = kind.commit

    def before(self: Any, change: Any) -> int:
        raise SimulatedCrash("before")

    def after(self: Any, change: Any) -> int:
        commit(self, change)
        raise SimulatedCrash("after")

    for turn, dies in enumerate((before, after, before, after, after, before)):
        fill(log, turn, count=9)
        monkeypatch.setattr(kind, "commit", dies)
        with pytest.raises(SimulatedCrash):
            run(log, output, table)
        monkeypatch.setattr(kind, "commit", commit)
        if turn % 2:
            done = run(log, output, table)
            assert (done.counts["records"] == 0) == (dies is after)
            assert READERS[table](output) == log_rows(log)
    run(log, output, table)
    assert READERS[table](output) == log_rows(log)


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


@pytest.mark.parametrize("table", ["delta", "parquet"])
def test_a_run_that_dies_anywhere_is_made_good_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    log, base = tmp_path / "log", tmp_path / "base"
    fill(log, 1, count=9)
    run(log, base, table, topics="orders")
    fill(log, 2, count=9)
    wanted = log_rows(log, ["orders"])
    monkeypatch.setattr(files, "RealFileSystem", Crashing)
    monkeypatch.setattr(delta, "RealFileSystem", Crashing)
    died = 0
    for at in itertools.count():
        output = tmp_path / f"out-{at}"
        shutil.copytree(base, output)
        Crashing.left, Crashing.at = itertools.count(), at
        try:
            run(log, output, table, topics="orders")
            crashed = False
        except SimulatedCrash:
            crashed = True
            died += 1
        Crashing.at = -1
        run(log, output, table, topics="orders")
        assert READERS[table](output) == wanted, f"died at change {at}"
        shutil.rmtree(output)
        if not crashed:
            break
    assert died > (6 if table == "delta" else 20)


@every_table
def test_of_two_at_once_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 6)
    run(log, output, table)
    fill(log, 7)
    inner: list[PipelineResult] = []

    def meanwhile(*said: Any) -> Any:
        written = spread(*said)
        monkeypatch.setattr(module, "spread", spread)
        inner.append(run(log, output, table))
        return written

    monkeypatch.setattr(module, "spread", meanwhile)
    outer = run(log, output, table)
    assert inner[0].counts["records"] == 307
    if table != "parquet":  # a lost race is planned again, and there is nothing left to do
        assert outer.counts["records"] == 0
        assert run(log, output, table).counts["records"] == 0
    assert READERS[table](output) == log_rows(log)
    if table == "delta":
        files = committed_files(str(output))
        assert files is not None
        assert sorted(files) == sorted(map(str, output.rglob("*.parquet"))), "the loser's files are gone"


def test_two_plain_exports_that_overlap_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 7)

    def meanwhile(*said: Any) -> Any:
        written = spread(*said)
        monkeypatch.setattr(module, "spread", spread)
        fill(log, 8)
        run(log, output, "parquet")
        return written

    monkeypatch.setattr(module, "spread", meanwhile)
    run(log, output, "parquet")
    with pytest.raises(StoreError, match="two exports wrote at once"):
        run(log, output, "parquet")


def test_a_range_of_plain_files_counts_when_it_is_whole(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 1, count=60)
    run(log, output, "parquet")
    names = sorted(
        path.name for path in output.rglob("*.parquet") if path.parent.parent.name == "topic=orders"
    )
    assert names[0].startswith(f"00000-{0:020d}-{19:020d}-1of4-")
    assert len(names) == 12
    os.remove(next(output.rglob("date=2026-01-03/00001-*")))
    done = run(log, output, "parquet")
    assert done.counts["records"] == 20, "the incomplete range is written again, whole"
    assert parquet_rows(output) == log_rows(log)
    assert sorted(path.name for path in output.rglob("topic=orders/*/*.parquet")) == names


def test_a_topic_made_anew_and_offsets_that_are_gone(tmp_path: Path) -> None:
    for table in TABLES:
        log, output, rows = tmp_path / f"log-{table}", tmp_path / f"out-{table}", READERS[table]
        fill(log, 8)
        run(log, output, table)
        old = log_rows(log, ["orders"])
        with stratalog.open(log) as store:
            store.delete_topic("orders")
        fill(log, 9)
        run(log, output, table)
        found = [row for row in rows(output) if row[0] == "orders"]
        assert Counter(found) == Counter([*old, *log_rows(log, ["orders"])])
        with stratalog.open(log) as store:
            store.topic("orders").append_many([stratalog.Record(b"late")] * 4, partition=0)
            store.topic("orders").roll()
            end = store.topic("orders").log_end_offset(0)
            store.topic("orders").append_many([stratalog.Record(b"later")] * 4, partition=0)
            store.topic("orders").roll()
            store.topic("orders").delete_records(0, end + 1)
        with pytest.raises(OffsetOutOfRangeError, match="orders-0: offsets 100 to 104 were never exported"):
            run(log, output, table)
        before = len(rows(output))
        done = run(log, output, table, fail_on_data_loss=False)
        assert done.notes == ("orders-0: offsets 100 to 104 left the log before they were exported",)
        assert len(rows(output)) == before + 3
        assert run(log, output, table).counts["records"] == 0


def test_an_older_copy_of_the_log_is_told(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 1)
    shutil.copytree(log, tmp_path / "older")
    fill(log, 2)
    run(log, output)
    with pytest.raises(StoreError, match="restored from an older copy"):
        run(tmp_path / "older", output)


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
    assert delta_rows(output) == rows


def test_a_run_without_new_sealed_records_says_where_the_others_are(tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    with stratalog.open(log) as store:
        topic = store.create_topic("orders", 2)
        store.create_topic("none")
        for number in range(3):
            topic.append(b"v", partition=number % 2, timestamp=NEW_YEAR_MS)
    nothing = run(log, output)
    assert nothing.counts["records"] == 0
    [note] = nothing.notes
    assert note == (
        "orders: nothing new is sealed, and 3 offsets are in active segments: seal them"
        " (stratalog roll orders), or pass include_active (--include-active)"
    )
    assert run(log, output, include_active=True).notes == ()
    assert run(log, output).notes == ()
    with stratalog.open(log) as store:
        store["orders"].roll()
        store["orders"].append(b"v", timestamp=NEW_YEAR_MS, partition=0)
    assert "1 offset is in an active segment" in run(log, output).notes[0]


def test_an_output_that_is_something_else_is_told(tmp_path: Path) -> None:
    import pyarrow as pa

    log = tmp_path / "log"
    fill(log, 1, count=9)
    DeltaTable.create(str(tmp_path / "other"), pa.schema([("a", pa.int64())]))
    with pytest.raises(ConfigError, match="another Delta table"):
        run(log, tmp_path / "other")
    run(log, tmp_path / "out")
    entry = tmp_path / "out" / "_delta_log" / f"{0:020d}.json"
    entry.write_text("nonsense")
    with pytest.raises(stratalog.errors.StorageError, match="out"):
        run(log, tmp_path / "out")
    with pytest.raises(ConfigError, match="one of delta, iceberg, parquet"):
        run(log, tmp_path / "out", "hudi")


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stratalog.archive import open_objects

    log = tmp_path / "log"
    with s3_server() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        lake, plain = f"{new_bucket(endpoint)}/lake", f"{new_bucket(endpoint)}/plain"
        for seed in range(2):
            fill(log, seed, count=60)
            run(log, lake, merge=bool(seed))
            run(log, plain, "parquet")
        assert run(log, lake).counts["records"] == run(log, plain, "parquet").counts["records"] == 0
        assert delta_rows(lake, storage_options=storage_options(lake)) == log_rows(log)
        # Two runs at once: the store creates a log entry for one of them only.
        fill(log, 9, count=60)

        def meanwhile(*said: Any) -> Any:
            written = spread(*said)
            monkeypatch.setattr(module, "spread", spread)
            assert run(log, lake).counts["records"] == 67
            return written

        monkeypatch.setattr(module, "spread", meanwhile)
        assert run(log, lake).counts["records"] == 0
        assert delta_rows(lake, storage_options=storage_options(lake)) == log_rows(log)
        run(log, plain, "parquet")
        objects = open_objects(plain, RealFileSystem())
        tables = []
        for info in objects.list(""):
            assert info.key.startswith("topic=")
            table = pq.read_table(pa.BufferReader(objects.get(info.key).data))
            topic = info.key.split("/")[0].removeprefix("topic=")
            tables.append(table.append_column("topic", pa.array([topic] * len(table), pa.string())))
        assert table_rows(pa.concat_tables(tables)) == log_rows(log)
