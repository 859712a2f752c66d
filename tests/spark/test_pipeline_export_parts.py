"""The parts of an export by themselves: what JSON becomes, which file a record goes to, how tasks are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from stratalog.spark.pipelines.export import export, tasks_of
from stratalog.spark.pipelines.lake import files
from stratalog.spark.pipelines.lake.files import (
    NO_DATE,
    LocalPlace,
    Payload,
    by_day,
    date_files,
    date_text,
    decode,
)
from stratalog.spark.planning import LogRange
from stratalog.spark.schema import arrow_schema
from tests.spark.in_process import in_process

PAYLOAD = Payload(
    pa.schema(
        [
            ("id", pa.int32()),
            ("price", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("tags", pa.list_(pa.string())),
            ("to", pa.struct([("name", pa.string()), ("since", pa.date32())])),
        ]
    ),
    ("id", "price", "day", "value_at", "tags", "to"),
)
GOOD = [
    b'{"id": 1, "price": 2.50, "day": "2026-01-31", "at": "2026-01-31T12:00:00.5Z", "tags": ["a", null]}',
    b'{"to": {"name": "x\\u00e9", "since": "2026-01-01", "more": {}}, "unknown": [1, {}]}',
    b'  {\n"id":\n-7\n}\t',
    b"{}",
    b"null",
    None,
]
BAD = [
    b"",
    b"nonsense",
    b'{"id": 1',
    b"[1]",
    b"7",
    b'{"id": "7"}',
    b'{"id": 7.5}',
    b'{"id": 3000000000}',
    b'{"day": "2026-02-31"}',
    b'{"at": 5}',
    b'{"tags": "a"}',
    b'{"to": {"since": "never"}}',
    b'{"id": 1}{"id": 2}',
    b'{"id": 1}}\n{"i": 1, "v": {"id": 2}',
    b'{"id": 1, "id": 2}',
    b"\xff\xfe",
    b'{"to": {"name": "\xff"}}',
    b'{"to": {"name": "open',
]


def batch_of(values: list[bytes | None]) -> pa.RecordBatch:
    numbers = pa.array(range(len(values)), pa.int64())
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), "offset": numbers})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(GOOD + BAD), max_size=40))
def test_a_record_is_decoded_by_itself(values: list[bytes | None]) -> None:
    good, bad, reasons = decode(batch_of(values), PAYLOAD)
    assert good.schema.names == ["value", "offset", *PAYLOAD.names]
    assert [row["offset"] for row in good.to_pylist()] == [n for n, v in enumerate(values) if v in GOOD]
    assert [row["offset"] for row in bad.to_pylist()] == [n for n, v in enumerate(values) if v in BAD]
    assert len(reasons) == bad.num_rows
    assert all(each.startswith(("not JSON", "does not fit the schema")) for each in reasons)
    for row in good.to_pylist():
        alone = decode(batch_of([row["value"]]), PAYLOAD)[0].to_pylist()[0]
        assert {**row, "offset": 0} == alone


def test_what_json_becomes() -> None:
    first = decode(batch_of(GOOD[:2]), PAYLOAD)[0].to_pylist()
    assert (first[0]["id"], str(first[0]["price"]), str(first[0]["day"])) == (1, "2.50", "2026-01-31")
    assert (first[0]["value_at"].isoformat(), first[0]["tags"]) == (
        "2026-01-31T12:00:00.500000+00:00",
        ["a", None],
    )
    assert first[1]["to"]["name"] == "xé"
    assert decode(batch_of([b'{"id": "7"}']), PAYLOAD)[2] == [
        "does not fit the schema: JSON parse error: Column(/id) changed from number to string"
    ]


def records(times_ms: list[int], partition: int = 0) -> pa.RecordBatch:
    count = len(times_ms)
    values: dict[str, Any] = {
        "key": [None] * count,
        "value": [b"%d" % each for each in times_ms],
        "partition": [partition] * count,
        "offset": list(range(count)),
        "timestamp": [each * 1000 for each in times_ms],
        "timestampType": [0] * count,
        "headers": [[]] * count,
    }
    return pa.RecordBatch.from_pydict(values, schema=arrow_schema(tuple(values)))


DAY = 86_400_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3).flatmap(lambda d: st.integers(d * DAY, (d + 1) * DAY - 1)), min_size=1))
def test_days_keep_their_records_in_order(times_ms: list[int]) -> None:
    found: dict[int, list[int]] = {}
    for day, part in by_day(records(times_ms)):
        found.setdefault(day, []).extend(part.column("offset").to_pylist())
    wanted: dict[int, list[int]] = {}
    for offset, each in enumerate(times_ms):
        wanted.setdefault(each // DAY, []).append(offset)
    assert found == wanted


def test_more_days_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(files, "OPEN_FILES", 3)
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", 2000)
    monkeypatch.setattr(files, "BUFFERED_BYTES", 4000)
    times_ms = [(n * 7 % 11) * DAY + n for n in range(900)] + [300_000_000_000_000]
    writing = date_files(LocalPlace(str(tmp_path)), "00000-0", "t", compression="zstd", span=(7, 9))
    for at in range(0, len(times_ms), 50):
        for day, part in by_day(records(times_ms[at : at + 50])):
            writing.add(day, part)
    made = writing.finish()
    rows = []
    for file in made:
        assert file.name.startswith(f"topic=t/date={file.date}/00000-0-")
        table = pq.read_table(tmp_path / file.name, partitioning=None)
        assert (table.num_rows, file.start, file.end) == (file.records, 7, 9)
        stamps = table["timestamp"].cast(pa.int64()).to_pylist()
        assert file.spans["timestamp"] == (min(stamps), max(stamps))
        assert file.spans["offset"] == (min(table["offset"].to_pylist()), max(table["offset"].to_pylist()))
        assert file.size_bytes == (tmp_path / file.name).stat().st_size
        rows += [(each, file.date) for each in stamps]
    assert sorted(rows) == sorted((each * 1000, date_text(each // DAY)) for each in times_ms)
    assert len(made) > 12
    assert date_text(300_000_000_000_000 // DAY) == NO_DATE


def test_tasks_are_worth_their_while() -> None:
    small = [LogRange("a", partition, 0, 10, size_bytes=1 << 20) for partition in range(40)]
    large = [LogRange("b", 0, at, at + 10, size_bytes=128 << 20) for at in (0, 10)]
    tasks = tasks_of([*small, *large], 4)
    assert [len(task.ranges) for task in tasks] == [1, 1, 24, 16]
    assert sum(len(task.ranges) for task in tasks_of(small, 4)) == 40
    assert max(len(task.ranges) for task in tasks_of(small, 4)) == 16


def test_the_date_that_no_calendar_holds(tmp_path: Path) -> None:
    """A timestamp past the year 9999 has no date: null in Delta, Hive's own name in a directory."""
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("t", 1, {"retention.ms": -1, "message.timestamp.after.max.ms": 2**63 - 1})
        topic.append(b"far", timestamp=300_000_000_000_000)
        topic.append(b"near", timestamp=1_767_225_600_000)
        topic.roll()
    for table in ("delta", "parquet"):
        out = tmp_path / table
        export(in_process(), path=str(tmp_path / "log"), output=str(out), table=table)
        assert len([*out.rglob(f"date={NO_DATE}/*.parquet")]) == 1
    found = DeltaTable(str(tmp_path / "delta")).to_pyarrow_dataset().to_table(columns=["value", "date"])
    assert sorted((row["value"], row["date"] is None) for row in found.to_pylist()) == [
        (b"far", True),
        (b"near", False),
    ]
