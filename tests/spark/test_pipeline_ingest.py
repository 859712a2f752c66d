"""Ingest: what becomes a record and what a dead letter, and every file exactly once whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stratalog
from stratalog import Record, kernel
from stratalog.errors import (
    ConfigError,
    CorruptionError,
    InvalidRecordError,
    NotFoundError,
    UnknownTopicError,
)
from stratalog.spark.pipelines.commits import (
    INPUT,
    LONGEST_TEXT,
    ROOM_BYTES,
    Admit,
    DeadLetters,
    Rules,
    Tally,
    dead_letter_topic,
    rules_of,
)
from stratalog.spark.pipelines.ingest import ingest
from stratalog.spark.pipelines.pipeline_offsets import TOPIC, PipelineOffsets, State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with stratalog.open(tmp_path / "log") as store:
        store.create_topic("t", 3)
        store.create_topic("keyed", 2, {"cleanup.policy": "compact", "max.message.bytes": 2000})
    return tmp_path / "log"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    return tmp_path / "in"


def lines(first: int, count: int) -> str:
    rows = ({"id": at, "at": AT + at, "who": f"u{at % 7}"} for at in range(first, first + count))
    return "".join(json.dumps(row) + "\n" for row in rows)


def records(log: Path, topic: str) -> list[Record]:
    with stratalog.open(log, read_only=True) as store:
        chosen = store.topic(topic)
        return [record for partition in range(chosen.partitions) for record in chosen.read(partition)]


def letters(log: Path, topic: str) -> list[tuple[bytes | None, str, str]]:
    """What, why and where."""
    found = records(log, dead_letter_topic(topic))
    told = [dict(record.headers) for record in found]
    return [
        (record.value, (each["reason"] or b"").decode(), (each["where"] or b"").decode().rpartition("/")[2])
        for record, each in zip(found, told, strict=True)
    ]


def nothing_left(log: Path) -> bool:
    return not log.with_name(log.name + ".staging").exists()


def ids(found: list[Record]) -> list[int]:
    return [int(json.loads(record.value or b"")["id"]) for record in found]


def test_lines_of_json_become_records_and_the_others_dead_letters(
    spark: SparkSession, log: Path, files: Path
) -> None:
    (files / "b.jsonl").write_text(
        lines(100, 30)
        + '\nno json\n{"id": "seven", "at": 1}\n{"id": 1, "at": null}\n[1]\n'
        + '{"id": 2, "at": 9000000000000000000}\n'
    )
    (files / "deep" / "a [1]*.jsonl").write_text(lines(0, 40))
    (files / "_half.jsonl").write_text("nobody reads this")
    how: dict[str, Any] = {
        "path": str(log),
        "topic": "t",
        "schema": "id bigint, at bigint, who string",
        "key": "who",
        "timestamp": "at",
        "headers": {"file": "_file", "next": "id + 1"},
    }
    done = ingest(spark, files=[str(files)], **how)
    assert (done.ok, done.counts["files"], done.counts["records"], done.counts["dead_letters"]) == (
        True, 2, 70, 5,
    )  # fmt: skip
    found = records(log, "t")
    assert sorted(ids(found)) == [*range(40), *range(100, 130)]
    for record in found:
        row, headers = json.loads(record.value or b""), dict(record.headers)
        assert (record.key, record.timestamp) == (row["who"].encode(), row["at"])
        assert record.partition == kernel.partition_for_key(record.key or b"", 3)
        assert headers["next"] == str(row["id"] + 1).encode()
        assert (headers["file"] or b"").endswith(b"b.jsonl") == (row["id"] >= 100)
    # In the order of the files' names, and of their lines.
    for partition in range(3):
        order = ids([record for record in found if record.partition == partition])
        assert order == sorted(order, key=lambda at: (at < 100, at))
    wrong = {value: reason for value, reason, where in letters(log, "t") if where == "b.jsonl"}
    assert "Expecting value" in wrong[b"no json"]
    assert "fits the schema" in wrong[b'{"id": "seven", "at": 1}']
    assert "the timestamp's expression 'at' gives no time" in wrong[b'{"id": 1, "at": null}']
    assert "gives no time" in wrong[b'{"id": 2, "at": 9000000000000000000}']
    assert "it is list, not an object" in wrong[b"[1]"]
    assert nothing_left(log)

    # A second run takes what is new, and tells of what is another.
    (files / "deep" / "c.jsonl").write_text(lines(200, 5))
    with (files / "b.jsonl").open("a") as more:
        more.write(lines(130, 1))
    done = ingest(spark, files=[f"{files}/*.jsonl", f"{files}/deep"], **how)
    assert (done.ok, done.counts["files"], done.counts["records"]) == (False, 1, 5)
    assert "changed since" in done.notes[0]
    assert len(records(log, "t")) == 75
    assert records(log, TOPIC)[-1].key is not None


def test_what_a_topic_does_not_take_is_told_row_by_row(spark: SparkSession, log: Path, files: Path) -> None:
    rows = [
        "id,name,at,to",
        "1,fine,2024-01-01T00:00:00Z,1",
        "2,short",
        '3,"quoted, with a comma",2024-01-01T00:00:00.5Z,',
        "x,no number,2024-01-01T00:00:00Z,0",
        ",no key,2024-01-01T00:00:00Z,0",
        "6,too late,2999-01-01T00:00:00Z,0",
        "7,no such partition,2024-01-01T00:00:00Z,2",
        f"8,{'large' * 500},2024-01-01T00:00:00Z,0",
        "9,no time,yesterday,0",
    ]
    (files / "rows.csv").write_text("\n".join(rows) + "\n")
    done = ingest(
        spark,
        path=str(log),
        topic="keyed",
        files=str(files / "rows.csv"),
        schema="id int, name string, at string, to int",
        key="id",
        value="name",
        timestamp="at",
        partition="to",
        allow_null=["key"],
    )
    assert (done.counts["records"], done.counts["dead_letters"]) == (2, 7)
    one, three = sorted(records(log, "keyed"), key=lambda record: record.key or b"")
    assert (one.key, one.value, one.partition, one.timestamp) == (b"1", b"fine", 1, 1_704_067_200_000)
    assert (three.value, three.timestamp) == (b"quoted, with a comma", 1_704_067_200_500)
    assert three.partition == kernel.partition_for_key(b"3", 2)
    told = [(value, reason) for value, reason, _ in letters(log, "keyed")]
    for value, reason in (
        (b"2,short", "does not fit the columns"),
        (b"x,no number,2024-01-01T00:00:00Z,0", "does not fit the columns"),
        (b"no key", "every record needs a key"),
        (b"too late", "message.timestamp.after.max.ms"),
        (b"no such partition", "none of 0 to 1"),
        (b"large" * 500, "too large"),
        (b'{"id":9,"name":"no time","at":"yesterday","to":0}', "gives no time"),
    ):
        assert [why for what, why in told if what == value and reason in why], (value, told)


def test_a_run_that_died_is_gone_on_with(spark: SparkSession, log: Path, files: Path) -> None:
    for number in range(2):
        table = pa.table({"id": range(number * 10, number * 10 + 10), "who": ["a", "b"] * 5})
        pq.write_table(table, files / f"{number}.parquet")
    (files / "2.parquet").write_bytes(b"PAR1 and no more")
    how: dict[str, Any] = {
        "path": str(log),
        "topic": "t",
        "files": str(files),
        "key": "who",
        "batch_files": 1,
    }
    with pytest.raises(CorruptionError, match=r"2\.parquet.*nothing of this batch"):
        ingest(spark, **how)
    assert sorted(ids(records(log, "t"))) == list(range(20))
    assert nothing_left(log)
    pq.write_table(pa.table({"id": range(20, 25), "who": ["c"] * 5}), files / "2.parquet")
    done = ingest(spark, **how)
    assert (done.counts["files"], done.counts["records"]) == (1, 5)
    assert sorted(ids(records(log, "t"))) == list(range(25))


def test_a_commit_that_was_made_after_all_is_not_made_twice(
    spark: SparkSession, log: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run before died, and the holder of the store finishes its commit only now: this one cannot know."""
    (files / "a.jsonl").write_text(lines(0, 10))
    how: dict[str, Any] = {"path": str(log), "topic": "t", "files": str(files)}
    assert ingest(spark, **how).counts["records"] == 10
    (files / "b.jsonl").write_text(lines(10, 10))
    told, read = [State()], PipelineOffsets.read
    monkeypatch.setattr(PipelineOffsets, "read", lambda self: told.pop() if told else read(self))
    done = ingest(spark, **how)
    assert not told
    assert (done.counts["files"], done.counts["records"]) == (1, 10)
    assert sorted(ids(records(log, "t"))) == list(range(20))
    assert nothing_left(log)


