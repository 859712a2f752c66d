"""`compact` and `export` against Spark SQL's rows and against one process of ours, in one Spark session.

Spark SQL reads through our source, which is the fastest way it has to these records. For compaction it only
computes the latest record of every key and throws it away, while the others write segments: the comparison
favours it. Every run has a fresh copy of the store, made of hard links.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import functions as sf

import stratalog
from bench.harness import Case, MismatchError, Row, Sample, take_turns
from bench.spark.data import linked_copy
from bench.spark.questions import Asking
from bench.spark.sizes import PARTITIONS, Load
from stratalog.spark.pipelines.compact import compact
from stratalog.spark.pipelines.export import export

PIPELINE = "stratalog, on Spark"
PROCESS = "stratalog, one process"
ROWS = "Spark SQL, rows"


class Rewrites:
    """The runs of both, in ``scratch``."""

    def __init__(self, asking: Asking, load: Load, scratch: Path) -> None:
        self.asking = asking
        self.load = load
        self.scratch = scratch
        self._left: dict[str, str] = {}
        self._made = 0

    def compaction(self) -> list[Row]:
        """MismatchError when pipeline and process leave other bytes, or SQL another number of keys."""
        keys = self._latest()
        cases = [
            Case(PIPELINE, lambda: self._compacted(PIPELINE, self._by_pipeline, keys)),
            Case(PROCESS, lambda: self._compacted(PROCESS, self._by_process, keys)),
            Case(ROWS, lambda: self.asking.timed(self._latest, keys, "the latest of every key")),
        ]
        for case in cases:
            case.run()
        rows = take_turns(cases, self.asking.repeat)
        if self._left[PIPELINE] != self._left[PROCESS]:
            raise MismatchError("compact on Spark left other bytes than one process does")
        return rows

    def _latest(self) -> int:
        """The latest record of every key by Spark SQL, every column of it used."""
        rows = self.asking.source(self.load, self.asking.places.store)
        newest = sf.max_by(sf.struct("offset", "timestamp", "value"), "offset").alias("newest")
        latest = rows.groupBy("partition", "key").agg(newest)
        sizes = latest.agg(sf.count("*").alias("n"), sf.sum(sf.length("newest.value")).alias("bytes"))
        return int(sizes.collect()[0]["n"])

    def _compacted(self, name: str, run: Callable[[Path], None], keys: int) -> Sample:
        with self._fresh() as copy:
            linked_copy(self.asking.places.store, copy, self.load)
            with stratalog.open(copy, background=False) as store:
                settings = {"cleanup.policy": "compact", "cleaner.min.segment.age.ms": 0}
                store.alter_topic(self.load.topic, settings)
            sample = self.asking.timed(lambda: run(copy), None, name)
            self._left[name] = _digest(copy, self.load)
            with stratalog.open(copy, read_only=True) as store:
                left = store.topic(self.load.topic).scan(columns=["offset"]).read_all().num_rows
            if left != keys:
                raise MismatchError(f"{name}: compaction left {left} records of {keys} keys")
            return sample

    def _by_pipeline(self, copy: Path) -> None:
        result = compact(self.asking.spark, path=str(copy), topics=self.load.topic, force=True)
        if not result.ok:
            raise MismatchError(f"compact: {result.notes}")

    def _by_process(self, copy: Path) -> None:
        with stratalog.open(copy, background=False) as store:
            store.compact(self.load.topic, force=True)

    # -- export --------------------------------------------------------------------------------------

    def exporting(self) -> list[Row]:
        """MismatchError when an output does not hold every record once."""
        runs: dict[str, Callable[[Path], Any]] = {
            PIPELINE: self._export_by_pipeline,
            PROCESS: self._export_by_process,
            ROWS: self._export_by_rows,
        }
        cases = [Case(name, partial(self._exported, name, run)) for name, run in runs.items()]
        for case in cases:
            case.run()
        return take_turns(cases, self.asking.repeat)

    def _exported(self, name: str, run: Callable[[Path], Any]) -> Sample:
        with self._fresh() as output:
            sample = self.asking.timed(lambda: run(output), None, name)
            files = [str(path) for path in output.rglob("*.parquet") if "_delta_log" not in path.parts]
            sample["size_mb"] = sum(Path(file).stat().st_size for file in files) / 1e6
            data = ds.dataset(files, format="parquet")
            seen: set[tuple[int, int]] = set()
            table = data.to_table(columns=["partition", "offset"])
            if table.num_rows != self.load.records:
                raise MismatchError(f"{name}: {table.num_rows} records of {self.load.records}")
            ends = table.group_by("partition").aggregate([("offset", "max"), ("offset", "count_distinct")])
            for row in ends.to_pylist():
                seen.add((row["partition"], row["offset_count_distinct"]))
                if row["offset_max"] + 1 != row["offset_count_distinct"]:
                    raise MismatchError(f"{name}: partition {row['partition']} has an offset twice")
            if len(seen) != PARTITIONS:
                raise MismatchError(f"{name}: {len(seen)} partitions of {PARTITIONS}")
            return sample

    def _export_by_pipeline(self, output: Path) -> None:
        store = str(self.asking.places.store)
        result = export(self.asking.spark, output=str(output), path=store, topics=self.load.topic)
        if not result.ok:
            raise MismatchError(f"export: {result.notes}")

    def _export_by_rows(self, output: Path) -> None:
        reader = self.asking.spark.read.format("stratalog").option("subscribe", self.load.topic)
        rows = reader.option("includeHeaders", "true").load(str(self.asking.places.store))
        dated = rows.withColumn("date", sf.to_date("timestamp"))
        dated.write.option("compression", "zstd").partitionBy("topic", "date").parquet(str(output))

    def _export_by_process(self, output: Path) -> None:
        output.mkdir(parents=True)
        columns = ["key", "value", "partition", "offset", "timestamp", "timestampType", "headers"]
        with stratalog.open(self.asking.places.store, read_only=True) as store:
            reader: pa.RecordBatchReader = store.topic(self.load.topic).scan(columns=columns)
            with pq.ParquetWriter(output / "all.parquet", reader.schema, compression="zstd") as writer:
                group: list[pa.RecordBatch] = []
                for batch in reader:
                    group.append(batch)
                    if sum(each.num_rows for each in group) >= 1 << 19:
                        writer.write_table(pa.Table.from_batches(group))
                        group = []
                if group:
                    writer.write_table(pa.Table.from_batches(group))

    # -- places --------------------------------------------------------------------------------------

    def _fresh(self) -> _Fresh:
        self._made += 1
        return _Fresh(self.scratch / f"copy-{self._made}")


class _Fresh:
    """A path that is not there yet, gone afterwards."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _digest(store: Path, load: Load) -> str:
    """Every log of a topic, by name and bytes."""
    made = hashlib.sha256()
    for partition in range(PARTITIONS):
        for path in sorted((store / f"{load.topic}-{partition}").glob("*.log")):
            made.update(f"{partition}/{path.name}".encode())
            with open(path, "rb") as file:
                made.update(hashlib.file_digest(file, "sha256").digest())
    return made.hexdigest()
