"""The command line on real stores: topics, records in and out, segments, settings."""

from __future__ import annotations

import json

import pytest

from stratalog.cli.guard import ExitCode
from tests.cli.shell import Shell

NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path / "data")


@pytest.fixture
def orders(shell):
    """A topic of one partition with ten records, one a minute, keys k0 to k2; time alone rolls nothing."""
    shell.ok("topic", "create", "orders", "-c", "segment.ms=36500d")
    rows = [
        {"value": f"v{n}", "key": f"k{n % 3}", "timestamp": NOW + n * 60_000, "headers": {"n": str(n)}}
        for n in range(10)
    ]
    shell.ok("append", "orders", "--jsonl", stdin="\n".join(map(json.dumps, rows)))
    return shell


def test_the_life_of_a_topic(shell):
    shell.ok("topic", "create", "orders", "--partitions", "3", "--config", "segment.bytes=1MiB")
    assert shell("topic", "create", "orders").exit_code == ExitCode.TOPIC_EXISTS
    assert shell.json("topic", "create", "orders", "--if-not-exists") == {"topic": "orders", "created": False}
    shell.ok("topic", "create", "audit")

    listed = shell.json("topic", "list")
    assert [(row["topic"], row["partitions"]) for row in listed] == [("audit", 1), ("orders", 3)]
    assert [line.split()[0] for line in shell.lines("topic", "list")] == ["topic", "audit", "orders"]

    shell.ok("topic", "alter", "orders", "-c", "retention.ms=30d", "-c", "segment.ms=1h", "--partitions", "4")
    shell.ok("topic", "alter", "orders", "--unset", "segment.ms")
    facts = shell.json("topic", "describe", "orders")
    assert facts["config"] == {
        "segment.bytes": {"value": "1048576", "source": "topic"},
        "retention.ms": {"value": "2592000000", "source": "topic"},
    }
    assert (facts["partitions"], len(facts["details"])) == (4, 4)
    assert facts["id"]
    text = shell.ok("topic", "describe", "orders")
    assert facts["id"] in text
    assert "retention.ms" in text

    assert shell("topic", "delete", "nope", "--yes").exit_code == ExitCode.NOT_FOUND
    assert shell.json("topic", "delete", "orders", "nope", "--yes", "--if-exists") == {"deleted": ["orders"]}
    assert [row["topic"] for row in shell.json("topic", "list")] == ["audit"]
    assert "no topics" not in shell.ok("topic", "list")
    shell.ok("topic", "delete", "audit", "-y")
    assert shell.ok("topic", "list") == "no topics\n"


@pytest.mark.parametrize("name", ["", "a b", "..", "x" * 250])
def test_names_kafka_would_refuse(shell, name):
    assert shell("topic", "create", name).exit_code == ExitCode.USAGE


def test_lines_in_lines_out(shell):
    shell.ok("topic", "create", "t")
    said = shell("append", "t", stdin=b"one\ntwo\n\xff\n")
    assert said.stdout == ""
    assert said.stderr == "appended 3 records to t (partition:offset 0:0-2)\n"
    assert shell("read", "t").stdout_bytes == b"one\ntwo\n\xff\n"
    assert shell.json("append", "t", stdin="x\n") == {
        "topic": "t",
        "records": 1,
        "partitions": [{"partition": 0, "first_offset": 3, "last_offset": 3, "records": 1}],
    }
    assert shell("append", "t", stdin="").stderr == "appended 0 records to t\n"


def test_keys_headers_and_times(shell):
    shell.ok("topic", "create", "t")
    options = ["--key-delimiter", "\\t", "--header", "a=1", "-H", "b", "--timestamp", "2026-01-01", "--sync"]
    shell.ok("append", "t", *options, stdin="k\tv\n")
    shell.ok("append", "t", "--key", "fixed", "--null-empty", stdin="\n")
    assert shell.lines("read", "t", "--format", "%t %p %o %k %s %K %S %h\\n") == [
        "t 0 0 k v 1 1 a=1,b=",
        "t 0 1 fixed  5 -1 ",
    ]
    first = json.loads(shell.lines("read", "t", "--json")[0])
    assert first["timestamp"] == NOW
    assert first["headers"] == [{"key": "a", "value": "1"}, {"key": "b", "value": None}]