def test_frames_once_by_name_and_limits_on_dead_letters(spark: SparkSession, log: Path) -> None:
    frame = spark.range(0, 20, 1, 2).selectExpr("id", "if(id % 5 = 0, null, struct(id as n)) as body")
    how: dict[str, Any] = {"path": str(log), "topic": "t", "frame": frame, "key": "id", "value": "body"}
    with pytest.raises(
        InvalidRecordError, match=r"4 rows cannot be ingested, max_dead_letters is 3.*gives null"
    ):
        ingest(spark, max_dead_letters=3, name="once", **how)
    assert records(log, "t") == []
    assert nothing_left(log)
    done = ingest(spark, name="once", **how)
    assert (done.counts["records"], done.counts["dead_letters"]) == (16, 4)
    assert ingest(spark, name="once", **how).counts["records"] == 0
    assert {record.value for record in records(log, "t")} == {b'{"n":%d}' % n for n in range(20) if n % 5}
    assert letters(log, "t")[0] == (
        b'{"id":0,"body":null}',
        "the value's expression 'body' gives null",
        "a DataFrame",
    )


def test_what_cannot_be_is_told_before_a_row_is_read(spark: SparkSession, log: Path, files: Path) -> None:
    (files / "a.jsonl").write_text(lines(0, 1))
    how: dict[str, Any] = {"path": str(log), "topic": "t", "files": str(files), "schema": "id bigint"}
    for more, error, told in (
        ({"key": "idd"}, ConfigError, "key: the expression 'idd' is wrong"),
        ({"timestamp": "id > 3"}, ConfigError, "expected a timestamp"),
        ({"partition": "'x'"}, ConfigError, "expected a whole number"),
        ({"schema": "id what"}, ConfigError, "schema: "),
        ({"format": "xml"}, ConfigError, "expected one of json, csv, parquet"),
        ({"files": str(files / "nope")}, NotFoundError, "nope"),
        ({"topic": "nope"}, UnknownTopicError, "topic create nope"),
        ({"allow_null": ["timestamp"]}, ConfigError, "expected key, value or both"),
        ({"files": None}, ConfigError, "files or a frame"),
    ):
        with pytest.raises(error, match=told):
            ingest(spark, **(how | more))
    assert records(log, "t") == []


