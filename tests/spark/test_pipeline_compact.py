"""``compact`` on Spark: the files that the store makes by itself, also beside a program and an archive."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record, errors
from stratalog.cli.app import app
from stratalog.spark.pipelines.compact import compact
from stratalog.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "cleaner.min.segment.age.ms": 0,
    "delete.retention.ms": 1000,
    "segment.bytes": 64 << 10,
    "max.message.bytes": 32 << 10,
    "key.index.enable": True,
}


def fill(topic: stratalog.Topic, first: int, segments: int = 3) -> None:
    for partition in range(topic.partitions):
        for number in range(segments):
            rows = [
                Record(
                    None if at % 31 == 5 else b"%d:%d:%d" % (first, number, at) + b"v" * 40,
                    b"k%d" % (at * (partition + 3) % 97),
                )
                for at in range(400)
            ]
            for at in range(0, 400, 50):
                topic.append_many(rows[at : at + 50], partition=partition)
            topic.roll(partition)


def files(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a partition that tells its records, with its bytes and, of logs, its time."""
    kinds = {".log", ".index", ".timeindex", ".txnindex", ".seal", ".keyindex", ".snapshot"}
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns if path.suffix == ".log" else 0)
        for path in sorted(directory.iterdir())
        if path.suffix in kinds
    }


def test_the_files_are_those_of_the_store_byte_for_byte(spark: SparkSession, tmp_path: Path) -> None:
    clock, theirs = ManualClock(), tmp_path / "theirs"
    with stratalog.open(theirs, clock=clock) as store:
        fill(store.create_topic("t", 3, SETTINGS), 1)
        store.create_topic("plain", 1).append(b"left alone")
    told: list[tuple[str, int, int]] = []
    for round_ in range(3):
        ours = tmp_path / f"ours-{round_}"
        shutil.copytree(theirs, ours)
        with stratalog.open(ours, clock=clock) as store:
            local = store.compact(force=True)
        told.clear()
        with stratalog.open(theirs, clock=clock) as store:  # held by this process: reached by its socket
            result = compact(spark, path=str(theirs), force=True, progress=lambda *each: told.append(each))
            assert stratalog.verify(store).ok
        assert result.ok, result.notes
        assert result.counts["partitions"] == 3
        assert told[-1] == ("compact", 3, 3)
        wanted = sorted(local.compactions, key=lambda each: each["partition"])
        found = result.details["compactions"]
        assert isinstance(found, list)
        for one, other in zip(wanted, found, strict=True):
            assert {**one, "seconds": 0} == {**other, "seconds": 0}
        for partition in range(3):
            assert files(ours / f"t-{partition}") == files(theirs / f"t-{partition}"), (round_, partition)
        lines = [sorted((each / "cleaner-offset-checkpoint").read_text().split()) for each in (ours, theirs)]
        assert lines[0] == lines[1]
        clock.advance(2000)
        with stratalog.open(theirs, clock=clock) as store:
            fill(store.topic("t"), 2 + round_, 1)
    assert not (tmp_path / "theirs.staging").exists()


def test_what_is_damaged_is_told_and_what_is_archived_keeps_its_tombstones(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, archive = tmp_path / "log", tmp_path / "cold"
    clock = ManualClock()
    config = {"log.archive.url": str(archive), "log.cleaner.threads": 1}
    settings = SETTINGS | {"remote.storage.enable": True, "local.retention.ms": 1, "retention.ms": -1}
    with stratalog.open(path, config, clock=clock) as store:
        topic = store.create_topic("t", 2, settings)
        topic.append_many([Record(b"old", b"dead"), Record(b"old", b"alive")], partition=0)
        fill(topic, 1, 1)
        store.compact(force=True)
        store.archive()
        clock.advance(5000)
        store.archive()
        assert topic.segments(0)[0].state == "archived"
        topic.append_many([Record(None, b"dead"), Record(None, b"nowhere"), Record(b"x", b"y")], partition=0)
        fill(topic, 2, 2)
    for advance in (0, 2000):
        clock.advance(advance)
        twin = tmp_path / f"twin-{advance}"
        shutil.copytree(path, twin)
        with stratalog.open(twin, config, clock=clock) as store:
            store.compact(force=True)
        with stratalog.open(path, config, clock=clock) as store:
            result = compact(spark, path=str(path), force=True)
            assert result.ok, result.notes
        for partition in range(2):
            assert files(path / f"t-{partition}") == files(twin / f"t-{partition}")
        with stratalog.open(path, config, clock=clock) as store:
            fill(store.topic("t"), 5, 1)
    with stratalog.open(path, config, read_only=True) as store:
        keys = {record.key for record in store.topic("t").read(0) if record.value is None}
        assert b"dead" in keys
        assert b"nowhere" not in keys
    log = min((path / "t-1").glob("*.log"))
    log.write_bytes(log.read_bytes()[:200] + b"\xff" * 50 + log.read_bytes()[250:])
    result = compact(spark, path=str(path), topics="t", force=True)  # opened by the pipeline
    assert not result.ok
    assert result.counts["partitions"] == 2
    assert str(log) in result.notes[-1]
    assert result.to_json()["ok"] is False


def test_a_preview_says_what_is_due_and_wrong_words_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with stratalog.open(path) as store:
        fill(store.create_topic("t", 1, SETTINGS), 1, 1)
    before = files(path / "t-0")
    result = compact(spark, path=str(path), preview=True)
    assert result.counts == {"due": 1}
    shown = CliRunner().invoke(app, ["pipeline", "compact", "--data", str(path), "--preview"])
    assert shown.exit_code == 0, shown.output
    assert "t-0" in shown.stdout
    assert files(path / "t-0") == before
    shown = CliRunner().invoke(app, ["pipeline", "compact", "--data", str(path), "--topic", "t"])
    assert shown.exit_code == 0, shown.output
    assert "400 →" in shown.stdout
    with pytest.raises(errors.ConfigError, match="exactly one topic"):
        compact(spark, path=str(path), partition=0)
    with pytest.raises(errors.ConfigError, match="an archive alone is not compacted"):
        compact(spark, archive="/nowhere")
    with pytest.raises(errors.UnknownTopicError):
        compact(spark, path=str(path), topics=["u"])
