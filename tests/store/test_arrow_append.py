"""Tables appended through the public API leave the same bytes in the log as lists of the same records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import stratalog
from stratalog import Record
from stratalog.format.batch.arrow import schema_for

NOW = 1_760_000_000_000
COLUMNS = ("key", "value", "timestamp", "headers")


def record(number: int) -> Record:
    """Most are short; some have no key or value, headers, an empty or a long value."""
    key = None if number % 7 == 3 else b"k%d" % (number % 50)
    value = None if number % 11 == 5 else b"v%06d" % number * (number % 13)
    if number % 97 == 0:
        value = bytes(range(256)) * 12
    headers = [("h", b"%d" % number), ("none", None)] if number % 5 == 0 else ()
    return Record(value, key, headers, NOW + number * 37 % 1000)


def plain(number: int) -> Record:
    """Without nulls and headers: these rows take the short way."""
    return Record(b"v" * (number * 31 % 200), b"key-%d" % number, (), NOW + number)


def table_of(records: list[Record]) -> pa.Table:
    columns = {
        "key": [each.key for each in records],
        "value": [each.value for each in records],
        "timestamp": [each.timestamp for each in records],
        "headers": [[{"key": k, "value": v} for k, v in each.headers] for each in records],
    }
    return pa.table(columns, schema=schema_for(COLUMNS))


def whole(table: pa.Table) -> pa.Table:
    return table


def chunked(table: pa.Table) -> pa.Table:
    """Short pieces and empty ones."""
    parts = [table.slice(0, 0)] + [table.slice(at, 333) for at in range(0, len(table), 333)]
    return pa.concat_tables([*parts, table.slice(0, 0)])


def cut(table: pa.Table) -> pa.Table:
    """The middle of something longer: every buffer begins before the first row."""
    longer = pa.concat_tables([table.slice(5, 13), table, table.slice(0, 9)]).combine_chunks()
    return longer.slice(min(13, len(table.slice(5, 13))), len(table))


def other_types(table: pa.Table) -> pa.Table:
    key = table.column("key").cast(pa.large_binary()).dictionary_encode()
    value = table.column("value").combine_chunks().cast(pa.binary_view())
    return table.set_column(0, "key", key).set_column(1, "value", value)


@pytest.mark.parametrize("shape", [whole, chunked, cut, other_types])
@pytest.mark.parametrize("make", [record, plain])
@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_a_table_leaves_the_bytes_of_a_list(
    tmp_path: Path,
    shape: Callable[[pa.Table], pa.Table],
    make: Callable[[int], Record],
    codec: str,
) -> None:
    config = {"max.message.bytes": 20_000, "compression.type": codec}
    for count in (0, 2, 3000):
        records = [make(number) for number in range(count)]
        logs = []
        for name, rows in (("list", records), ("table", shape(table_of(records)))):
            path = tmp_path / f"{count}-{name}"
            with stratalog.open(path) as store:
                topic = store.create_topic("t", config=config)
                topic.append_many(rows)
                topic.append_many(rows, sync=True)
                assert topic.log_end_offset(0) == 2 * count
            logs.append((path / "t-0" / f"{0:020d}.log").read_bytes())
        assert logs[0] == logs[1]
