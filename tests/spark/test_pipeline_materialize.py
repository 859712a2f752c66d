"""``materialize``: the latest value of every key, at once or step by step, whatever happens in between."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

import stratalog
from stratalog import Record, errors, kernel
from stratalog.cli.app import app
from stratalog.format import batch as batches
from stratalog.spark.pipelines import PipelineResult
from stratalog.spark.pipelines.export import export
from stratalog.spark.pipelines.lake.delta import storage_options
from stratalog.spark.pipelines.materialize import _Run, materialize, read
from tests.archive.s3 import environment, new_bucket, s3_server
from tests.spark.in_process import in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "cleaner.min.segment.age.ms": 0,
    "segment.bytes": 10_000,
    "max.message.bytes": 16_000,
}
Row = tuple[bytes | None, int, int, int]
"""Value, partition, offset, timestamp."""


def table(output: Path | str, **options: Any) -> dict[bytes, Row]:
    """Every row of the table as delta-rs and Arrow read it; no key twice, and nothing left of the run."""
    rows: dict[bytes, Row] = {}
    for row in DeltaTable(str(output), **options).to_pyarrow_table().to_pylist():
        assert row["key"] not in rows, row["key"]
        stamp = int(row["timestamp"].timestamp() * 1000 + 0.5)
        rows[row["key"]] = (row["value"], row["partition"], row["offset"], stamp)
    assert options or not [*Path(output).glob("_changes/*")]
    return rows


def version(output: Path) -> int:
    return DeltaTable(str(output)).version()


class Truth:
    """Every committed record that was ever seen, before compaction takes it."""

    def __init__(self, topic: stratalog.Topic) -> None:
        self.topic = topic
        self.seen: dict[tuple[int, int], Record] = {}

    def look(self) -> None:
        for partition in range(self.topic.partitions):
            for record in self.topic.read(partition, isolation="read_committed"):
                assert record.offset is not None
                self.seen[partition, record.offset] = record

    def latest(self, ends: dict[int, int] | None = None) -> dict[bytes, Row]:
        found: dict[bytes, dict[int, Row]] = {}
        for (partition, offset), record in sorted(self.seen.items()):
            if record.key is not None and (ends is None or offset < ends[partition]):
                row = (record.value, partition, offset, record.timestamp or 0)
                found.setdefault(record.key, {})[partition] = row
        winners = {key: max(rows.values(), key=lambda row: (row[3], row[1])) for key, rows in found.items()}
        return {key: row for key, row in winners.items() if row[0] is not None}


def some(rng: random.Random, keys: Iterable[int], now: int) -> list[Record]:
    return [
        Record(
            None if rng.random() < 0.15 else b"v" * rng.randint(0, 30),
            b"k%d" % key,
            (),
            now + rng.randint(-500, 500),
        )
        for key in keys
    ]


def grow(topic: stratalog.Topic, rng: random.Random, *, anywhere: bool, now: int) -> None:
    """Records of all sorts: plain, compressed, of transactions that are committed, aborted or left open."""
    for turn in range(rng.randint(2, 6)):
        rows = some(rng, (rng.randrange(60) for _ in range(rng.randint(1, 60))), now)
        if anywhere:
            topic.append_many(rows, partition=rng.randrange(topic.partitions))
        else:
            topic.append_many(rows)
        partition = rng.randrange(topic.partitions)
        if turn % 2:
            continue
        own = [
            r
            for r in rows
            if anywhere or kernel.partition_for_key(r.key or b"", topic.partitions) == partition
        ]
        if not own:
            continue
        producer = topic.log_end_offset(partition) + 1000
        encoded, _ = batches.encode_records(
            own,
            options=batches.BatchOptions(
                base_offset=0,
                leader_epoch=-1,
                now_ms=now,
                max_bytes=1 << 20,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
                codec=rng.choice([0, 3, 4]),
            ),
        )
        topic.append_batches(partition, bytes(encoded.data))
        if rng.random() < 0.9:
            topic.end_transaction(
                partition, producer_id=producer, producer_epoch=0, commit=rng.random() < 0.6
            )


@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_step_by_step_is_the_same_as_at_once(seed: int, tmp_path: Path) -> None:
    rng, spark = random.Random(seed), in_process()
    anywhere = seed % 3 == 1
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("t", 1 if seed == 5 else 3, SETTINGS)
        truth = Truth(topic)
        for step in range(5):
            if seed % 3 == 2 and step == 3:
                store.add_partitions("t", 5)
            grow(topic, rng, anywhere=anywhere, now=1_700_000_000_000 + step * 1000)
            truth.look()
            for partition in range(topic.partitions):
                if rng.random() < 0.5:
                    topic.roll(partition)
            result = materialize(
                spark,
                path=str(tmp_path / "log"),
                topic="t",
                output=str(tmp_path / "out"),
                memory_bytes=1 << 16,
            )
            assert table(tmp_path / "out") == truth.latest(), (seed, step, result)
            assert result.counts["keys"] == len(truth.latest())
            if rng.random() < 0.5:
                store.compact("t", force=True)
        once = materialize(spark, path=str(tmp_path / "log"), topic="t", output=str(tmp_path / "once"))
        assert table(tmp_path / "once") == table(tmp_path / "out")
        again = materialize(spark, path=str(tmp_path / "log"), topic="t", output=str(tmp_path / "once"))
        assert again.counts["records"] == 0
        assert again.details["version"] == once.details["version"]


def test_only_what_is_new_is_read_and_more_keys_than_memory_take_more_steps(tmp_path: Path) -> None:
    path, out, spark = tmp_path / "log", tmp_path / "out", in_process()
    with stratalog.open(path) as store:
        topic = store.create_topic("t", 2, {"compression.type": "lz4"})
        for at in range(0, 10_000, 1000):
            topic.append_many([Record(b"%d" % key, b"k%d" % key) for key in range(at, at + 1000)])
        arguments: dict[str, Any] = {
            "path": str(path),
            "topic": "t",
            "output": str(out),
            "memory_bytes": 1 << 16,
        }
        first = materialize(spark, **arguments)
        assert first.counts == {**first.counts, "records": 10_000, "keys": 10_000, "tombstones": 0}
        lonely = b"k7"
        partition = kernel.partition_for_key(lonely, 2)
        topic.append_many([Record(b"new", lonely), Record(None, b"k%d" % _beside(partition))])
        second = materialize(spark, **arguments)
        assert second.counts == {**second.counts, "records": 2, "keys": 9_999, "tombstones": 1}
        assert table(out)[lonely][0] == b"new"
        # As of an offset of the past, and back.
        past = materialize(spark, **arguments, as_of_offset={partition: 100})
        assert f"everything is read again: t-{partition}: it is to end at offset 100" in past.notes[0]
        truth = Truth(topic)
        truth.look()
        ends = {partition: 100, 1 - partition: topic.log_end_offset(1 - partition)}
        assert table(out) == truth.latest(ends)
        materialize(spark, **arguments)
        assert table(out) == truth.latest()


def _beside(partition: int) -> int:
    return next(key for key in range(8, 100) if kernel.partition_for_key(b"k%d" % key, 2) == partition)


def test_a_run_that_dies_at_its_commit_leaves_the_old_table_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, spark = tmp_path / "log", tmp_path / "out", in_process()
    arguments: dict[str, Any] = {"path": str(path), "topic": "t", "output": str(out)}

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with stratalog.open(path) as store:
        topic = store.create_topic("t", 2)
        for step in range(8):
            topic.append_many([Record(b"%d" % step, b"k%d" % (key * (step + 1) % 50)) for key in range(40)])
            topic.append_many([Record(None, b"k%d" % step)])
            full = step in (4, 5)
            old = table(out) if step else {}
            with monkeypatch.context() as patched:
                if step % 2:  # everything is written, and dead before the commit
                    patched.setattr(_Run, "_commit", die)
                else:  # dead after it
                    patched.setattr(_Run, "_durable", die)
                with pytest.raises(KeyboardInterrupt):
                    materialize(spark, **arguments, full=full)
            truth = Truth(topic)
            truth.look()
            assert table(out) == (old if step % 2 else truth.latest())
            before = version(out)
            done = materialize(spark, **arguments)
            assert table(out) == truth.latest()
            assert (done.counts["records"] == 0) == (version(out) == before) == (step % 2 == 0)


@pytest.mark.parametrize("full", [False, True])
def test_of_two_at_once_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    path, out, spark = tmp_path / "log", tmp_path / "out", in_process()
    arguments: dict[str, Any] = {"path": str(path), "topic": "t", "output": str(out), "full": full}
    with stratalog.open(path) as store:
        topic = store.create_topic("t", 2)
        topic.append_many([Record(b"%d" % key, b"k%d" % key) for key in range(40)])
        materialize(spark, **arguments)
        topic.append_many([Record(b"new", b"k%d" % key) for key in range(0, 40, 3)])
        real = _Run._commit
        inner: list[PipelineResult] = []

        def beaten(run: Any) -> Any:
            monkeypatch.setattr(_Run, "_commit", real)
            topic.append_many([Record(None, b"k1"), Record(b"late", b"k2")])
            inner.append(materialize(spark, **arguments))
            return real(run)

        monkeypatch.setattr(_Run, "_commit", beaten)
        outer = materialize(spark, **arguments)
        truth = Truth(topic)
        truth.look()
        assert table(out) == truth.latest()
        assert inner[0].counts["records"] > 0
        assert (outer.counts["records"] > 0) == full, "it starts over and finds nothing to do, unless told to"
        if not full:
            files = {Path(each).name for each in DeltaTable(str(out)).file_uris()}
            assert files <= {each.name for each in out.glob("*.parquet")}


def test_keys_in_several_partitions(tmp_path: Path) -> None:
    """A record replaces its own partition's row, and another partition's when it is not older."""
    path, out, spark = tmp_path / "log", tmp_path / "out", in_process()
    arguments: dict[str, Any] = {"path": str(path), "topic": "t", "output": str(out)}
    with stratalog.open(path) as store:
        topic = store.create_topic("t", 2, {"retention.ms": -1})

        def put(partition: int, value: bytes | None, at_ms: int) -> dict[bytes, bytes | None]:
            topic.append(value, b"k", (), at_ms, partition=partition)
            materialize(spark, **arguments)
            return {key: row[0] for key, row in table(out).items()}

        assert put(0, b"a", 1000) == {b"k": b"a"}
        assert put(1, b"older", 900) == {b"k": b"a"}
        assert put(1, b"same time", 1000) == {b"k": b"same time"}
        assert put(0, b"lower partition", 1000) == {b"k": b"same time"}
        assert put(1, b"clock set back", 500) == {b"k": b"clock set back"}
        assert put(0, None, 400) == {b"k": b"clock set back"}
        assert put(0, None, 600) == {}
        assert put(1, b"again", 700) == {b"k": b"again"}


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, spark = tmp_path / "log", in_process()
    with s3_server() as endpoint, stratalog.open(path) as store:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        out = f"{new_bucket(endpoint)}/users"
        topic = store.create_topic("t", 2)
        truth = Truth(topic)
        for step in range(3):
            topic.append_many(some(random.Random(step), range(30), 1_700_000_000_000 + step * 1000))
            truth.look()
            materialize(spark, path=str(path), topic="t", output=out, full=step == 2)
            assert table(out, storage_options=storage_options(out)) == truth.latest()


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    path, out, spark = tmp_path / "log", tmp_path / "out", in_process()
    arguments: dict[str, Any] = {"path": str(path), "topic": "t", "output": str(out)}
    with stratalog.open(path) as store:
        topic = store.create_topic("t", 2, {"retention.ms": -1})
        store.create_topic("u", 1)
        topic.append_many([Record(b"v", b"k%d" % key, (), 1000 + key) for key in range(20)])
        materialize(spark, **arguments)
        with pytest.raises(errors.ConfigError, match="table of another topic.*to begin anew"):
            materialize(spark, **{**arguments, "topic": "u"})
        with pytest.raises(errors.ConfigError, match="pass an offset for each"):
            materialize(spark, **arguments, as_of_offset=3)
        with pytest.raises(errors.OffsetOutOfRangeError, match="as of offset 99"):
            materialize(spark, **arguments, as_of_offset={0: 99})
        timed = materialize(spark, **arguments, as_of_time="1970-01-01T00:00:01.010Z")
        assert sorted(table(out)) == sorted(b"k%d" % key for key in range(10))
        assert timed.counts["keys"] == 10
        materialize(spark, **arguments)
        store.topic("t").roll()
        export(spark, path=str(path), output=str(tmp_path / "exported"))
        with pytest.raises(errors.ConfigError, match="another Delta table"):
            materialize(spark, **{**arguments, "output": str(tmp_path / "exported")})
        (out / "_delta_log" / f"{version(out):020d}.json").write_bytes(b"{")
        with pytest.raises(errors.StorageError, match="out"):
            materialize(spark, **arguments)
        with pytest.raises(errors.ConfigError, match="no materialized table"):
            read(spark, str(tmp_path / "nothing"))
        # Offsets that left the log before they were read.
        other = {**arguments, "output": str(tmp_path / "other")}
        materialize(spark, **other)
        topic.append_many([Record(b"w", b"k%d" % key) for key in range(20)])
        topic.roll()
        for partition in range(2):
            topic.delete_records(partition, topic.log_end_offset(partition))
        topic.append_many([Record(b"x", b"k%d" % key) for key in range(20)])
        with pytest.raises(errors.OffsetOutOfRangeError, match="are gone"):
            materialize(spark, **other)
        materialize(spark, **other, fail_on_data_loss=False)
        assert {row[0] for row in table(tmp_path / "other").values()} == {b"x"}


def test_on_spark_from_the_archive_too(spark: SparkSession, tmp_path: Path) -> None:
    config = {"log.archive.url": str(tmp_path / "cold")}
    settings = SETTINGS | {"remote.storage.enable": True, "local.retention.ms": 1, "retention.ms": -1}
    settings |= {"message.timestamp.before.max.ms": 2**63 - 1}
    with stratalog.open(tmp_path / "log", config) as store:
        topic = store.create_topic("t", 3, settings)
        truth = Truth(topic)
        told: list[tuple[str, int, int]] = []
        for step in range(3):
            grow(topic, random.Random(step), anywhere=step == 2, now=1_600_000_000_000 + step)
            topic.roll()
            truth.look()
            if step == 0:
                store.compact(force=True)
                store.archive()
                store.archive()
            told.clear()
            arguments: dict[str, Any] = {"path": str(tmp_path / "log"), "topic": "t", "headers": True}
            result = materialize(
                spark, **arguments, output=str(tmp_path / "out"), progress=lambda *each: told.append(each)
            )
            assert told
            wanted = {key: row[0] for key, row in truth.latest().items()}
            rows = read(spark, str(tmp_path / "out")).select("key", "value", "headers").collect()
            assert {bytes(row[0]): bytes(row[1]) for row in rows} == wanted
            assert len(rows) == len(wanted)
            with duckdb.connect() as connection:
                connection.register("users", DeltaTable(str(tmp_path / "out")).to_pyarrow_dataset())
                assert dict(connection.execute("select key, value from users").fetchall()) == wanted
    words = [
        "pipeline",
        "materialize",
        "t",
        str(tmp_path / "out"),
        "--data",
        str(tmp_path / "log"),
        "--headers",
    ]
    shown = CliRunner().invoke(app, [*words, "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["counts"] == {**result.counts, "records": 0, "tombstones": 0}
    assert CliRunner().invoke(app, [*words, "--as-of-offset", "x:y"]).exit_code == 2
    alone = materialize(spark, archive=str(tmp_path / "cold"), topic="t", output=str(tmp_path / "archived"))
    assert alone.counts["keys"]
