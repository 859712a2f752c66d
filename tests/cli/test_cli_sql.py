"""`stratalog sql`: DuckDB over topics; self joins, one end, no files, every form of output."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

import stratalog
from stratalog import Record
from tests.cli.shell import Shell

pytest.importorskip("duckdb")


@pytest.fixture
def shell(tmp_path) -> Shell:
    with stratalog.open(tmp_path / "data") as store:
        orders = store.create_topic("orders", 3)
        for number in range(100):
            value = json.dumps({"amount": number, "country": "DE" if number % 2 else "FR"})
            orders.append(value.encode(), b"k%d" % (number % 10), timestamp=1_767_225_600_000 + number)
        odd = store.create_topic("a.b-1")
        odd.append_many([Record(b"\xff", b"k1", [("h", b"x")]), Record(None, None)])
        store.create_topic("empty")
    return Shell(tmp_path / "data")


def rows(shell: Shell, query: str, *options: str):
    return [json.loads(line) for line in shell.lines("sql", query, "--json", *options)]


def test_aggregates_and_json(shell):
    query = "select value->>'$.country' c, sum((value->>'$.amount')::int) s from orders group by 1 order by 1"
    assert rows(shell, query, "--value-format", "json") == [{"c": "DE", "s": 2500}, {"c": "FR", "s": 2450}]
    assert rows(shell, "select count(*) n from orders") == [{"n": 100}]
    assert rows(shell, "select count(*) n from empty") == [{"n": 0}]
    assert rows(shell, 'select key, "offset", topic from "a.b-1" order by 2') == [
        {"key": "k1", "offset": 0, "topic": "a.b-1"},
        {"key": None, "offset": 1, "topic": "a.b-1"},
    ]
    assert rows(shell, 'select value from "a.b-1" limit 1') == [{"value": "/w=="}]
    assert rows(shell, "from orders o select max(o.timestamp) t") == [
        {"t": "2026-01-01T00:00:00.099000+00:00"}
    ]


def test_a_topic_twice_and_with_others(shell):
    join = 'from orders a join orders b on a.partition = b.partition and a."offset" = b."offset"'
    assert rows(shell, f"select count(*) n {join}") == [{"n": 100}]
    assert rows(shell, 'select count(*) n from orders o join "a.b-1" x on o.key = x.key') == [{"n": 10}]
    assert rows(shell, "with c as (select key from orders) select count(distinct key) n from c") == [
        {"n": 10}
    ]
    union = "select count(*) n from (select key from orders union all select value from orders)"
    assert rows(shell, union) == [{"n": 200}]


def test_columns_that_are_meant_without_a_name(shell):
    (row,) = rows(shell, "select * from orders limit 1")
    assert len(row) == 8
    (row,) = rows(shell, "select o from orders o limit 1")
    assert len(row["o"]) == 8
    assert rows(shell, "select count(*) n from orders a natural join orders b") == [{"n": 100}]
    assert len(rows(shell, "describe orders")) == 8


def test_times(shell):
    since, until = "2026-01-01T00:00:00.010Z", "2026-01-01T00:00:00.020Z"
    assert rows(shell, "select count(*) n from orders", "--since", since, "--until", until) == [{"n": 10}]
    assert rows(shell, "select count(*) n from orders", "--since", "-1m", "--until", "-1m") == [{"n": 0}]


def test_outputs(shell, tmp_path):
    query = 'select key, "offset", headers from "a.b-1" order by 2'
    table = shell.lines("sql", query)
    assert table[0].split() == ["key", "offset", "headers"]
    assert table[-1] == "2 rows"
    assert list(csv.reader(io.StringIO(shell.ok("sql", query, "--csv"))))[:2] == [
        ["key", "offset", "headers"],
        ["k1", "0", '[{"key":"h","value":"x"}]'],
    ]
    for name in ("out.parquet", "out.arrow", "out.csv", "out.jsonl"):
        told = shell.json("sql", query, "--out", str(tmp_path / name))
        assert told["rows"] == 2
        assert told["bytes"] == (tmp_path / name).stat().st_size
    assert pq.read_table(tmp_path / "out.parquet")["key"].to_pylist() == [b"k1", None]
    assert shell("sql", query, "--out", str(tmp_path / "out.csv")).exit_code == 2
    assert shell("sql", query, "--csv", "--json").exit_code == 2


def test_what_an_output_cannot_hold(shell, tmp_path):
    odd = "select 'NaN'::double a, '-inf'::double b, ['inf'::double] c, {'x': 1.5::double} d"
    assert rows(shell, odd) == [{"a": "NaN", "b": "-Infinity", "c": ["Infinity"], "d": {"x": 1.5}}]
    result = shell("sql", "select 1 a, 2 a", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "two columns are named a" in result.stderr
    result = shell("sql", "select interval 1 day b", "--out", str(tmp_path / "a.parquet"))
    assert result.exit_code == 2
    assert "this cannot be written as parquet" in result.stderr
    assert list(tmp_path.glob("*.parquet*")) == []


def test_no_files_unless_allowed(shell, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n\n1\n")
    for query in (
        f"select * from '{path}'",
        f"select * from read_csv('{path}')",
        f"copy (select 1) to '{tmp_path / 'y.csv'}'",
        f"attach '{tmp_path / 'z.db'}'",
        "set enable_external_access = true",
        "install httpfs",
        "select * from shell",
    ):
        result = shell("sql", query)
        assert (result.exit_code, result.stdout) == (2, ""), query
        assert len(result.stderr.splitlines()) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "x.csv"]
    assert rows(shell, f"select * from read_csv('{path}')", "--allow-files") == [{"n": 1}]


def test_errors_are_one_line(shell, tmp_path):
    for query, says in (
        ("select amount from orders", "value->>'$.amount' with --value-format json"),
        ("select 1 from none_such", "no topic 'none_such'; there are: a.b-1, empty, orders"),
        ('select 1 from "None-Such"', "no topic 'None-Such'; there are: a.b-1, empty, orders"),
        ("select 1 from order_", "no topic 'order_'; did you mean orders?"),
        ("select 1 from a.b-1", 'quote the topic name: "a.b-1"'),
        ("select offset, key from orders", 'write "offset"'),
        ("select", "SELECT"),
        ("", "query"),
    ):
        result = shell("sql", query)
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1
    result = shell("sql", 'select value from "a.b-1"', "--value-format", "json")
    assert result.exit_code == 5
    assert "the value at partition 0 offset 0 is not json" in result.stderr
    log = min((tmp_path / "data" / "orders-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[100] ^= 0xFF
    log.write_bytes(data)
    result = shell("sql", "select count(value) from orders")
    assert result.exit_code == 5
    assert str(log) in result.stderr


def test_transactions_are_read_as_asked(shell, tmp_path):
    with stratalog.open(tmp_path / "data") as store:
        with store.transaction("id") as done:
            done.append("empty", b"committed")
        with store.transaction("id") as undone:
            undone.append("empty", b"aborted")
            undone.abort()
    query = "select value from empty"
    assert rows(shell, query) == [{"value": "committed"}, {"value": "aborted"}]
    assert rows(shell, query, "--isolation", "read_committed") == [{"value": "committed"}]


def test_without_duckdb(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    result = shell("sql", "select 1")
    assert result.exit_code == 2
    assert "pip install 'stratalog[sql]'" in result.stderr


def test_beside_a_writer_and_quiet(tmp_path):
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("live")
        topic.append(b"v")
        arguments = ["sql", "select count(*) n from live", "--csv", "--data", str(tmp_path / "data")]
        done = subprocess.run(
            [sys.executable, "-m", "stratalog", *arguments], capture_output=True, text=True, check=True
        )
    assert (done.stdout, done.stderr) == ("n\n1\n", "")


def test_names_that_differ_in_case(tmp_path):
    with stratalog.open(tmp_path / "data") as store:
        store.create_topic("Orders").append(b"one")
        store.create_topic("orders").append_many([Record(b"two"), Record(b"two")])
    shell = Shell(tmp_path / "data")
    assert rows(shell, "select count(*) n from Orders") == [{"n": 1}]
    assert rows(shell, "select count(*) n from orders") == [{"n": 2}]
    result = shell("sql", "select 1 from Orders, orders")
    assert result.exit_code == 2
    assert "the same name in SQL" in result.stderr


def test_archived_topics(tmp_path):
    shell = Shell(tmp_path / "data")
    settings = ("remote.storage.enable=true", "local.retention.ms=1", "file.delete.delay.ms=0")
    shell.ok("topic", "create", "cold", *(part for each in settings for part in ("--config", each)))
    for number in range(3):
        shell.ok("append", "cold", stdin=f'{{"n": {number}}}\n' * 10)
        shell.ok("roll", "cold")
    shell.ok("archive")
    shell.ok("archive")
    assert "archived" in [each["state"] for each in shell.json("segments", "cold")]
    query = "select sum((value->>'$.n')::int) s from cold"
    assert rows(shell, query, "--value-format", "json", "--read-only") == [{"s": 30}]
    out = tmp_path / "cold.parquet"
    assert shell.json("read", "cold", "--where", "n == 2", "--out", str(out))["records"] == 10
    assert shell.json("inspect", str(tmp_path / "data"))["ok"]


def test_columns_by_number_and_by_other_names(shell):
    columns = 'select key, value from (from "a.b-1" order by "offset" limit 1)'
    for query in (
        'select #1 as key, #2 as value from "a.b-1" where #5 = 0',
        'select b as key, c as value from "a.b-1" as t(b, c) where "offset" = 0',
        f"select * from query('{columns}')",
    ):
        assert rows(shell, query) == [{"key": "k1", "value": "/w=="}], query


def test_times_past_the_year_9999(tmp_path):
    with stratalog.open(tmp_path / "data") as store:
        far = store.create_topic("far", config={"message.timestamp.after.max.ms": 2**63 - 1})
        for timestamp in (0, 253_402_300_800_000):
            far.append(b"1", timestamp=timestamp)
        farther = store.create_topic("farther", config={"message.timestamp.after.max.ms": 2**63 - 1})
        farther.append(b"1", timestamp=2**63 - 1)
    shell = Shell(tmp_path / "data")
    assert rows(shell, 'select timestamp t from far order by "offset"') == [
        {"t": "1970-01-01T00:00:00+00:00"},
        {"t": "10000-01-01 00:00:00.000000Z"},
    ]
    assert "10000-01-01" in shell("sql", "from far").stdout
    assert shell("sql", "select timestamp from far", "--csv").exit_code == 0
    failed = shell("sql", "from farther", "--json")
    assert failed.exit_code == 2
    assert "--until" in failed.stderr
    assert rows(shell, "select value from farther") == [{"value": "1"}]
    assert "out of the range" in shell("sql", "select [timestamp] from far").stderr
