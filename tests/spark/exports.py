"""Logs to export, and what came out of it, as rows that can be compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

import stratalog
from stratalog import Record
from stratalog.spark.pipelines.lake.iceberg import catalog_of

DAY_MS = 86_400_000
NEW_YEAR_MS = 1_767_225_600_000
"""2026-01-01."""
NAMES = ("topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers")

Row = tuple[Any, ...]


def fill(path: Path | str, seed: int, *, count: int = 300, roll: bool = True) -> None:
    """Two topics; keys and values null now and then, headers, times of four days in any order."""
    chance = random.Random(seed)
    with stratalog.open(path) as store:
        if "orders" not in store.topics():
            store.create_topic("orders", 3, {"retention.ms": "-1", "segment.bytes": "16384"})
        if "clicks.v1" not in store.topics():
            stamped = {"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"}
            store.create_topic("clicks.v1", 1, stamped)
        for partition in range(3):
            store.topic("orders").append_many(
                [_record(chance) for _ in range(count // 3)], partition=partition
            )
        store.topic("clicks.v1").append_many([_record(chance) for _ in range(7)])
        if roll:
            for name in ("orders", "clicks.v1"):
                store.topic(name).roll()


def _record(chance: random.Random) -> Record:
    key = None if chance.random() < 0.1 else b"k%d" % chance.randrange(40)
    value = None if chance.random() < 0.1 else bytes(chance.randrange(60))
    headers: list[tuple[str, bytes | None]] = []
    if chance.random() < 0.3:
        headers = [("trace", b"\xff%d" % chance.randrange(9)), ("nothing", None), ("trace", b"")]
    at = NEW_YEAR_MS + chance.randrange(4) * DAY_MS + chance.randrange(DAY_MS)
    return Record(value, key, headers, at)


def log_rows(path: Path | str, topics: Iterable[str] = ("orders", "clicks.v1")) -> list[Row]:
    """Every record of the log, as the kernel reads it."""
    with stratalog.open(path, read_only=True) as store:
        tables = [store.topic(name).scan().read_all() for name in topics]
    return table_rows(pa.concat_tables(tables))


def delta_rows(output: Path | str, **options: Any) -> list[Row]:
    """Every row of a Delta table, as delta-rs and Arrow read it, each in its date's partition."""
    return table_rows(_dated(DeltaTable(str(output), **options).to_pyarrow_table()))


def iceberg_rows(output: Path | str) -> list[Row]:
    """Every row of the Iceberg table in the output's own catalog."""
    return table_rows(catalog_of(str(output), None).load_table("stratalog.records").scan().to_arrow())


def parquet_rows(output: Path | str) -> list[Row]:
    """Every row of plain Parquet files, as readers of the directory see it, each in its date's place."""
    return table_rows(_dated(ds.dataset(str(output), format="parquet", partitioning="hive").to_table()))


READERS: dict[str, Callable[[Path], list[Row]]] = {
    "delta": delta_rows,
    "iceberg": iceberg_rows,
    "parquet": parquet_rows,
}


def _dated(table: pa.Table) -> pa.Table:
    days = pc.strftime(table["timestamp"], "%Y-%m-%d")
    assert pc.all(pc.equal(days, table["date"].cast(pa.string()))).as_py() is not False
    return table


def table_rows(table: pa.Table) -> list[Row]:
    micros = table["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", micros)
    rows = [
        (*row[:-1], tuple((each["key"], each["value"]) for each in row[-1] or ()))
        for row in zip(*(table[name].to_pylist() for name in NAMES), strict=True)
    ]
    return sorted(rows, key=lambda row: row[:3])
