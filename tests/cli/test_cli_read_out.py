"""`read --out` and `read --where`: files of every form, whole or not at all; conditions without surprises."""

from __future__ import annotations

import base64
import csv
import json
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stratalog
from stratalog import Record
from stratalog.analysis.where import compile_where
from stratalog.errors import InvalidArgumentError
from tests.cli.shell import Shell

VALUES: list[tuple[bytes | None, bytes | None]] = [
    (b"plain", b"k"),
    (None, b"tombstone"),
    (b"", b""),
    (b"", None),
    (b"\xff\x00\x80", b"\xfe"),
    (b'a,"b"\n\r\nc', b"quoted"),
    ("žluť €".encode(), b"unicode"),
    (b"x" * 50_000, b"long"),
]


@pytest.fixture
def shell(tmp_path) -> Shell:
    with stratalog.open(tmp_path / "data") as store:
        raw = store.create_topic("raw")
        for number, (value, key) in enumerate(VALUES):
            raw.append(
                value, key, [("h", b"\xff"), ("n", None)] if number % 2 else [], 1_767_225_600_000 + number
            )
        orders = store.create_topic("orders", 2)
        orders.append_many(
            [
                Record(
                    json.dumps({"amount": n, "country": "DE" if n % 2 else "FR", "tags": [n]}).encode(),
                    b"k%d" % n,
                )
                for n in range(100)
            ]
        )
        orders.append(b"not JSON", b"k")
        orders.append(None, b"gone")
        store.create_topic("empty")
    return Shell(tmp_path / "data")


@pytest.mark.parametrize("name", ["out.parquet", "out.arrow"])
def test_parquet_and_arrow_hold_what_scan_delivers(shell, tmp_path, name):
    path = tmp_path / name
    told = shell.json("read", "raw", "--out", str(path))
    assert told == {
        "topic": "raw",
        "file": str(path),
        "format": path.suffix[1:],
        "records": len(VALUES),
        "bytes": path.stat().st_size,
    }
    table = pq.read_table(path) if name.endswith("parquet") else pa.ipc.open_file(path).read_all()
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        scanned = store["raw"].to_arrow()
    assert table.schema.equals(scanned.schema)
    assert table.to_pylist() == scanned.to_pylist()


def test_a_directory_that_does_not_exist_is_named(shell, tmp_path):
    result = shell("read", "raw", "--out", str(tmp_path / "none" / "out.csv"))
    assert result.exit_code == 3
    assert f"the directory {tmp_path / 'none'} does not exist" in result.stderr


@pytest.mark.parametrize("options", [(), ("--key-hex", "--value-hex")])
def test_csv_loses_nothing(shell, tmp_path, options):
    path = tmp_path / "out.csv"
    shell.ok("read", "raw", "--out", str(path), *options)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    decode = {
        "utf8": str.encode,
        "base64": base64.b64decode,
        "hex": bytes.fromhex,
        "null": lambda text: None,
    }
    for row, (value, key) in zip(rows, VALUES, strict=True):
        assert decode[row["value_encoding"]](row["value"]) == value
        assert decode[row["key_encoding"]](row["key"]) == key
        assert "base64" not in (row["key_encoding"], row["value_encoding"]) or not options
    assert json.loads(rows[1]["headers"]) == [
        {"key": "h", "value_base64": "/w=="},
        {"key": "n", "value": None},
    ]


def test_jsonl_goes_back_in(shell, tmp_path):
    path = tmp_path / "out.jsonl"
    shell.ok("read", "raw", "--out", str(path))
    assert path.read_text() == shell.ok("read", "raw", "--json")
    shell.ok("topic", "create", "again")
    shell.ok("append", "again", "--jsonl", stdin=path.read_bytes())
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert [(each.value, each.key) for each in store["again"].read()] == VALUES
    shell.ok("read", "raw", "--out", str(path), "--value-hex", "--force")
    first = json.loads(path.read_text().splitlines()[4])
    assert (first["value_hex"], first["key_base64"]) == ("ff0080", "/g==")


def test_hex_in_plain_output(shell):
    assert shell.lines("read", "raw", "--value-hex", "--limit", "1") == [b"plain".hex()]
    assert shell.lines("read", "raw", "--key-hex", "--format", "%k %s\\n", "-n", "1") == ["6b plain"]


def test_selection_where_limit_and_key(shell, tmp_path):
    path = str(tmp_path / "out.jsonl")
    assert shell.json("read", "orders", "--where", "amount >= 98", "--out", path)["records"] == 2
    assert shell.json("read", "orders", "--out", path, "--force", "--limit", "3")["records"] == 3
    assert shell.json("read", "orders", "--out", path, "--force", "--key", "k7")["records"] == 1
    assert shell.json("read", "orders", "--out", path, "--force", "--from", "now")["records"] == 0
    assert shell.json("read", "empty", "--out", str(tmp_path / "e.parquet"))["records"] == 0
    assert pq.read_table(tmp_path / "e.parquet").num_rows == 0
    lines = shell.lines("read", "orders", "--where", '$.amount > 90 and country == "DE"', "--format", "%k\\n")
    assert sorted(lines) == ["k91", "k93", "k95", "k97", "k99"]