def test_files(shell, tmp_path):
    shell.ok("topic", "create", "t", "--partitions", "2")
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3")
    shell.ok("append", "t", str(tmp_path / "a"), str(tmp_path / "b"), "--partition", "1")
    shell.ok("append", "t", "--whole", "-p", "1", str(tmp_path / "a"))
    assert shell("read", "t", "--partition", "1").stdout_bytes == b"1\n2\n3\n1\n2\n\n"
    assert shell.ok("read", "t", "--partition", "0") == ""
    missing = shell("append", "t", str(tmp_path / "a"), str(tmp_path / "nope"))
    assert missing.exit_code == ExitCode.NOT_FOUND
    assert "before the error appended 2 records to t" in missing.stderr
    assert shell("append", "t", "-p", "7", stdin="x\n").exit_code == ExitCode.NOT_FOUND


def test_json_lines_come_back_as_they_were(shell, orders):
    rows = [
        {"value": "v", "partition": 1},
        {"value": None, "key": "k", "timestamp": NOW},
        {"value_base64": "/w==", "key": "", "headers": [["h", None]], "timestamp": NOW + 1, "partition": 0},
    ]
    shell.ok("topic", "create", "t", "--partitions", "2")
    shell.ok("append", "t", "--jsonl", stdin="\n".join(map(json.dumps, rows)))
    copied = shell.ok("read", "t", "--json")
    shell.ok("topic", "create", "copy", "--partitions", "2")
    shell.ok("append", "copy", "--jsonl", stdin=copied)
    assert shell.ok("read", "copy", "--json") == copied.replace('"topic":"t"', '"topic":"copy"')
    bad = shell("append", "t", "--jsonl", stdin='{"value": "fine"}\n{"value": 3}\n')
    assert bad.exit_code == ExitCode.RECORD_REFUSED
    assert "stdin line 2" in bad.stderr


def test_reading_by_offset(orders):
    assert orders.lines("read", "orders", "--from", "7") == ["v7", "v8", "v9"]
    assert orders.lines("read", "orders", "--from", "2", "--to", "4") == ["v2", "v3"]
    assert orders.lines("read", "orders", "--from", "-2") == ["v8", "v9"]
    assert orders.lines("read", "orders", "--from", "-99", "--limit", "1") == ["v0"]
    assert orders.lines("read", "orders", "--to", "-8") == ["v0", "v1"]
    assert orders.lines("read", "orders", "--from", "9", "--to", "99") == ["v9"]
    assert orders.lines("read", "orders", "--limit", "0") == []
    assert orders.lines("read", "orders", "--from", "latest") == []
    assert orders.lines("read", "orders", "--to", "earliest") == []
    assert orders.lines("read", "orders", "--from", "10") == []
    outside = orders("read", "orders", "--from", "11")
    assert outside.exit_code == ExitCode.OFFSET_OUT_OF_RANGE
    assert outside.stderr.count("the log holds offsets") == 1
    assert "offsets 0-9" in outside.stderr


