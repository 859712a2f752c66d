"""``verify`` on executors finds what ``stratalog verify`` finds, and what only the archive has."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import stratalog
from stratalog import Record, errors
from stratalog.cli.app import app
from stratalog.cli.check import damage_facts
from stratalog.spark.logs import forget
from stratalog.spark.pipelines import PipelineResult
from stratalog.spark.pipelines import verify as module
from stratalog.spark.pipelines.verify import verify
from tests.log.swap_script import key_of
from tests.log.test_swap import grow
from tests.spark.in_process import in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parents[1] / "golden" / "kafka-4.3.1"


def fill(store: stratalog.Store, name: str = "t", partitions: int = 2, **settings: Any) -> stratalog.Topic:
    config = {"segment.bytes": 8000, "max.message.bytes": 4000, "key.index.enable": True, "retention.ms": -1}
    topic = store.create_topic(name, partitions, config | settings)
    for partition in range(partitions):
        for at in range(40):
            rows = [Record(b"%d:%d" % (at, each) + b"v" * 30, key_of(each)) for each in range(20)]
            topic.append_many(rows, partition=partition)
    return topic


def same(result: PipelineResult, path: Path) -> list[dict[str, Any]]:
    """What the pipeline found, which must be what the command finds."""
    with stratalog.open(path, read_only=True) as store:
        wanted = stratalog.verify(store)
    found = result.details["damages"]
    assert isinstance(found, list)
    bare = [{k: v for k, v in each.items() if k not in ("topic", "partition")} for each in found]
    assert bare == [damage_facts(each) for each in wanted.damages]
    assert result.ok == wanted.ok
    told = (result.counts["segments"], result.counts["bytes"], result.counts["records"])
    assert told == (wanted.segments, wanted.bytes, wanted.records)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_every_damage_is_named_as_the_command_names_it(seed: int, tmp_path: Path) -> None:
    rng, path, spark = random.Random(seed), tmp_path / "log", in_process()
    with stratalog.open(path) as store:
        topic = fill(store)
        if seed % 2:
            txns = store.create_topic("txn", 1, {"segment.records": 17, "retention.ms": -1})
            swapped = store.create_topic("swapped", 1)
            swapped.append(b"one")
            # As the tests of swaps fill it: transactions, aborted ones too.
            config = {"message.timestamp.before.max.ms": "9223372036854775807"}
            store.alter_topic("txn", config)
            grow(txns, 200)
        topic.roll(0)
    same(verify(spark, path=str(path)), path)
    files = sorted(
        each
        for each in path.glob("*-*/*")
        if each.suffix in (".log", ".index", ".timeindex", ".seal", ".keyindex", ".txnindex", ".snapshot")
        and each.stat().st_size
    )
    hit = rng.sample(files, 4)
    for each in hit:
        data = bytearray(each.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        each.write_bytes(bytes(data))
    logs = sorted(path.glob("t-1/*.log"))
    shutil.move(logs[2], tmp_path / "gone")
    forget()
    found = same(verify(spark, path=str(path)), path)
    assert any("are missing" in str(each["reason"]) for each in found)
    assert {each["topic"] for each in found} <= {"t", "txn", "swapped"}


def test_on_spark_with_an_archive_and_its_copies(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cold = tmp_path / "log", tmp_path / "cold"
    monkeypatch.setattr(module, "SMALLEST_TASK_BYTES", 1 << 20)
    settings: dict[str, Any] = {
        "remote.storage.enable": True,
        "local.retention.bytes": 15_000,
        "retention.bytes": -1,
    }
    with stratalog.open(path, {"log.archive.url": str(cold)}) as store:
        topic = fill(store, **settings)
        store.archive()
        store.archive()
        states = {str(each.state) for each in topic.segments(0)}
        assert states == {"archived", "sealed", "active"}
        told: list[tuple[str, int, int]] = []
        clean = verify(spark, path=str(path), progress=lambda *each: told.append(each))
        same(clean, path)
        assert clean.ok
        assert clean.counts["archived_copies"] > 0
        assert told[-1][1] == told[-1][2] > 1
        assert verify(spark, path=str(path), topics="t", partition=1).counts["partitions"] == 1
    alone = verify(in_process(), archive=str(cold))
    assert alone.ok, alone.details
    assert alone.counts["segments"] >= clean.counts["archived_copies"]
    objects = sorted(each for each in cold.rglob("*") if each.name.startswith("log."))
    for each in objects:
        data = bytearray(each.read_bytes())
        data[len(data) // 2] ^= 0x10
        each.write_bytes(bytes(data))
    objects[0].unlink()
    objects[-1].unlink()  # a copy of what is here too
    forget()
    result = verify(in_process(), path=str(path))
    assert not result.ok
    damaged = result.details["damages"]
    assert isinstance(damaged, list)
    assert {str(each["path"]).removeprefix("file://") for each in damaged} == {str(each) for each in objects}
    shown = CliRunner().invoke(app, ["pipeline", "verify", "--data", str(path), "--topic", "t"])
    assert shown.exit_code == 5, shown.output
    assert str(objects[1]) in shown.output
    assert (
        sum(each["reason"] == "the manifest lists it, but the archive does not have it" for each in damaged)
        == 2
    )


def test_another_brokers_files_and_wrong_words(tmp_path: Path) -> None:
    roots = [each.parent for each in sorted(GOLDEN.rglob("meta.properties"))]
    assert len(roots) > 1
    for root in roots:
        same(verify(in_process(), path=str(root)), root)
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("t", 1)
    assert verify(in_process(), path=str(tmp_path / "log")).counts["segments"] == 1
    with pytest.raises(errors.UnknownPartitionError):
        verify(in_process(), path=str(tmp_path / "log"), topics="t", partition=7)
    with pytest.raises(errors.UnknownTopicError):
        verify(in_process(), path=str(tmp_path / "log"), topics=["u"])
    with pytest.raises(errors.ConfigError, match="exactly one topic"):
        verify(in_process(), path=str(tmp_path / "log"), partition=7)
