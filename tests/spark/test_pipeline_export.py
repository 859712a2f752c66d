"""Export by a real session: rows as the source has them, payloads as columns, dead letters once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

import stratalog
from stratalog import Record
from stratalog.cli.app import app
from stratalog.errors import ConfigError, CorruptionError, StoreError
from stratalog.spark.pipelines import commits
from stratalog.spark.pipelines.export import TABLES, export
from stratalog.spark.pipelines.lake.delta import DeltaOutput, committed_files
from stratalog.spark.pipelines.lake.iceberg import IcebergOutput, catalog_of
from stratalog.spark.pipelines.lake.parquet_files import ParquetFiles
from tests.spark.exports import NEW_YEAR_MS, READERS, delta_rows, fill, log_rows, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, key STRING, tags ARRAY<STRING>, at TIMESTAMP"


@pytest.fixture
def payments(tmp_path: Path) -> Path:
    """JSON, of which some is none."""
    values: list[bytes | None] = [
        b'{"id": %d, "key": "%d", "tags": ["a"], "at": "2026-01-31T12:00:00Z"}' % (n, n) for n in range(50)
    ]
    values[3], values[17], values[20] = b"nonsense", b'{"id": "seventeen"}', None
    with stratalog.open(tmp_path / "log") as store:
        topic = store.create_topic("payments", 2, {"retention.ms": "-1"})
        for number, value in enumerate(values):
            topic.append(value, b"k", (), NEW_YEAR_MS + number, partition=number % 2)
        topic.roll()
    return tmp_path / "log"


def letters(log: Path) -> list[tuple[bytes | None, dict[str, str]]]:
    with stratalog.open(log, read_only=True) as store:
        records = [*store.topic("payments.dead-letters").read()]
    return sorted(
        ((each.value, {name: (text or b"").decode() for name, text in each.headers}) for each in records),
        key=lambda letter: letter[0] or b"",
    )


def test_the_rows_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    fill(log, 1)
    source = spark.read.format("stratalog").option("includeHeaders", "true").option("subscribe", "orders")
    wanted = source.load(str(log))
    for table in TABLES:
        output = tmp_path / table
        told: list[tuple[str, int, int]] = []
        done = export(
            spark,
            path=str(log),
            output=str(output),
            table=table,
            progress=lambda *said, told=told: told.append(said),  # type: ignore[misc]
        )
        assert done.counts["records"] == 307
        assert told
        assert 0 < told[-1][1] <= told[-1][2]  # the tracker may lag behind the last task
        assert READERS[table](output) == log_rows(log)
        if table != "iceberg":
            found = spark.read.parquet(str(output)).where("topic = 'orders'").select(*wanted.columns)
            assert Counter(map(str, wanted.collect())) == Counter(map(str, found.collect()))
            assert spark.read.parquet(str(output)).schema["date"].dataType.simpleString() == "date"


@pytest.mark.parametrize("table", TABLES)
def test_a_damaged_segment_leaves_no_data_behind(spark: SparkSession, tmp_path: Path, table: str) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 2)
    victim = log / "orders-1" / f"{0:020d}.log"
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptionError, match="orders-1"):
        export(spark, path=str(log), output=str(output), table=table)
    assert not [*output.rglob("*.parquet")]


@pytest.mark.parametrize("table", TABLES)
def test_payloads_become_columns_and_dead_letters_are_sent_once(
    spark: SparkSession, payments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    output = tmp_path / "out"
    said: dict[str, Any] = {"path": str(payments), "topics": "payments", "schema": SCHEMA, "table": table}
    send = commits.send_dead_letters

    def fails(*_: Any, **__: Any) -> None:
        raise StoreError("the store is away")

    def dies_after(*args: Any, **words: Any) -> None:
        send(*args, **words)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(commits, "send_dead_letters", fails)
        with pytest.raises(StoreError, match="away"):
            export(spark, output=str(output), **said)
        broken.setattr(commits, "send_dead_letters", dies_after)
        with pytest.raises(KeyboardInterrupt):  # sent, and dead before that could be noted
            export(spark, output=str(output), **said)
    done = export(spark, output=str(output), **said)  # the commit is made; the rest of it is made good
    assert done.notes[0].startswith("sent ")
    assert done.counts["records"] == 0
    found = _decoded(table, output).to_pylist()
    rows = {row["id"]: row for row in found}
    assert len(rows) == len(found) == 48
    assert (rows[4]["value_key"], bytes(rows[4]["key"]), rows[4]["tags"]) == ("4", b"k", ["a"])
    assert (rows[4]["at"].isoformat(), rows[4]["offset"]) == ("2026-01-31T12:00:00+00:00", 2)
    assert rows[None]["offset"] == 10
    assert all(row.get("value") is None for row in found)
    [nonsense, wrong] = letters(payments)
    assert wrong[0] == b'{"id": "seventeen"}'
    assert wrong[1]["where"] == "payments-1@8"
    assert nonsense[1] == {
        "reason": "not JSON: Expecting value: line 1 column 1 (char 0)",
        "source": "export payments",
        "where": "payments-1@1",
    }
    assert export(spark, output=str(output), **said).notes == (
        "the payload's field key is the column value_key: the record has a key of its own",
    )
    assert len(letters(payments)) == 2
    with stratalog.open(payments) as store:
        store.topic("payments").append_many([Record(b"{"), Record(b'{"id": 99}')], partition=0)
        store.topic("payments").roll()
    assert export(spark, output=str(output), **said).counts["dead_letters"] == 1
    assert len(letters(payments)) == 3
    assert not [*output.rglob("_dead_letters/**/*.parquet")], "nothing is left to send"
    for ddl in ("m MAP<STRING, INT>", "not a schema at all"):
        with pytest.raises(ConfigError, match="schema"):
            export(spark, output=str(output), **said | {"schema": ddl})


def _decoded(table: str, output: Path) -> pa.Table:
    if table == "delta":
        return DeltaTable(str(output)).to_pyarrow_table()
    if table == "iceberg":
        return catalog_of(str(output), None).load_table("stratalog.records").scan().to_arrow()
    return ds.dataset(str(output), format="parquet", partitioning="hive").to_table()


@pytest.mark.parametrize("kind", [DeltaOutput, IcebergOutput, ParquetFiles])
def test_dead_letters_of_a_run_that_died_at_its_commit(
    spark: SparkSession, payments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """Of a run that did not commit no letter is sent; those of one that did are, by the next."""
    table = dict(zip((DeltaOutput, IcebergOutput, ParquetFiles), TABLES, strict=True))[kind]
    said: dict[str, Any] = {"path": str(payments), "topics": "payments", "schema": SCHEMA, "table": table}
    commit = kind.commit  # type: ignore[attr-defined]

    def before(self: Any, change: Any) -> int:
        raise KeyboardInterrupt

    def after(self: Any, change: Any) -> int:
        commit(self, change)
        raise KeyboardInterrupt

    for dies in (before, after):
        monkeypatch.setattr(kind, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            export(spark, output=str(tmp_path / "out"), **said)
        with stratalog.open(payments, read_only=True) as store:
            assert "payments.dead-letters" not in store.topics()
    monkeypatch.setattr(kind, "commit", commit)
    assert export(spark, output=str(tmp_path / "out"), **said).counts["records"] == 0
    assert len(letters(payments)) == 2
    assert _decoded(table, tmp_path / "out").num_rows == 48


def test_a_table_grows_columns(spark: SparkSession, payments: Path, tmp_path: Path) -> None:
    for table in ("delta", "iceberg"):
        output = tmp_path / table
        said: dict[str, Any] = {"path": str(payments), "output": str(output), "table": table}
        before = len(letters(payments)) if table == "iceberg" else 0
        export(spark, topics="payments", **said)
        wanted = [row for row in log_rows(payments, ["payments"]) if row[4] != b"{"]
        with stratalog.open(payments) as store:
            store.topic("payments").append_many([Record(b'{"id": 7}'), Record(b"{")], partition=0)
            store.topic("payments").roll()
        done = export(spark, topics="payments", schema=SCHEMA, keep_value=True, **said)
        assert (done.counts["records"], done.counts["dead_letters"]) == (1, 1)
        found = _decoded(table, output)
        assert [row["id"] for row in found.to_pylist() if row["id"] is not None] == [7]
        rows = [row for row in table_rows(found) if row[4] != b"{"]
        assert len(rows) == len(wanted) + 1
        assert [value for value, _ in letters(payments)][before:] == [b"{"]
        assert export(spark, topics="payments", schema=SCHEMA, **said).counts["dead_letters"] == 0
        assert len(letters(payments)) == before + 1
        if table == "delta":
            with pytest.raises(ConfigError, match="column id is"):
                export(spark, topics="payments", schema="id STRING", **said)


@pytest.mark.parametrize("table", TABLES)
def test_a_value_that_does_not_fit(spark: SparkSession, payments: Path, tmp_path: Path, table: str) -> None:
    """Through the command: what becomes of it, how many there may be, and what the summary says."""
    with stratalog.open(payments) as store:
        store.topic("payments").append_many([Record(b'{"id": 90, "key": 1.10}')] * 3, partition=0)
        store.topic("payments").roll()
    words = ["pipeline", "export", "--data", str(payments), "--topic", "payments", "--table", table, "--json"]
    words += ["--schema", SCHEMA]

    def run(*more: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*words, *more])
        return done.exit_code, done.stdout or done.stderr

    code, said = run(str(tmp_path / "few"), "--max-dead-letters", "4")
    assert code == 8, said
    assert "5 records cannot be decoded, max_dead_letters is 4" in said
    assert "payments: 3 values of value_key do not fit STRING" in said
    assert not [*(tmp_path / "few").rglob("*.parquet")], "nothing was exported"
    with stratalog.open(payments, read_only=True) as store:
        assert "payments.dead-letters" not in store.topics()
    for how, dead, misfits in (("dead-letter", 5, 4), ("null", 1, 4), ("text", 2, 4)):
        output = tmp_path / how
        code, said = run(str(output), "--on-misfit", how, "--max-dead-letters", str(dead))
        assert code == 0, said
        told = json.loads(said)
        counts = told["counts"]
        assert (counts["records"], counts["dead_letters"], counts["misfits"]) == (53 - dead, dead, misfits)
        assert told["details"]["misfits"] == {"payments": {"id": 1, "value_key": 3}}
        rows = [row for row in _decoded(table, output).to_pylist() if row["id"] == 90]
        assert [row["value_key"] for row in rows] == {"null": [None] * 3, "text": ["1.10"] * 3}.get(how, [])
    assert run(str(tmp_path / "x"), "--on-misfit", "drop")[0] == 2
    assert CliRunner().invoke(app, [*words[:-2], str(tmp_path / "x"), "--on-misfit", "null"]).exit_code == 2


def sealed(log: Path, topic: str, *values: bytes) -> None:
    with stratalog.open(log) as store:
        store.create_topic(topic, 1, {"retention.ms": "-1"}, if_not_exists=True)
        store.topic(topic).append_many([Record(value) for value in values])
        store.topic(topic).roll()


def test_a_column_becomes_wider(spark: SparkSession, tmp_path: Path) -> None:
    """Iceberg widens it; delta-rs cannot, which is an error before anything is written."""
    log = tmp_path / "log"
    said: dict[str, Any] = {"path": str(log), "topics": "t", "include_active": True}
    narrow = "a INT, f FLOAT, d DECIMAL(5, 2), s STRUCT<x: INT>, l ARRAY<SMALLINT>, u STRING"
    wide = "a BIGINT, f DOUBLE, d DECIMAL(9, 2), s STRUCT<x: BIGINT, y: STRING>, l ARRAY<INT>, n INT"
    sealed(log, "t", b'{"a": 1, "f": 0.5, "d": 1.25, "s": {"x": 1}, "l": [1], "u": "u"}')
    for table in ("delta", "iceberg"):
        export(spark, output=str(tmp_path / table), table=table, schema=narrow, **said)
    large = b'{"a": 5000000000, "f": 1e300, "d": 1234567.25, "s": {"x": 5000000000, "y": "z"}, "l": [70000]}'
    sealed(log, "t", large)
    before = DeltaTable(str(tmp_path / "delta"))
    with pytest.raises(ConfigError, match="column a is INT in the table and would have to become BIGINT"):
        export(spark, output=str(tmp_path / "delta"), table="delta", schema=wide, **said)
    assert DeltaTable(str(tmp_path / "delta")).version() == before.version()
    done = export(spark, output=str(tmp_path / "iceberg"), table="iceberg", schema=wide, **said)
    assert (done.counts["records"], done.counts["dead_letters"]) == (1, 0)
    rows = {row["offset"]: row for row in _decoded("iceberg", tmp_path / "iceberg").to_pylist()}
    names = ("a", "f", "s", "l", "u", "n")
    assert [rows[0][name] for name in names] == [1, 0.5, {"x": 1, "y": None}, [1], "u", None]
    assert [rows[1][name] for name in names] == [
        5 * 10**9,
        1e300,
        {"x": 5 * 10**9, "y": "z"},
        [70000],
        None,
        None,
    ]
    assert [str(rows[at]["d"]) for at in (0, 1)] == ["1.25", "1234567.25"]
    sealed(log, "t", b'{"a": 6000000000, "l": [3]}')
    done = export(spark, output=str(tmp_path / "iceberg"), table="iceberg", schema=narrow, **said)
    assert (done.counts["records"], done.counts["dead_letters"]) == (1, 0)  # as the table has it
    catalog = catalog_of(str(tmp_path / "iceberg"), None)
    metadata = catalog.load_table("stratalog.records").metadata_location
    with pytest.raises(ConfigError, match="column u is STRING in the table .* and BIGINT here"):
        export(spark, output=str(tmp_path / "iceberg"), table="iceberg", schema="u BIGINT", **said)
    assert catalog.load_table("stratalog.records").metadata_location == metadata


class _Killed(BaseException):
    """Ends a run as a kill does: nothing of this package cleans up."""


def test_a_delta_table_is_written_again_for_a_wider_column(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit, also when the run is killed before or after it, or another program commits first."""
    log, output = tmp_path / "log", tmp_path / "lake"
    said: dict[str, Any] = {"path": str(log), "output": str(output), "include_active": True}
    wide: dict[str, Any] = {"schema": "a BIGINT, s STRUCT<x: DOUBLE, y: INT>, l ARRAY<INT>", **said}
    for number in range(3):
        for topic in ("t", "u"):
            sealed(log, topic, b'{"a": %d, "s": {"x": 0.5}, "l": [%d]}' % (number, number), b'{"l": null}')
        export(
            spark,
            schema="a INT, s STRUCT<x: FLOAT>, l ARRAY<SMALLINT>, old STRING",
            merge=number == 1,
            **said,
        )
    before = DeltaTable(str(output))
    held = before.to_pyarrow_table().num_rows
    sealed(log, "t", b'{"a": 5000000000, "s": {"x": 1e300, "y": 1}, "l": [70000]}')

    write = DeltaTable.create_write_transaction

    def kill(*_: object, **__: object) -> None:
        raise _Killed

    monkeypatch.setattr(DeltaTable, "create_write_transaction", kill)
    with pytest.raises(_Killed):
        export(spark, rewrite_wider=True, **wide)
    assert DeltaTable(str(output)).version() == before.version()

    def race(table: DeltaTable, *args: Any, **options: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
        DeltaTable(str(output)).alter.set_table_properties({"its": "own"}, raise_if_not_exists=False)
        write(table, *args, **options)

    def kill_after(table: DeltaTable, *args: Any, **options: Any) -> None:
        write(table, *args, **options)
        monkeypatch.setattr(DeltaTable, "create_write_transaction", kill)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", kill_after)
    with pytest.raises(_Killed):
        export(spark, rewrite_wider=True, **wide)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", write)
    widened = DeltaTable(str(output))
    assert widened.to_pyarrow_table().num_rows == held
    done = export(spark, rewrite_wider=True, **wide)
    assert (done.counts["records"], done.counts["dead_letters"]) == (1, 0)
    assert {each.name: str(each.type.type) for each in widened.schema().fields if each.name == "a"} == {
        "a": "long"
    }

    sealed(log, "t", b'{"n": 1}')
    export(spark, schema="n INT", **said)
    sealed(log, "t", b'{"n": 5000000000}')
    monkeypatch.setattr(DeltaTable, "create_write_transaction", race)
    export(spark, schema="n BIGINT", rewrite_wider=True, **said)
    rows = DeltaTable(str(output)).to_pyarrow_table().to_pylist()
    found = Counter((row["topic"], row["offset"], row["a"], row["n"]) for row in rows)
    expected = {
        *((topic, 2 * number, number, None) for topic in "tu" for number in range(3)),
        *((topic, 2 * number + 1, None, None) for topic in "tu" for number in range(3)),
        *(("t", 6, 5 * 10**9, None), ("t", 7, None, 1), ("t", 8, None, 5 * 10**9)),
    }
    assert found == dict.fromkeys(expected, 1)
    assert [row["s"] for row in rows if row["offset"] == 6] == [{"x": 1e300, "y": 1}]
    files = spark.read.option("mergeSchema", "true")
    spoken = files.parquet(*committed_files(str(output)) or ()).select("l", "a")
    assert sorted(row.l for row in spoken.collect() if row.l) == [[0], [0], [1], [1], [2], [2], [70000]]


def test_a_narrower_schema_is_read_as_the_delta_table_has_it(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "lake"
    for value, ddl in ((b'{"a": 1}', "a BIGINT"), (b'{"a": 5000000000}', "a INT, b STRING")):
        sealed(log, "t", value)
        export(spark, path=str(log), output=str(output), topics="t", schema=ddl)
    assert sorted(DeltaTable(str(output)).to_pyarrow_table()["a"].to_pylist()) == [1, 5 * 10**9]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_for_each_topic(spark: SparkSession, tmp_path: Path, table: str) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 3)
    words = ["pipeline", "export", str(output), "--data", str(log), "--json", "--table", table]
    for records in (307, 0):
        done = CliRunner().invoke(app, [*words, "--table-per-topic"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["counts"]["records"] == records
    assert sorted(json.loads(done.stdout)["details"]["tables"]) == ["clicks.v1", "orders"]
    for topic, name in (("orders", "stratalog.orders"), ("clicks.v1", "stratalog.clicks_v1")):
        if table == "iceberg":
            found = table_rows(catalog_of(str(output), None).load_table(name).scan().to_arrow())
        else:
            found = READERS[table](output / topic)
        assert found == log_rows(log, [topic])


def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    log, output = tmp_path / "log", tmp_path / "out"
    fill(log, 3)
    words = ["pipeline", "export", str(output), "--data", str(log), "--json", "--until", "2026-01-03"]
    done = CliRunner().invoke(app, [*words, "--topic", "orders", "--merge"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["counts"]["records"] == told["details"]["records_in_all"] == len(delta_rows(output))
    assert told["details"]["files_in_all"] == len(committed_files(str(output)) or ()) == 2
    assert CliRunner().invoke(app, [*words, "--replace"]).exit_code == 2