# -- without Spark -----------------------------------------------------------------------------------------


def admitted(rules: Rules, *rows: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ("partition", pa.int32()),
            ("reason", pa.string()),
            ("where", pa.string()),
            ("raw", pa.binary()),
            ("start", pa.int64()),
        ]
    )
    assert schema.names == list(INPUT)
    batch = pa.RecordBatch.from_pylist([dict(zip(INPUT, row, strict=True)) for row in rows], schema)
    admit = Admit(rules, DeadLetters("dead", "test", 60_000), True)
    found = [row for out in admit(iter([batch]), Tally()) for row in out.to_pylist()]
    return [row for row in found if row["topic"] != "dead"], [row for row in found if row["topic"] == "dead"]


def test_the_largest_record_that_fits_is_taken(log: Path) -> None:
    rules = rules_of((str(log),), "keyed")
    key = b"k" * 10
    with stratalog.open(log) as store:
        size = 2000
        while True:
            try:
                store.topic("keyed").append(b"v" * size, key)
                break
            except InvalidRecordError:
                size -= 1
    taken, dead = admitted(
        rules,
        (key, b"v" * size, 0, None, None, None, "w", None, 0),
        (key, b"v" * (size + 1), 0, None, None, None, "w", None, 0),
        (key, b"v", 0, [{"key": "h", "value": b"v" * 2000}], None, None, "w", None, 0),
        (key, b"v", 0, [{"key": None, "value": b""}], None, None, "w", None, 0),
        (key, b"v", -1, None, None, None, "w", None, 0),
        (key, b"v", None, [{"key": "h", "value": None}], 1, None, "w", None, 0),
    )
    assert [len(row["value"]) for row in taken] == [size, 1]
    why = [{each["key"]: each["value"] for each in row["headers"]}["reason"].decode() for row in dead]
    assert ["too large" in why[0], "too large" in why[1]] == [True, True]
    assert why[2:] == ["a header has no key", "its timestamp is before 1970"]


def test_dead_letters_too_large_for_their_topic_are_cut() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "key": [b"k", None],
            "value": [b"x" * 100_000, None],
            "reason": ["r" * 9000, "why"],
            "where": ["w", None],
        }
    )
    one, two = DeadLetters("dead", "s", 50_000).records(rows, Tally()).to_pylist()
    told = {each["key"]: each["value"] for each in one["headers"]}
    assert len(one["value"]) + ROOM_BYTES == 50_000
    assert (told["truncated"], len(told["reason"])) == (b"100000", LONGEST_TEXT)
    assert two["value"] is None
    assert {each["key"] for each in two["headers"]} == {"reason", "source", "where"}