def test_reading_by_time(orders):
    assert orders.lines("read", "orders", "--from", "2026-01-01T00:08:00Z") == ["v8", "v9"]
    assert orders.lines("read", "orders", "--to", "2026-01-01 00:02") == ["v0", "v1"]
    assert orders.lines("read", "orders", "--from", f"@{NOW + 1}", "--to", f"@{NOW + 120_001}") == [
        "v1",
        "v2",
    ]
    assert orders.lines("read", "orders", "--from", "-1m") == []
    assert orders.lines("read", "orders", "--since", "2026-01-01T00:08:00Z", "--until", "now") == ["v8", "v9"]
    assert orders.lines("read", "orders", "--since", "-1m", "--until", "now") == []
    assert orders.lines("read", "orders", "--from", "2026-01-01", "--to", "now", "-n", "1") == ["v0"]
    both = orders.lines("read", "orders", "--to", "2026-01-01T00:01:00Z", "--json")
    assert both == orders.lines("read", "orders", "--to", "1", "--json")


def test_times_out_of_order(shell):
    shell.ok("topic", "create", "t")
    minutes = [5, 1, 9, 3, 7, 2]
    rows = [json.dumps({"value": str(m), "timestamp": NOW + m * 60_000}) for m in minutes]
    shell.ok("append", "t", "--jsonl", stdin="\n".join(rows))
    chosen = ["--from", f"@{NOW + 3 * 60_000}", "--to", f"@{NOW + 8 * 60_000}"]
    assert shell.lines("read", "t", *chosen) == ["5", "3", "7"]
    assert shell.lines("read", "t", *chosen[:2]) == ["5", "9", "3", "7"]


def test_partitions_are_merged_by_time(shell):
    shell.ok("topic", "create", "t", "--partitions", "3")
    rows = [json.dumps({"value": str(n), "timestamp": NOW + n, "partition": n % 3}) for n in range(12)]
    shell.ok("append", "t", "--jsonl", stdin="\n".join(rows))
    assert shell.lines("read", "t") == [str(n) for n in range(12)]
    assert shell.lines("read", "t", "-p", "0", "-p", "2") == [str(n) for n in range(12) if n % 3 != 1]
    assert shell.lines("read", "t", "--from", "-1") == ["9", "10", "11"]
    assert shell("read", "t", "--from", "1").exit_code == ExitCode.USAGE
    assert shell("read", "t", "-p", "3").exit_code == ExitCode.NOT_FOUND
    assert shell("read", "nope").exit_code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("indexed", ["true", "false"])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_reading_by_key(orders, indexed, isolation):
    orders.ok("topic", "alter", "orders", "-c", f"key.index.enable={indexed}")
    orders.ok("roll", "orders")
    orders.ok("append", "orders", "--key", "k1", "--timestamp", "2026-01-02", stdin="newest\n")
    by_key = ["read", "orders", "--isolation", isolation, "--key"]
    assert orders.lines(*by_key, "k1") == ["v1", "v4", "v7", "newest"]
    assert orders.lines(*by_key, "k1", "--last") == ["newest"]
    assert orders.lines(*by_key, "k1", "--from", "2", "--to", "8") == ["v4", "v7"]
    assert orders.lines(*by_key, "k1", "--from", "2026-01-01T00:05:00Z", "--limit", "1") == ["v7"]
    missing = orders(*by_key, "nobody")
    assert missing.exit_code == ExitCode.NOT_FOUND
    assert "no record with the key nobody" in missing.stderr


def test_a_directory_is_no_input_file(orders, tmp_path):
    for arguments in (["append", "orders", str(tmp_path)], ["import", str(tmp_path)]):
        refused = orders(*arguments)
        assert refused.exit_code == ExitCode.USAGE
        assert f"{tmp_path} is a directory: give the files in it" in refused.stderr


