"""``materialize``: the latest value of every key, at once or step by step, whatever happens in between."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record, errors, kernel
from stratalog.cli.app import app
from stratalog.format import batch as batches
from stratalog.spark.pipelines import materialize as module
from stratalog.spark.pipelines import materialize_manifest
from stratalog.spark.pipelines.export_places import Place, place_of
from stratalog.spark.pipelines.materialize import materialize, read
from stratalog.spark.pipelines.materialize_manifest import NAME, Manifest, load
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


def table(output: Path) -> dict[bytes, Row]:
    """Every row of every Parquet file that a reader of the directory finds; no key twice."""
    rows: dict[bytes, Row] = {}
    for path in sorted(output.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            assert row["key"] not in rows, row["key"]
            stamp = int(row["timestamp"].timestamp() * 1000 + 0.5)
            rows[row["key"]] = (row["value"], row["partition"], row["offset"], stamp)
    named = {Path(file.name).name for file in _manifest(output).files}
    assert {path.name for path in output.glob("*.parquet")} == named
    assert not list(output.glob("_stratalog/staging/*"))
    return rows


def _manifest(output: Path) -> Manifest:
    manifest = load(place_of(str(output))).manifest
    assert manifest is not None
    return manifest


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
            base_offset=0,
            leader_epoch=-1,
            now_ms=now,
            max_bytes=1 << 20,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            codec=rng.choice([0, 3, 4]),
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
            by = _manifest(tmp_path / "out").mode
            assert by == ("key" if anywhere or (seed % 3 == 2 and step >= 3) else "partition")
            if rng.random() < 0.5:
                store.compact("t", force=True)
        once = materialize(spark, path=str(tmp_path / "log"), topic="t", output=str(tmp_path / "once"))
        assert table(tmp_path / "once") == table(tmp_path / "out")
        assert once.details["by"] == _manifest(tmp_path / "out").mode
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
        before = {file.name for file in _manifest(out).files}
        lonely = b"k7"
        partition = kernel.partition_for_key(lonely, 2)
        topic.append_many([Record(b"new", lonely), Record(None, b"k%d" % _beside(partition))])
        second = materialize(spark, **arguments)
        assert second.counts == {**second.counts, "records": 2, "keys": 9_999, "tombstones": 1}
        kept = before & {file.name for file in _manifest(out).files}
        assert len(kept) == len(before) - 1, "the other partition's file stays"
        assert table(out)[lonely][0] == b"new"
        # As of an offset of the past, and back.
        past = materialize(spark, **arguments, as_of_offset={partition: 100})
        assert "read again from its start" in past.notes[0]
        truth = Truth(topic)
        truth.look()
        ends = {partition: 100, 1 - partition: topic.log_end_offset(1 - partition)}
        assert table(out) == truth.latest(ends)
        materialize(spark, **arguments)
        assert table(out) == truth.latest()


def _beside(partition: int) -> int:
    return next(key for key in range(8, 100) if kernel.partition_for_key(b"k%d" % key, 2) == partition)


def test_a_run_that_dies_anywhere_leaves_the_old_table_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, spark = tmp_path / "log", tmp_path / "out", in_process()
    arguments: dict[str, Any] = {"path": str(path), "topic": "t", "output": str(out)}

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    def die_after_commit(place: Place, manifest: Manifest) -> None:
        if manifest == old:
            materialize_manifest.settle(place, manifest)
        else:
            raise KeyboardInterrupt

    old: Manifest | None = None
    with stratalog.open(path) as store:
        topic = store.create_topic("t", 2)
        for step in range(4):
            topic.append_many([Record(b"%d" % step, b"k%d" % (key * (step + 1) % 50)) for key in range(40)])
            old = None if step == 0 else _manifest(out)
            with monkeypatch.context() as patched:
                if step % 2:
                    patched.setattr(module, "commit", die)
                else:
                    patched.setattr(module, "settle", die_after_commit)
                with pytest.raises(KeyboardInterrupt):
                    materialize(spark, **arguments)
            if step % 2:
                assert _manifest(out) == old
            else:  # it counts; whoever comes next brings the files into place
                assert _manifest(out) != old
            materialize(spark, **arguments)
            truth = Truth(topic)
            truth.look()
            assert table(out) == truth.latest()
        # Another run at the same time: one of the two is refused and changes nothing.
        topic.append_many([Record(b"last", b"k1")])
        with monkeypatch.context() as patched:
            real = materialize_manifest.commit

            def beaten(objects: Any, stored: Any, made: Any) -> None:
                patched.setattr(module, "commit", real)
                materialize(spark, **arguments)
                real(objects, stored, made)

            patched.setattr(module, "commit", beaten)
            with pytest.raises(errors.ConfigError, match="another run has written"):
                materialize(spark, **arguments)
        truth.look()
        assert table(out) == truth.latest()


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    path, out, spark = tmp_path / "log", tmp_path / "out", in_process()
    arguments: dict[str, Any] = {"path": str(path), "topic": "t", "output": str(out)}
    with stratalog.open(path) as store:
        topic = store.create_topic("t", 2, {"retention.ms": -1})
        store.create_topic("u", 1)
        topic.append_many([Record(b"v", b"k%d" % key, (), 1000 + key) for key in range(20)])
        materialize(spark, **arguments)
        with pytest.raises(errors.ConfigError, match="full=True to begin anew"):
            materialize(spark, **{**arguments, "topic": "u"})
        with pytest.raises(errors.ConfigError, match="takes one for each"):
            materialize(spark, **arguments, as_of_offset=3)
        with pytest.raises(errors.OffsetOutOfRangeError, match="as of offset 99"):
            materialize(spark, **arguments, as_of_offset={0: 99})
        with pytest.raises(errors.ConfigError, match="takes auto, partition or key"):
            materialize(spark, **{**arguments, "by": "topic"})
        timed = materialize(spark, **arguments, as_of_time="1970-01-01T00:00:01.010Z")
        assert sorted(table(out)) == sorted(b"k%d" % key for key in range(10))
        assert timed.counts["keys"] == 10
        materialize(spark, **arguments)
        (out / "_stratalog" / NAME).write_bytes(b"{}")
        with pytest.raises(errors.CorruptionError, match="not the manifest"):
            materialize(spark, **arguments)
        (out / "_stratalog" / NAME).rename(out / "_stratalog" / "commit.json")
        with pytest.raises(errors.ConfigError, match="another pipeline writes there"):
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
        with pytest.raises(errors.OffsetOutOfRangeError, match="are not there"):
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
            assert result.details["by"] == ("key" if step == 2 else "partition")
            wanted = {key: row[0] for key, row in truth.latest().items()}
            for frame in (read(spark, str(tmp_path / "out")), spark.read.parquet(str(tmp_path / "out"))):
                rows = frame.select("key", "value").collect()
                assert {bytes(row[0]): bytes(row[1]) for row in rows} == wanted
                assert len(rows) == len(wanted)
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
    alone = materialize(
        spark, archive=str(tmp_path / "cold"), topic="t", output=str(tmp_path / "archived"), by="key"
    )
    assert alone.counts["keys"]