def test_a_file_that_is_there_is_kept(shell, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("mine")
    result = shell("read", "raw", "--out", str(path))
    assert (result.exit_code, path.read_text()) == (2, "mine")
    assert "--force" in result.stderr
    shell.ok("read", "raw", "--out", str(path), "--force")
    assert path.read_text().startswith("topic,partition")


def test_a_failed_run_leaves_no_file(shell, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    assert shell("read", "raw", "--key", "none", "--out", str(folder / "a.csv")).exit_code == 3
    assert shell("read", "raw", "--out", str(folder / "a.txt")).exit_code == 2
    assert shell("read", "raw", "--out", str(tmp_path / "nowhere" / "a.csv")).exit_code == 3
    assert shell("read", "raw", "--follow", "--out", str(folder / "a.csv")).exit_code == 2
    log = min((tmp_path / "data" / "raw-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    for name in ("a.parquet", "a.arrow", "a.csv", "a.jsonl"):
        assert shell("read", "raw", "--out", str(folder / name)).exit_code == 5
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("number", "left"), [(signal.SIGINT, 0), (signal.SIGKILL, 1)])
def test_a_killed_run_leaves_no_half_file(tmp_path, number, left):
    folder = tmp_path / "out"
    folder.mkdir()
    with stratalog.open(tmp_path / "data") as store:
        topic = store.create_topic("big")
        for _ in range(30):
            topic.append_many([Record(b"x" * 100) for _ in range(10_000)])
    arguments = ["read", "big", "--data", str(tmp_path / "data"), "--out", str(folder / "big.csv")]
    process = subprocess.Popen([sys.executable, "-m", "stratalog", *arguments], stderr=subprocess.PIPE)
    while not any(path.stat().st_size for path in folder.iterdir()):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    process.communicate()
    assert process.returncode in (130, -number)
    assert not (folder / "big.csv").exists()
    assert len(list(folder.iterdir())) == left


def test_frames(shell, tmp_path):
    polars = pytest.importorskip("polars")
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        orders = store["orders"]
        table = orders.to_arrow([0], ["offset", "value"], start=1)
        assert table.column_names == ["offset", "value"]
        assert table["offset"][0].as_py() == 1
        pandas = orders.to_pandas(columns=["partition", "offset"])
        assert len(pandas) == orders.to_arrow().num_rows == 102
        frame = orders.to_polars(columns=["partition", "offset"], since="-1h")
        assert isinstance(frame, polars.DataFrame)
        assert frame.rows() == [tuple(row) for row in pandas.itertuples(index=False)]


def test_a_missing_package_is_named(shell, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with (
        stratalog.open(tmp_path / "data", read_only=True) as store,
        pytest.raises(stratalog.errors.ConfigError, match="pip install polars"),
    ):
        store["orders"].to_polars()


VALUE = {"a": 5, "b": "text", "c": None, "d": [1, {"e": True}], "with space": {"x-y": 1.5}, "n": "12"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a == 5", True),
        ("a=5.0", True),
        ("$.a>4", True),
        ("a>5", False),
        ("a<=5 and a>=5", True),
        ("not a == 5", False),
        ("a != 5", False),
        ("a != 'x'", True),
        ("n > 5", False),
        ('b == "text"', True),
        ("b == 'text'", True),
        ("b contains 'ex'", True),
        ("b < 'u'", True),
        ("c == null", True),
        ("missing == null", False),
        ("missing != 1", False),
        ("d[0] == 1", True),
        ("d[-1].e == true", True),
        ("d[7] == 1", False),
        ("d contains 1", True),
        ("d[1].e == 1", False),
        ("$['with space'].x-y == 1.5", True),
        ("a == 1 or b == 'text' and c == null", True),
        ("(a == 1 or b == 'text') and a == 1", False),
        ("@offset == 7 and @partition == 2", True),
        ("@key == 'key'", True),
        ("@timestamp >= 1000", True),
        ("b == 'it\\'s'", False),
        ('b == "\\u0074ext"', True),
    ],
)
def test_conditions(text, holds):
    record = Record(json.dumps(VALUE).encode(), b"key", (), 1000, 7, 2)
    assert compile_where(text)(record) is holds


def test_values_that_are_not_json_meet_nothing():
    for value in (None, b"", b"{", b"\xff", b"[" * 100_000):
        assert not compile_where("a != 1 or a == null")(Record(value))


@pytest.mark.parametrize(
    "text",
    ["", "a", "a ==", "a == b", "== 1", "a == 1 b", "(a == 1", "a == 1 and", "a < null", "a[b] == 1", "a ; 1"]
    + ["@value == 1", "__import__('os')", "a == 'x", "(" * 100 + "a == 1" + ")" * 100, "not " * 10_000]
    + ["a == 007", "a == " + "1" * 5_000, "a[1.5] == 1", "a[1e400] == 1"],
)
def test_a_condition_that_is_wrong(shell, text):
    with pytest.raises(InvalidArgumentError):
        compile_where(text)
    result = shell("read", "orders", "--where", text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
