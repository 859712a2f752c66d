"""The parts of an export by themselves: what JSON becomes, which file a record goes to, how tasks are cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import stratalog
from stratalog.errors import ConfigError
from stratalog.spark.pipelines.export import export, tasks_of
from stratalog.spark.pipelines.lake import files
from stratalog.spark.pipelines.lake.files import (
    NO_DATE,
    LocalPlace,
    by_day,
    date_files,
    date_text,
)
from stratalog.spark.pipelines.lake.json_columns import ON_MISFIT, Payload, ddl_of, decode, payload_of
from stratalog.spark.pipelines.lake.tables import plain_type
from stratalog.spark.planning import LogRange
from stratalog.spark.schema import arrow_schema
from tests.spark.in_process import in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    b'{"price": "12345678.90", "at": "2026-01-31 12:00", "day": "2024-02-29"}',
    b'{"price": 1e2, "at": "2026-01-31T12:00:00+02:00", "tags": ["\\ud83d\\ude00"]}',
    b'{"price": null, "id": -2147483648, "unknown": NaN, "deep": ' + b"[" * 2000 + b"]" * 2000 + b"}",
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
    b'{"to": {"since": 5}}',
    b'{"tags": [1]}',
    b'{"id": true}',
    b'{"id": NaN}',
    b'{"price": 2.505}',
    b'{"price": 123456789}',
    b'{"price": " 2.5"}',
    b'{"at": "2026-01-31T12:00:00.1234567Z"}',
    b'{"at": "2026-01-31T24:00:00Z"}',
    b'{"at": ""}',
    b'{"unknown": 1e400}',
    b'{"to": {"name": "\\ud800"}}',
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
@given(st.lists(st.sampled_from(GOOD + BAD), max_size=40), st.sampled_from(ON_MISFIT))
def test_a_record_is_decoded_by_itself(values: list[bytes | None], on_misfit: str) -> None:
    done = decode(batch_of(values), PAYLOAD, on_misfit)
    assert done.rows.schema.names == ["value", "offset", *PAYLOAD.names]
    assert [row["offset"] for row in done.rows.to_pylist() if row["value"] in GOOD] == [
        offset for offset, value in enumerate(values) if value in GOOD
    ]
    if on_misfit == "dead-letter":
        assert done.rows.num_rows == sum(value in GOOD for value in values)
    offsets = done.rows.column("offset").to_pylist() + done.failed.column("offset").to_pylist()
    assert sorted(offsets) == [*range(len(values))]
    assert len(done.reasons) == done.failed.num_rows
    assert all(each.startswith(("not JSON", "does not fit the schema")) for each in done.reasons)
    for row in done.rows.to_pylist():
        alone = decode(batch_of([row["value"]]), PAYLOAD, on_misfit).rows.to_pylist()[0]
        assert {**row, "offset": 0} == alone
    for row, reason in zip(done.failed.to_pylist(), done.reasons, strict=True):
        assert decode(batch_of([row["value"]]), PAYLOAD, on_misfit).reasons == [reason]


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(-(10**12), 10**12, places=3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)
TIMES = st.from_regex(
    r"(0000|1969|2024|2026)-(0[0-2]|1[0-3])-([02][0-9]|3[0-2])"
    r"([T ]([01][0-9]|2[3-4])(:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,7})?)?)?(Z|[+-][0-2][0-9](:?[0-6]0)?)?)?",
    fullmatch=True,
)
TEXTS = st.builds(json.dumps, st.text(max_size=4), ensure_ascii=st.booleans())
KINDS = [
    *(pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.date32()),
    *(pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.decimal128(10, 2), pa.decimal128(38, 0)),
]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(["%s", "[%s]", '{"a": %s}']),
    st.one_of(
        NUMBERS, NUMBERS.map(json.dumps), TIMES.map(json.dumps), TEXTS, st.sampled_from(["true", "[]", "{}"])
    ),
)
def test_a_misfit_beside_it_changes_nothing(kind: pa.DataType, form: str, value: str) -> None:
    """Arrow decodes a batch that fits; beside a record that does not, others look first."""
    nested = {"%s": kind, "[%s]": pa.list_(kind)}.get(form, pa.struct([("a", kind)]))
    payload = Payload(pa.schema([("v", nested), ("other", pa.int64())]), ("v", "other"))
    text = f'{{"v": {form % value}}}'.encode()
    for on_misfit in ON_MISFIT:
        alone = decode(batch_of([text]), payload, on_misfit)
        beside = decode(batch_of([text, b'{"other": "none"}']), payload, on_misfit)
        assert alone.rows.equals(beside.rows.slice(0, alone.rows.num_rows))
        assert alone.reasons == beside.reasons[: len(alone.reasons)]
        fits = not alone.misfits and not alone.reasons
        assert fits == (beside.misfits == {"other": 1} and beside.failed.num_rows <= 1)


def test_what_json_becomes() -> None:
    first = decode(batch_of(GOOD[:2]), PAYLOAD).rows.to_pylist()
    assert (first[0]["id"], str(first[0]["price"]), str(first[0]["day"])) == (1, "2.50", "2026-01-31")
    assert (first[0]["value_at"].isoformat(), first[0]["tags"]) == (
        "2026-01-31T12:00:00.500000+00:00",
        ["a", None],
    )
    assert first[1]["to"]["name"] == "xé"
    assert decode(batch_of([b'{"id": "7", "day": ""}']), PAYLOAD).reasons == [
        'does not fit the schema: id is "7", expected INT; day is "", expected DATE'
    ]


@pytest.mark.parametrize(
    "ddl",
    [
        "id BIGINT, name STRING",
        "a int not null, `b ``c` Tinyint COMMENT 'so, it is' , c:long",
        "d DECIMAL, e dec(5), f NUMERIC(38,38), g Decimal(7, 2)",
        "s STRUCT<x: INT, y: ARRAY<STRUCT<z BOOLEAN>>>, l array<array<double>>, t timestamp_ntz, u TIMESTAMP",
        "b BYTE, s SHORT, i INTEGER, f REAL, g FLOAT, d DATE, l TIMESTAMP_LTZ, st struct<a:int>",
    ],
)
def test_a_schema_is_what_spark_reads(spark: SparkSession, ddl: str) -> None:
    wanted = StructType.fromDDL(ddl)
    assert isinstance(wanted, StructType)
    plain, found = to_arrow_schema(wanted, timezone="UTC"), payload_of(ddl).schema
    assert found.names == plain.names
    assert [ddl_of(each) for each in found.types] == [ddl_of(plain_type(each)) for each in plain.types]


@pytest.mark.parametrize(
    "ddl",
    [
        *("", "id", "id BIGINT,", "id BIGINT name STRING", "id NOTHING", "a ARRAY<INT", "a STRUCT<>, b INT"),
        *("id DECIMAL(39, 0)", "id DECIMAL(3, 5)", "id BIGINT; drop", "m MAP<STRING, INT>", "id INT, ID INT"),
    ],
)
def test_a_schema_that_is_none(ddl: str) -> None:
    with pytest.raises(ConfigError, match="schema: "):
        payload_of(ddl)


def test_what_a_misfit_becomes() -> None:
    payload = Payload(pa.schema([("id", pa.int64()), ("name", pa.string())]), ("id", "name"))
    texts = [
        b' { "name" : 1.10 , "id":1, "name2": "}" }',
        b'{"id":2,"name":{"a": [ "x" ]}}',
        b'{"id": 3, "name": true, "x": 1}',
        b'{"id": "4", "name": 4}',
        b"5",
        b'{"id": 6, "name": "six"}',
    ]
    batch = batch_of([*texts])
    found = {how: decode(batch, payload, how) for how in ON_MISFIT}
    assert {
        how: [(row["id"], row["name"]) for row in each.rows.to_pylist()] for how, each in found.items()
    } == {
        "dead-letter": [(6, "six")],
        "null": [(1, None), (2, None), (3, None), (None, None), (6, "six")],
        "text": [(1, "1.10"), (2, '{"a": [ "x" ]}'), (3, "true"), (6, "six")],
    }
    assert {how: each.failed.column("value").to_pylist() for how, each in found.items()} == {
        "dead-letter": texts[:5],
        "null": [b"5"],
        "text": [texts[3], b"5"],
    }
    assert all(each.misfits == {"name": 4, "id": 1} for each in found.values())


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