def test_segments_and_rolling(orders):
    rolled = orders("roll", "orders")
    assert "rolled orders: 1 segment sealed" in rolled.stderr
    assert orders.json("roll", "orders") == {
        "topic": "orders",
        "partition": None,
        "rolled": False,
        "segments": 0,
    }
    assert "nothing to roll in orders partition 0" in orders("roll", "orders", "-p", "0").stderr
    orders.ok("append", "orders", stdin="later\n")
    first, second = orders.json("segments", "orders")
    assert (first["base_offset"], first["next_offset"], first["state"], first["records"]) == (
        0,
        10,
        "sealed",
        10,
    )
    assert (first["min_timestamp"], first["max_timestamp"]) == (NOW, NOW + 9 * 60_000)
    assert (second["base_offset"], second["state"]) == (10, "active")
    lines = orders.lines("segments", "orders")
    assert lines[1].split()[:5] == ["0", "0", "10", "sealed", "10"]
    assert "2026-01-01 00:00:00" in lines[1]
    assert lines[1].endswith("2026-01-01 00:09:00")
    assert lines[-1].startswith("2 segments, ")
    assert first["path"] in orders.ok("segments", "--paths")
    assert orders("segments", "orders", "-p", "4").exit_code == ExitCode.NOT_FOUND


def test_settings_of_a_topic(shell):
    orders = shell
    orders.ok("topic", "create", "orders")
    orders.ok("topic", "alter", "orders", "-c", "segment.bytes=64MiB")
    entries = {entry["name"]: entry for entry in orders.json("config", "orders")}
    assert (entries["segment.bytes"]["value"], entries["segment.bytes"]["source"]) == ("67108864", "topic")
    assert entries["segment.ms"]["source"] == "default"
    (only,) = orders.json("config", "orders", "--changed")
    assert only["name"] == "segment.bytes"
    row = orders.lines("config", "orders", "--find", "segment.bytes")[1]
    assert row.split() == ["segment.bytes", "67108864", "64.0", "MiB", "topic"]
    assert "sealed before it would grow" in orders.ok("config", "orders", "--docs", "--changed")
    orders.ok("topic", "alter", "orders", "--unset", "segment.bytes")
    assert "uses the default of every setting" in orders.ok("config", "orders", "--changed")
    wrong = orders("topic", "alter", "orders", "--unset", "segment.byte")
    assert wrong.exit_code == ExitCode.USAGE
    assert "did you mean segment.bytes?" in wrong.stderr


def test_several_log_directories(tmp_path):
    shell = Shell(tmp_path / "a", tmp_path / "b")
    shell.ok("topic", "create", "t", "--partitions", "4")
    found = shell.json("log-dirs")
    assert [(each["path"], each["partitions"], each["online"]) for each in found] == [
        (str(tmp_path / "a"), 2, True),
        (str(tmp_path / "b"), 2, True),
    ]
    assert all(each["free_bytes"] > 0 and not each["held"] for each in found)
    homes = {row["partition"]: row["directory"] for row in shell.json("topic", "describe", "t")["details"]}
    moved = next(n for n, home in homes.items() if home.startswith(str(tmp_path / "a")))
    shell.ok("append", "t", "-p", str(moved), stdin="kept\n")
    shell.ok("topic", "move", "t", "--partition", str(moved), "--to", str(tmp_path / "b"))
    assert [each["partitions"] for each in shell.json("log-dirs")] == [1, 3]
    assert shell.lines("read", "t", "-p", str(moved)) == ["kept"]
    assert "no process" in shell.ok("log-dirs")


def test_records_too_large(shell):
    shell.ok("topic", "create", "t", "--config", "max.message.bytes=1000")
    result = shell("append", "t", stdin="x" * 2000)
    assert result.exit_code == ExitCode.RECORD_REFUSED
    assert "max.message.bytes" in result.stderr
    shell.ok("topic", "create", "small", "--config", "segment.bytes=4KiB")
    result = shell("append", "small", stdin="x" * 5000)
    assert result.exit_code == ExitCode.RECORD_REFUSED
    assert "more than the 4096 allowed, the smaller of the topic's max.message.bytes and segment.bytes" in (
        result.stderr
    )
    assert "see `stratalog config TOPIC`" in result.stderr
    shell.ok("topic", "create", "c", "--config", "cleanup.policy=compact")
    assert shell("append", "c", stdin="no key\n").exit_code == ExitCode.RECORD_REFUSED
